"""A training run between two steps, as one value <-> the tensors and facts of a checkpoint, bit for bit.

Optimizer state goes by the names of parameters, never by their order, and nothing is cast on the way, unlike
in torch's own `load_state_dict`, which gives the moments of a bf16 weight its type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.show import listed
from electra.tensors import TensorFiles
from electra.train.checkpoint import Checkpoint
from electra.train.distributed import as_part, local_values, rows_held, whole_tensor
from electra.train.health import Health

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
_HEALTH = {part.name for part in fields(Health)}
_PACKED = {"optimizer", "prefix", "groups", "parameters"}


@dataclass(kw_only=True)
class TrainState:
    """Weights, optimizer, and how far training has come."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0
    """Finished steps."""
    batches_skipped: int = 0
    """Batches skipped by rollbacks: step n works on batch n + batches_skipped."""
    tokens: int = 0
    seconds: float = 0.0
    """Wall-clock time of training, evaluation and saving, over all resumes."""
    flops: float = 0.0
    evaluated_step: int = -1
    """The step of the last evaluation."""
    best_step: int = -1
    best_error: float | None = None
    """Held-out error of the best step, by the problem's own measure."""
    health: Health = field(default_factory=Health)
    scaler: torch.amp.GradScaler | None = None
    """Loss scaler of fp16."""

    @property
    def batch_number(self) -> int:
        """Number of the next step's batch."""
        return self.step + self.batches_skipped

    @property
    def has_finite_weights(self) -> bool:
        """Whether every weight is a number, as far as this process holds them."""
        weights = (local_values(tensor) for tensor in _own_tensors(self.model).values())
        return all(bool(weight.isfinite().all()) for weight in weights if weight.is_floating_point())

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The tensors of a checkpoint, neither copied nor gathered where processes hold parts of them."""
        return {"model": _own_tensors(self.model), "optimizer": pack_optimizer(self.optimizer)[0]}

    @property
    def is_spread(self) -> bool:
        """Whether each process holds a part of the weights."""
        return any(rows_held(weight) for weight in self.model.parameters())

    def whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by its name, one at a time gathered on the host; all processes must do this."""
        for name, tensor in _own_tensors(self.model).items():
            yield name, whole_tensor(tensor).cpu()

    def facts(self) -> dict[str, Any]:
        """The facts of a checkpoint, as JSON."""
        return {
            **{name: getattr(self, name) for name in _COUNTERS},
            "health": self.health.facts(),
            "optimizer": pack_optimizer(self.optimizer)[1],
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    @torch.no_grad()
    def load(self, checkpoint: Checkpoint) -> None:
        """Take over a checkpoint's state, or raise and stay unchanged."""
        if wrong := next(_unusable(checkpoint), ""):
            raise InputError(
                f"{checkpoint.path} lacks {wrong}: it was written by another version of electra. "
                "Resume the run with that version, or start a new one with another --out"
            )
        facts, weights = checkpoint.facts, checkpoint.tensors["model"]
        _require_same_weights(weights, self.model, where=str(checkpoint.path))
        counters, health = {name: facts[name] for name in _COUNTERS}, Health(**facts["health"])
        options = [
            {key: group[key] for key in group if key != "params"} for group in self.optimizer.param_groups
        ]
        # The last check that can raise, and the first change.
        unpack_optimizer(self.optimizer, checkpoint.tensors["optimizer"], facts["optimizer"])
        copy_weights(weights, self.model, where=str(checkpoint.path))
        # Options come from the config, which may have been changed on purpose since.
        for group, option in zip(self.optimizer.param_groups, options, strict=True):
            group.update(option)
        for name, value in counters.items():
            setattr(self, name, value)
        self.health = health
        if self.scaler is not None and facts.get("scaler"):
            self.scaler.load_state_dict(facts["scaler"])


def _unusable(checkpoint: Checkpoint) -> Iterator[str]:
    """What a checkpoint does not have, or not as `TrainState` saves it."""
    facts = checkpoint.facts
    yield from (f"{name}.safetensors" for name in ("model", "optimizer") if name not in checkpoint.tensors)
    for name in _COUNTERS:
        unset = name == "best_error" and name in facts and facts[name] is None
        if not (unset or isinstance(facts.get(name), int | float)):
            yield name
    health, optimizer = facts.get("health"), facts.get("optimizer")
    if not isinstance(health, dict) or not health.keys() <= _HEALTH:
        yield "health"
    if not isinstance(optimizer, dict) or not optimizer.keys() >= _PACKED:
        yield "optimizer"


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with each tensor once, even where two networks share it."""
    # By identity, not by address: in a process that holds no part of two small tensors they share an address.
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
        local_values(tensor).copy_(_values_held(source, name, tensor))


def _require_same_weights(source: Mapping[str, Tensor], model: nn.Module, *, where: str) -> None:
    target = _own_tensors(model)
    if target.keys() != source.keys():
        different = sorted(target.keys() ^ source.keys())
        raise InputError(f"{where} is of another model; only one of the two has {listed(different)}")
    for name, tensor in target.items():
        if tensor.shape != (shape := _shape(source, name)):
            raise InputError(f"{where}: {name} has shape {list(shape)}, this model {list(tensor.shape)}")


def _shape(source: Mapping[str, Tensor], name: str) -> torch.Size:
    return source.shape(name) if isinstance(source, TensorFiles) else source[name].shape


def _values_held(source: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """What this process holds of a tensor like this one; of files that is all that is read."""
    rows = rows_held(like)
    if rows is None:
        return source[name]
    if isinstance(source, TensorFiles):
        return source.rows(name, rows)
    return source[name][rows.first : rows.first + rows.count]


def pack_optimizer(
    optimizer: torch.optim.Optimizer, *, prefix: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of an optimizer as tensors (not copied) by parameter name, and facts for JSON."""
    tensors: dict[str, Tensor] = {}
    parameters: dict[str, dict[str, Any]] = {}
    for name, param, _ in _named_parameters(optimizer):
        state = optimizer.state.get(param, {})
        own = {key: value for key, value in state.items() if isinstance(value, Tensor)}
        tensors |= {f"{prefix}{name}.{key}": value for key, value in own.items()}
        parameters[name] = {
            "shape": list(param.shape),
            "tensors": list(own),
            "values": {key: value for key, value in state.items() if key not in own},
        }
    groups = [{key: value for key, value in group.items() if key != "params"} for group in _groups(optimizer)]
    assert not any(isinstance(value, Tensor) for group in groups for value in group.values()), (
        "options of a parameter group must be plain values: give the learning rate as a float"
    )
    return tensors, {
        "optimizer": type(optimizer).__name__,
        "prefix": prefix,
        "groups": groups,
        "parameters": parameters,
    }


def unpack_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Give an optimizer over the same named parameters the packed state and options, or raise unchanged."""
    _require_same_parameters(optimizer, facts)
    parameters, prefix = facts["parameters"], facts["prefix"]
    wanted = [f"{prefix}{name}.{key}" for name, saved in parameters.items() for key in saved["tensors"]]
    _refuse("the checkpoint lacks the optimizer's", [name for name in wanted if name not in tensors])

    optimizer.state.clear()
    for group, saved_group in zip(_groups(optimizer), facts["groups"], strict=True):
        for key, value in saved_group.items():
            # The names are the same, in the order of this optimizer's parameters.
            if key != "param_names":
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    for name, param, group in _named_parameters(optimizer):
        saved = parameters[name]
        state = {
            key: _state_tensor(tensors, f"{prefix}{name}.{key}", param, _state_device(key, param, group))
            for key in saved["tensors"]
        }
        # A parameter that never had a gradient has no state at all, which differs from an empty one.
        if state or saved["values"]:
            optimizer.state[param] = {**state, **saved["values"]}


def _groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = optimizer.param_groups
    assert all("param_names" in group for group in groups), "build the optimizer from named parameters"
    return groups


def _named_parameters(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[str, Tensor, dict[str, Any]]]:
    """Every parameter with its name and its group."""
    for group in _groups(optimizer):
        for name, param in zip(group["param_names"], group["params"], strict=True):
            yield name, param, group


def _state_tensor(tensors: Mapping[str, Tensor], name: str, param: Tensor, device: torch.device) -> Tensor:
    """A tensor of the optimizer, spread over processes as its parameter is if it has its shape."""
    if _shape(tensors, name) != param.shape:
        return tensors[name].to(device, copy=True)
    return as_part(_values_held(tensors, name, param).to(device, copy=True), param)


def _state_device(key: str, param: Tensor, group: dict[str, Any]) -> torch.device:
    """As in torch: a step counter stays on the CPU unless the kernel reads it beside the weights."""
    on_cpu = key == "step" and not group.get("fused") and not group.get("capturable")
    return torch.device("cpu") if on_cpu else param.device


def _require_same_parameters(optimizer: torch.optim.Optimizer, facts: Mapping[str, Any]) -> None:
    ours = {name: list(param.shape) for name, param, _ in _named_parameters(optimizer)}
    saved = {name: parameter["shape"] for name, parameter in facts["parameters"].items()}
    if facts["optimizer"] != type(optimizer).__name__:
        raise InputError(
            f"the checkpoint was made with the optimizer {facts['optimizer']}, this run has "
            f"{type(optimizer).__name__}: use the same one, or start a new run"
        )
    _refuse("only the checkpoint has the", [name for name in saved if name not in ours])
    _refuse("the checkpoint lacks the", [name for name in ours if name not in saved])
    _refuse(
        "the checkpoint has other shapes for the",
        [f"{name} {saved[name]} (here {shape})" for name, shape in ours.items() if saved[name] != shape],
    )
    our_group = {name: n for n, group in enumerate(_groups(optimizer)) for name in group["param_names"]}
    saved_group = {name: n for n, group in enumerate(facts["groups"]) for name in group["param_names"]}
    _refuse(
        "the checkpoint puts into other groups (by weight decay and share of the learning rate) the",
        [name for name in our_group if our_group[name] != saved_group[name]],
    )


def _refuse(problem: str, names: list[str]) -> None:
    """Raise if the problem concerns any names, and show the first of them."""
    if names:
        raise InputError(
            f"{problem} parameters {listed(names)}: continue with the config it was made with, or "
            "start a new run"
        )
