"""A path -> what lies there, and what is wrong or fine with it, for `electra doctor` and `electra.doctor`.

Runs, fine-tunings and datasets are judged by their files (`report/`); a model is opened as any command would.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from electra import files
from electra.errors import InputError
from electra.report.datasets import KIND as DATASET
from electra.report.datasets import examine_data
from electra.report.diagnosis import diagnose_run
from electra.report.findings import Finding, damage_of, sorted_findings
from electra.report.models import ModelFacts, judge_model
from electra.report.runs import read_run
from electra.report.studies import diagnose_study, is_study

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["pre-training run", "fine-tuning", "dataset", "model"]
_OF_RUN = ("metrics.jsonl", "config.yaml", "environment.json")
_EXPECTED = (
    "expected a run of `electra pretrain`, a fine-tuning of `electra finetune`, a dataset of `electra "
    "prepare`, "
    "or a model"
)


@dataclass(frozen=True, kw_only=True)
class Checkup:
    """What lies at a path, and all that was found."""

    path: Path
    kind: Kind
    findings: list[Finding]


def examine(path: Path) -> Checkup:
    """Look at whatever lies there; nothing is written."""
    partial = path.with_name(f"{path.name}.partial")
    if not path.is_dir() and not (not path.exists() and partial.is_dir()):
        raise InputError(f"{path} is no folder: {_EXPECTED}")
    if path.name.endswith(".partial") or not path.exists() or _manifest_kind(path) == DATASET:
        return Checkup(path=path, kind="dataset", findings=sorted_findings(examine_data(path)))
    if path.name.startswith("seed-") and (path.parent / "config.yaml").is_file():
        raise InputError(
            f"{path} is one seed of a fine-tuning: look at all of it, electra doctor {path.parent}"
        )
    if any((path / name).is_file() for name in _OF_RUN):
        run = read_run(path, name=path.name)
        if is_study(run.config):
            return Checkup(path=path, kind="fine-tuning", findings=diagnose_study(path))
        return Checkup(path=path, kind="pre-training run", findings=diagnose_run(run))
    if any((path / name).is_file() for name in ("config.json", files.MANIFEST)) or (path / "final").is_dir():
        return Checkup(path=path, kind="model", findings=judge_model(open_facts(path)))
    found = ", ".join(sorted(entry.name for entry in path.iterdir())[:5]) or "nothing"
    raise InputError(f"{path} holds {found}: {_EXPECTED}")


def _manifest_kind(folder: Path) -> str:
    try:
        content = json.loads((folder / files.MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        # A damaged dataset still has its counts.
        return DATASET if (folder / "token_counts.npy").is_file() else ""
    return str(content.get("kind")) if isinstance(content, dict) else ""


def open_facts(path: Path) -> ModelFacts:
    """Open a model as a command would, and look at its weights."""
    # torch takes seconds, which runs and datasets need not wait for.
    from electra.model.store import open_model
    from electra.tasks.config import is_lightly_trained

    for place in (path, path / "final", path.parent):
        if (place / files.MANIFEST).is_file() and (place != path.parent or _manifest_kind(place) == "model"):
            if damage := damage_of(place):
                return ModelFacts(folder=path, damage=damage)
            break
    try:
        model = open_model(path)
        tokens_read = model.tokens_read
        if model.is_onnx:
            return ModelFacts(folder=path, tokens_read=tokens_read)
        weights = {**model.tensors, **{f"head.{name}": one for name, one in model.head_tensors.items()}}
        rows = model.config.vocab_size if model.is_encoder else None
        known = model.tokenizer.vocab_size
        # Whether the weights are those of the sizes in the config.
        if model.is_encoder:
            model.encoder_state()
    except (InputError, OSError) as error:
        return ModelFacts(folder=path, problem=str(error))
    return ModelFacts(
        folder=path,
        is_fine_tuned=bool(model.head_tensors) or "task" in model.values,
        embedding_rows=rows,
        vocab_size=known,
        tokens_read=tokens_read,
        is_lightly_trained=is_lightly_trained(tokens_read),
        **_weight_facts(weights),
    )


def _weight_facts(weights: "Mapping[str, Tensor]") -> dict[str, Any]:
    matrices = {name: weight for name, weight in weights.items() if weight.dim() == 2 and weight.numel()}
    sizes = {name: float(weight.double().square().mean().sqrt()) for name, weight in matrices.items()}
    return {
        "num_weights": sum(weight.numel() for weight in weights.values()),
        "not_finite": [name for name, weight in weights.items() if not bool(weight.isfinite().all())],
        "all_zero": [name for name, size in sizes.items() if size == 0],
        "largest": max(sizes.items(), key=lambda pair: pair[1], default=None),
    }
