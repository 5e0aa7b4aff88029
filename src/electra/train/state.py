"""One value that is all of a training run between two steps <-> tensors and facts of a checkpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.train.checkpoint_folder import Checkpoint
from electra.train.distributed import part_like, whole_tensor
from electra.train.health import Health
from electra.train.optimizer_state import pack_optimizer, unpack_optimizer

_COUNTERS = (
    "step",
    "batches_skipped",
    "tokens",
    "seconds",
    "flops",
    "evaluated_step",
    "best_step",
    "best_error",
)


@dataclass(kw_only=True)
class TrainState:
    """Weights, optimizer, and how far they have come."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Steps that are finished."""
    batches_skipped: int = 0
    """Batches left out when the run went back: step n works on batch n + batches_skipped."""
    tokens: int = 0
    seconds: float = 0.0
    """Wall-clock time of training, evaluation and saving, over all resumes."""
    flops: float = 0.0
    evaluated_step: int = -1
    """The step after which held-out rows were last looked at."""
    best_step: int = -1
    best_error: float | None = None
    """Of held-out rows, by the problem's own measure."""
    health: Health = field(default_factory=Health)
    scaler: torch.amp.GradScaler | None = None
    """Of fp16."""

    @property
    def batch_number(self) -> int:
        """The batch of the next step."""
        return self.step + self.batches_skipped

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What a checkpoint holds as tensors, not copied; all processes must ask for it."""
        groups = {"model": _own_tensors(self.model), "optimizer": pack_optimizer(self.optimizer)[0]}
        return {
            name: {key: whole_tensor(tensor) for key, tensor in group.items()}
            for name, group in groups.items()
        }

    def facts(self) -> dict[str, Any]:
        """What a checkpoint holds as JSON."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "health": self.health.facts(),
            "optimizer": pack_optimizer(self.optimizer)[1],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint) -> None:
        """Become what was saved, or refuse it and stay what it was."""
        facts, weights = checkpoint.facts, checkpoint.tensors["model"]
        _require_same_weights(weights, self.model, where=str(checkpoint.path))
        missing = sorted({*_COUNTERS, "health", "optimizer"} - facts.keys())
        if missing:
            raise InputError(
                f"{checkpoint.path} does not say {missing[0]}: it was written by another version of electra. "
                "Continue the run with that version, or begin a new one with another --out"
            )
        counters, health = {name: facts[name] for name in _COUNTERS}, Health(**facts["health"])
        options = [
            {key: group[key] for key in group if key != "params"} for group in self.optimizer.param_groups
        ]
        # The last that can refuse, and the first to change anything.
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], facts["optimizer"])
        copy_weights(weights, self.model, where=str(checkpoint.path))
        for weight, moments in self.optimizer.state.items():
            for name, moment in moments.items():
                if isinstance(moment, Tensor) and moment.shape == weight.shape:
                    moments[name] = part_like(moment, weight)
        # Options are the config's: where a change of it was allowed, it counts.
        for group, option in zip(self.optimizer.param_groups, options, strict=True):
            group.update(option)
        for name, value in counters.items():
            setattr(self, name, value)
        self.health = health
        if self.scaler is not None and facts["scaler"]:
            self.scaler.load_state_dict(facts["scaler"])


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with each tensor once, also where two networks share it."""
    # By identity, not by address: processes with no part of two small tensors would take them for one.
    first_names: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        first_names.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in first_names.values()}


@torch.no_grad()
def copy_weights(source: Mapping[str, Tensor], model: nn.Module, *, where: str) -> None:
    """Give a model the weights of another of the same kind, as `TrainState.tensors` has them."""
    _require_same_weights(source, model, where=where)
    for name, tensor in _own_tensors(model).items():
        tensor.copy_(part_like(source[name], tensor))


def _require_same_weights(source: Mapping[str, Tensor], model: nn.Module, *, where: str) -> None:
    target = _own_tensors(model)
    if target.keys() != source.keys():
        different = sorted(target.keys() ^ source.keys())
        raise InputError(f"{where} is of another model: {different[0]} and {len(different) - 1} more differ")
    for name, tensor in target.items():
        if tensor.shape != source[name].shape:
            raise InputError(
                f"{where}: {name} has shape {list(source[name].shape)}, this model {list(tensor.shape)}"
            )
