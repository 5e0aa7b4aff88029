"""Pre-train efficient text encoders by replaced token detection.

    data = electra.prepare(corpus="FOLDER", out="DATA")
    run = electra.pretrain(data=data, out="RUN", model={"size": "tiny"}, train={"steps": 1000})
    tuned = electra.finetune(model=run, task="csv", data="labelled.csv", out="OUT", seeds=3)
    model = electra.load("RUN")                          # then model.detect(texts), model.embed(texts), ...

`electra.api` has the functions and what they return. Nothing is imported before it is needed: neither torch
nor numpy by `import electra`.
"""

from typing import TYPE_CHECKING

from electra.api import doctor, evaluate, export, finetune, load, predict, prepare, pretrain, score

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "__version__",
    "doctor",
    "evaluate",
    "export",
    "finetune",
    "load",
    "predict",
    "prepare",
    "pretrain",
    "score",
]


def __getattr__(name: str) -> str:
    # Looked up when asked for: reading the package's metadata takes a tenth of `electra --help`.
    if name == "__version__":
        from importlib.metadata import version

        return version("electra")
    raise AttributeError(f"module 'electra' has no attribute {name!r}")
