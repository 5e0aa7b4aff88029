"""Pre-train efficient text encoders by replaced token detection.

    model = electra.load("RUN")                          # then model.detect(texts), model.embed(texts), ...
    data = electra.prepare(corpus="FOLDER", out="DATA")  # the commands, with the same keys
    run = electra.pretrain(data=data, out="RUN", model={"size": "tiny"}, train={"steps": 1000})
    tuned = electra.finetune(model=run, task="sst2", data="GLUE", out="OUT", seeds=3)

Nothing is imported before it is needed: `import electra` takes no torch.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from electra.predict.load import Engine
    from electra.predict.model import Model

    __version__: str

__all__ = ["__version__", "finetune", "load", "prepare", "pretrain"]


def load(
    path: str | Path, *, device: str = "cpu", engine: "Engine" = "torch", max_length: int | None = None
) -> "Model":
    """The model in a folder, ready to be asked: a run, a folder of transformers, or a fine-tuned model.

    `device` is cpu, cuda, mps or auto. `max_length`: tokens to read at once, if not as many as in training.
    """
    from electra.predict.load import load as load_model

    return load_model(path, device=device, engine=engine, max_length=max_length)


def prepare(*, out: str | Path, **options: Any) -> Path:
    """`electra prepare`: a corpus becomes the data set `out`, the folder that is returned."""
    return _run("prepare", out, options)


def pretrain(*, out: str | Path, **options: Any) -> Path:
    """`electra pretrain`: a data set becomes the run `out`, the folder that is returned; or goes on."""
    return _run("pretrain", out, options)


def finetune(*, out: str | Path, **options: Any) -> Path:
    """`electra finetune`: a model and a task become the folder `out`, which is returned; or goes on."""
    return _run("finetune", out, options)


def _run(verb: str, out: str | Path, options: Mapping[str, Any]) -> Path:
    """Do what a command does; groups of keys are dicts, `config` a YAML file that the other keys overrule."""
    words = [f"--{key}={_word(value)}" for key, value in _flat({**options, "out": out})]
    words.sort(key=lambda word: not word.startswith("--config="))
    try:
        import_module(f"electra.run.{verb}").main(words)
    except SystemExit as end:
        # The command ends with the code of the process that it has watched over.
        if end.code:
            raise RuntimeError(f"electra {verb} ended with code {end.code}") from end
    return Path(out)


def _flat(options: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Keys of nested dicts as the command line has them: train={"steps": 10} is train.steps."""
    found: list[tuple[str, Any]] = []
    for key, value in options.items():
        nested = isinstance(value, Mapping)
        found += _flat(value, f"{prefix}{key}.") if nested else [(f"{prefix}{key}", value)]
    return found


def _word(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, str | Path):
        return str(value)
    if isinstance(value, float):
        # As YAML writes what is without end.
        return repr(value).replace("inf", ".inf")
    import json

    return json.dumps(value, default=str)


def __getattr__(name: str) -> str:
    # Looked up when asked for: reading the package's metadata takes a tenth of `electra --help`.
    if name == "__version__":
        from importlib.metadata import version

        return version("electra")
    raise AttributeError(f"module 'electra' has no attribute {name!r}")
