"""An installed `electra` -> the path of the README in an empty folder: `PYTHON tests/smoke.py FOLDER`.

It knows nothing of this checkout, so it sees what a person sees who installed the wheel. `make dist` runs it
in a fresh environment, `tests/test_packaging.py` on an unpacked wheel.
"""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path

ELECTRA = (sys.executable, "-m", "electra")
TINY = {
    "train.steps": 4,
    "train.batch_size": 8,
    "train.device": "cpu",
    "train.precision": "fp32",
    "valid_rows": 8,
}


def main(folder: Path) -> None:
    """Prepare, pre-train, fine-tune, predict and serve; any failure ends it."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    write_texts()
    run(sys.executable, "-c", "import electra; print(electra.__version__, electra.__file__)")
    run(*ELECTRA, "recipes")
    run(
        *ELECTRA, "prepare", "--corpus", "texts", "--vocab_size", "300", "--seq_length", "32", "--out", "data"
    )
    keys = [f"--{key}={value}" for key, value in TINY.items()]
    run(*ELECTRA, "pretrain", "--config", "tiny", "--data", "data", "--out", "run", *keys)
    task = ("--task", "csv", "--data", "labelled.csv", "--seeds", "1", "--train.epochs", "1")
    run(*ELECTRA, "finetune", "--model", "run", *task, "--out", "classifier")
    code = "import electra; print(electra.load('classifier').classify(['a small river']))"
    run(sys.executable, "-c", code)
    serve("classifier")
    print("smoke test passed")


def write_texts() -> None:
    """Text to learn from and a labelled table, in the current folder."""
    sentence = "the old river was in a small city and the new model is fast to read of large mountain water"
    words = sentence.split()
    texts = [" ".join(words[number % 7 :]) + f" {number}." for number in range(60)]
    Path("texts").mkdir()
    Path("texts", "some.txt").write_text("\n\n".join(texts), encoding="utf-8")
    rows = [f"{text},{('good', 'bad')[number % 2]}" for number, text in enumerate(texts)]
    Path("labelled.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")


def run(*command: str) -> None:
    """Show a command and run it."""
    print("$", *(command[2:] if command[:3] == ELECTRA else command), flush=True)
    subprocess.run(command, check=True)


def serve(model: str) -> None:
    """Start the server on a free port, ask it for a label and the page, and stop it."""
    command = (*ELECTRA, "serve", "--model", model, "--port", "0")
    print("$", *command[2:], flush=True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[0]
            body = json.dumps({"texts": ["a small river"]}).encode()
            request = urllib.request.Request(f"{url}/classify", body, {"Content-Type": "application/json"})
            print(ask(request))
            assert "<html" in ask(urllib.request.Request(url)), "the page is missing"
        finally:
            server.terminate()
    assert server.returncode == 0, f"the server ended with code {server.returncode}"


def ask(request: urllib.request.Request) -> str:
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
