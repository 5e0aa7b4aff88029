"""A graph and the torch module that it was made from -> how far their outputs lie apart.

B rows, L positions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from electra.errors import InputError
from electra.seeds import numpy_generator
from electra.ship.onnx_engine import open_session
from electra.ship.onnx_graph import INPUTS, Graph
from electra.text.tokenizer import Tokenizer

SHORTEST = 3
"""Tokens of a row: [CLS], one of text, [SEP]."""
NUM_BATCHES = 5
TOLERANCE = 1e-3
"""Difference in float32 that is no rounding any more, as a share of the largest number of an output."""

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class OnnxCheck:
    """What was written, and how it compares with torch."""

    precision: str
    size_bytes: int
    differences: Mapping[str, float]
    """The largest of each output."""
    scales: Mapping[str, float]
    """The largest number of each output, but not below 1; a regression's are as large as its labels."""

    @property
    def outputs(self) -> tuple[str, ...]:
        """Their names, in the order of the graph."""
        return tuple(self.differences)

    @property
    def largest_difference(self) -> float:
        """Of all numbers that were compared, as a share of the largest of their output."""
        # Unlike the builtin, numpy's `max` keeps NaN.
        return float(np.max([self.differences[name] / self.scales[name] for name in self.outputs]))

    def describe(self) -> str:
        """For a person."""
        apart = ", ".join(f"{name} {value:.1e}" for name, value in self.differences.items())
        return f"{self.precision}, {self.size_bytes / 1e6:.1f} MB; largest differences from torch: {apart}"


def check_graph(
    path: Path, graph: Graph, tokenizer: Tokenizer, *, precision: str, max_length: int
) -> OnnxCheck:
    """Compare the graph on padded batches with torch on each row by itself.

    So it is seen too that padding and neighbours change nothing.
    """
    session = open_session(path)
    names = [output.name for output in session.get_outputs()]
    differences, scales = dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0)
    for inputs in batches(tokenizer, max_length=max_length):
        found = session.run(names, inputs)
        for row, length in enumerate(inputs["attention_mask"].sum(axis=1)):
            for name, expected in judge_row(graph, inputs, row, length).items():
                # Torch has seen no padding: what lies beyond its row is not compared.
                part = found[names.index(name)][row][tuple(slice(size) for size in expected.shape)]
                # Unlike `max`, this keeps NaN.
                differences[name] = float(np.maximum(differences[name], np.abs(part - expected).max()))
                scales[name] = max(scales[name], float(np.abs(expected).max()))
    check = OnnxCheck(
        precision=precision, size_bytes=path.stat().st_size, differences=differences, scales=scales
    )
    if precision == "fp32" and not check.largest_difference <= TOLERANCE:
        raise InputError(f"the graph does not compute what torch does ({check.describe()}): do not use it")
    return check


def batches(tokenizer: Tokenizer, *, max_length: int) -> Iterator[Arrays]:
    """One to five rows of random tokens, from the longest that is read down to the shortest."""
    random = numpy_generator(0, "onnx check")
    lengths = np.linspace(max_length, SHORTEST, NUM_BATCHES).astype(int)
    for num_rows, length in enumerate(lengths, start=1):
        input_ids_BL = random.integers(tokenizer.vocab_size, size=(num_rows, length))
        row_lengths_B = random.integers(SHORTEST, length, size=num_rows, endpoint=True)
        row_lengths_B[0] = length
        position_BL = np.arange(length)[None]
        attention_mask_BL = (position_BL < row_lengths_B[:, None]).astype(np.int64)
        second_B = random.integers(row_lengths_B, endpoint=True)
        input_ids_BL[:, 0] = tokenizer.cls_id
        input_ids_BL[np.arange(num_rows), row_lengths_B - 1] = tokenizer.sep_id
        input_ids_BL[attention_mask_BL == 0] = tokenizer.pad_id
        token_type_ids_BL = (position_BL >= second_B[:, None]) * attention_mask_BL
        yield dict(zip(INPUTS, (input_ids_BL, attention_mask_BL, token_type_ids_BL), strict=True))


@torch.no_grad()
def judge_row(graph: Graph, inputs: Arrays, row: int, length: int) -> Arrays:
    """What torch makes of a row without its padding and its neighbours."""
    alone = [torch.from_numpy(inputs[name][row : row + 1, :length]) for name in INPUTS]
    return {name: output[0].numpy() for name, output in graph(*alone).items()}
