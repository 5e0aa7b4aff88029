"""`electra VERB ...` -> `main` of the verb's module in `run/`, imported only when it is needed."""

import importlib
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Protocol, cast

from electra import errors, show
from electra.errors import InputError

# The table of contents of the product, in the order a person meets the commands.
VERBS = {
    "demo": "Run the whole path on text that every Python installation carries",
    "recipes": "List the ready-made pre-training configs, or print one",
    "prepare": "Turn a corpus into a tokenizer and token rows",
    "plan": "Estimate parameters, FLOPs, memory, time and cost before a run",
    "pretrain": "Pre-train an encoder, or resume a run",
    "score": "Score how acceptable texts look to a pre-trained model; minimal pairs",
    "finetune": "Fine-tune a model on a task over several seeds",
    "evaluate": "Score a fine-tuned model on labelled data",
    "predict": "Write a fine-tuned model's predictions and submission files",
    "import": "Import Hugging Face or TensorFlow checkpoints",
    "export": "Export a model to transformers or ONNX (fp32, int8), with a model card",
    "serve": "Serve a model as an HTTP API with a web page",
    "report": "Write an HTML report on one or several runs",
    "doctor": "Say what is wrong or fine with a run, a dataset or a model, and the cure",
    "launch": "Write a job script for Slurm, or a manifest for Kubernetes",
    "bench": "Compare our speed with the alternatives and the machine's peak",
}

# `import` is a keyword, so its module needs another name.
_MODULES = {"import": "importing"}

OK, FAILURE, BAD_INPUT, INTERRUPTED = 0, 1, 2, errors.INTERRUPTED


class Verb(Protocol):
    """What every module in `run/` has."""

    def main(self, arguments: Sequence[str]) -> None:
        """Do the verb's work. Raises InputError for bad input."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 failure, 2 bad usage or input, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    verb = words.pop(0) if words else "--help"
    if verb in ("-h", "--help"):
        print(_help())
        return OK
    if verb == "--version":
        from electra import __version__

        print(f"electra {__version__}")
        return OK
    if verb not in VERBS:
        hint = show.did_you_mean(verb, VERBS)
        return _complain(f"unknown command {verb!r}{hint} (see 'electra --help')", BAD_INPUT)
    # SIGTERM ends a command as Ctrl-C does: it cleans up and says how to resume.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        cast(Verb, importlib.import_module(f"electra.run.{_MODULES.get(verb, verb)}")).main(words)
    except InputError as error:
        return _complain(str(error), BAD_INPUT)
    except BrokenPipeError:
        # `electra ... | head` closed the pipe. Closing stderr keeps Python from reporting it at exit.
        sys.stderr.close()
        return OK
    except KeyboardInterrupt as interruption:
        return _complain(f"interrupted{_after_colon(interruption)}", INTERRUPTED)
    except OSError as error:
        return _complain(f"{type(error).__name__}: {error}", FAILURE)
    return OK


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _after_colon(error: BaseException) -> str:
    return f": {error}" if str(error) else ""


def _complain(message: str, code: int) -> int:
    print(f"electra: {message}", file=sys.stderr)
    return code


def _help() -> str:
    return "\n".join(
        [
            "usage: electra COMMAND [--key value ...] [--config FILE_OR_RECIPE]",
            "",
            "Pre-train an efficient text encoder on your own text, fine-tune it, ship it.",
            "",
            show.table(VERBS),
            "",
            "'electra COMMAND --help' lists a command's keys, 'electra COMMAND --print_config' their values.",
            "Files and folders may lie in an object store: s3://BUCKET/NAME, gs://BUCKET/NAME.",
            "'electra --version' prints the version.",
        ]
    )
