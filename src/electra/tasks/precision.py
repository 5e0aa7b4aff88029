"""What was asked for, a device and a model -> the precision that the model answers in, and why.

`auto` takes what multiplies fastest on the device (`train.devices`). Where that is not fp32, the model first
answers a few texts in both; if it does not say the same, it stays in fp32. On which texts is the caller's
choice: `electra predict` and `electra evaluate` take the first of their examples, `electra.load` makes some
out of the vocabulary (`prediction.agreement`).
"""

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.train import devices
from electra.train.distributed import World

Precision = devices.Precision
PrecisionName = devices.PrecisionName

TOLERANCE = 0.03
"""How far a number may be from that of fp32: probabilities and cosines by this, larger numbers by this share,
vectors by this share of their length. bf16 rounds to 0.002 of a number, in each of some ten layers."""

FLOAT32: Precision = "fp32"


class ChosenPrecision(NamedTuple):
    """The precision of a model's matrix products."""

    name: Precision
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


ASKED_FOR = "as asked for"


def choose(
    asked: PrecisionName,
    device: torch.device,
    modules: Iterable[nn.Module],
    say: Callable[[Precision], Any],
) -> ChosenPrecision:
    """Choose a precision, and give the modules their weights in it.

    `say` gives what the model says in a precision of some texts, as plain data; it is asked for only to
    compare. Whoever computes then does so within `computing`.
    """
    if asked == "fp16" and device.type != "cuda":
        raise InputError(f"precision is fp16, which needs a CUDA device, not {device.type}: use auto")
    is_known = device.type == "cpu" and devices.AUTO_PRECISION not in os.environ and devices.lacks_bf16()
    # Measuring what is known anyway would take a tenth of a second at each start.
    precision = FLOAT32 if asked == "auto" and is_known else devices.choose_precision(asked, device, World())
    if precision == FLOAT32:
        return ChosenPrecision(precision, ASKED_FOR if asked == FLOAT32 else "auto: the fastest here")
    if asked != "auto":
        convert(modules, precision)
        return ChosenPrecision(precision, ASKED_FOR)
    expected = say(FLOAT32)
    undo = convert(modules, precision)
    found = difference(expected, say(precision))
    if found is None:
        return ChosenPrecision(precision, "auto: the fastest here, and the model says the same as in fp32")
    undo()
    return ChosenPrecision(FLOAT32, f"auto: in {precision}, the model says something else: {found}")


class Ranking(dict[str, float]):
    """Candidates with their numbers, of which the highest is what the model says."""

    def difference(self, found: "Ranking", *, where: str) -> str | None:
        """As below: the best one found must be the best here, or not be worse by more than the tolerance."""
        if not self:
            return None
        best, expected = max(found, key=found.__getitem__), max(self, key=self.__getitem__)
        if best not in self or self[expected] - self[best] > TOLERANCE:
            return f"{where}: the first is {best!r} and not {expected!r}"
        both = [{name: ranking[name] for name in self.keys() & found.keys()} for ranking in (self, found)]
        return difference(*both, where=where)


def computing(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    """Compute in the precision; threads that `inference` spreads batches to do so, too."""
    return devices.autocast(device, precision)


def convert(modules: Iterable[nn.Module], precision: Precision) -> Callable[[], None]:
    """Round the weights of linear layers once, where autocast would do it in each batch; returns the undoing.

    Norms and embeddings stay as they are, as under autocast.
    """
    kept = [
        (weight, weight.data)
        for module in modules
        for part in module.modules()
        if isinstance(part, nn.Linear)
        for weight in part.parameters(recurse=False)
    ]
    for weight, data in kept:
        weight.data = weights_in(data, precision)

    def undo() -> None:
        for weight, data in kept:
            weight.data = data

    return undo


def weights_in(weights: Tensor, precision: Precision) -> Tensor:
    """Weights in a precision; the same ones if they are in it."""
    return weights.to(devices.DTYPES[precision])


def difference(expected: Any, found: Any, *, where: str = "") -> str | None:
    """Where two answers of plain data say something else, or None: numbers may differ a little."""
    if isinstance(expected, float) and isinstance(found, float):
        is_near = abs(expected - found) <= TOLERANCE * max(1.0, abs(expected))
        return None if is_near else f"{where} is {found:.4g} and not {expected:.4g}"
    if isinstance(expected, Ranking):
        return expected.difference(found, where=where)
    if isinstance(expected, np.ndarray):
        distance, length = (float(np.linalg.norm(vector)) for vector in (expected - found, expected))
        is_near = distance <= TOLERANCE * length
        return None if is_near else f"{where} is away by {distance:.4g} of {length:.4g}"
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        pairs = [(f"{where}.{key}".lstrip("."), expected[key], found[key]) for key in expected]
    elif (
        isinstance(expected, list | tuple) and isinstance(found, list | tuple) and len(expected) == len(found)
    ):
        pairs = [(f"{where}[{place}]", *both) for place, both in enumerate(zip(expected, found, strict=True))]
    else:
        return None if expected == found else f"{where} is {found!r} and not {expected!r}"
    each = (difference(one, other, where=place) for place, one, other in pairs)
    return next((found for found in each if found is not None), None)
