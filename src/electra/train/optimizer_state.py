"""Optimizer -> named tensors and plain values -> the same optimizer, bit for bit.

State goes by the names of parameters, never by their order. Nothing is cast on the way, unlike in torch's own
`load_state_dict`, which gives the moments of a bf16 weight its type.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from electra.errors import InputError

_MOST_NAMES_SHOWN = 8


def pack_optimizer(
    optimizer: torch.optim.Optimizer, *, prefix: str = ""
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (not copied) by parameter's name, and facts for JSON; a prefix keeps optimizers apart."""
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
    """Give an optimizer over the same named parameters the packed state and options, or change nothing."""
    _require_same_parameters(optimizer, facts)
    parameters, prefix = facts["parameters"], facts["prefix"]
    wanted = [f"{prefix}{name}.{key}" for name, saved in parameters.items() for key in saved["tensors"]]
    _refuse("the checkpoint lacks the optimizer's", [name for name in wanted if name not in tensors])

    optimizer.state.clear()
    for group, saved_group in zip(_groups(optimizer), facts["groups"], strict=True):
        for key, value in saved_group.items():
            # The names are the same already, in the order of this optimizer's parameters.
            if key != "param_names":
                group[key] = tuple(value) if isinstance(group.get(key), tuple) else value
    for name, param, group in _named_parameters(optimizer):
        saved = parameters[name]
        state = {
            key: tensors[f"{prefix}{name}.{key}"].to(_state_device(key, param, group), copy=True)
            for key in saved["tensors"]
        }
        # A parameter that never had a gradient has no state at all, and an empty one would not be the same.
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
    """Raise if there are names that the problem is about, and show the first of them."""
    if names:
        shown = ", ".join(names[:_MOST_NAMES_SHOWN])
        more = f" and {len(names) - _MOST_NAMES_SHOWN} more" if len(names) > _MOST_NAMES_SHOWN else ""
        raise InputError(
            f"{problem} parameters {shown}{more}: continue with the config it was made with, "
            "or start a new run"
        )
