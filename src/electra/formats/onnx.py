"""A run or a model's folder -> model.onnx for batches of any size and length, checked against torch.

    export_onnx("RUN", out, part="discriminator", precision="fp32", max_length=None).describe()
    electra.load(out, engine="onnx").detect(["The chef ate the meal."])

B rows, L positions, D numbers in a hidden state.
"""

import dataclasses
import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from electra.errors import InputError, import_extra
from electra.model.encoder import Encoder
from electra.model.heads import (
    DiscriminatorHead,
    GeneratorHead,
)
from electra.model.names import ARCHITECTURES, Role
from electra.model.store import GRAPH, ONNX_KEY, Contents, ModelFolder, open_model, write_model
from electra.prediction.load import load
from electra.prediction.onnx_engine import HIDDEN_STATES, INPUTS, WORD_TABLE, OnnxFacts, open_session
from electra.prediction.windows import Reader
from electra.seeds import numpy_generator
from electra.show import megabytes
from electra.tasks.families.family import Family
from electra.tasks.model import TASK_KEY, task_of
from electra.text.tokenizer import Tokenizer

QUANTISED = ("MatMul", "Gemm", "Gather")
"""Operations whose weights become int8: all products, and the tables of embeddings, half of a small model."""
ANY_SIZE = 2**40
SMALL_COPY = 2**18


class Graph(nn.Module):
    """Token ids -> hidden states and, where a head is a function of nothing else, its outputs.

    They are named as in transformers and sentence-transformers. The joint head of questions is left out: its
    ends depend on which starts were chosen.
    """

    def __init__(
        self, encoder: Encoder, head: nn.Module | None = None, family: Family[Any] | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = head
        self.family = family

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> dict[str, Tensor]:
        """All outputs by name."""
        hidden_BLD = self.encoder(
            input_ids, token_type_ids_BL=token_type_ids, attention_mask_BL=attention_mask
        )
        return {HIDDEN_STATES: hidden_BLD, **self.judge(hidden_BLD, attention_mask)}

    def judge(self, hidden_BLD: Tensor, attention_mask_BL: Tensor) -> dict[str, Tensor]:
        """What the head makes of hidden states."""
        match self.head:
            case GeneratorHead() as head:
                return {"logits": head(hidden_BLD, self.encoder.embeddings.word_embeddings.weight)}
            case DiscriminatorHead() as head:
                return {"logits": head(hidden_BLD)}
            case nn.Module() as head if self.family is not None:
                return self.family.onnx_outputs(head, hidden_BLD, attention_mask_BL)
        return {}


def write_fp32(graph: Graph, path: Path) -> None:
    """Write the graph as it is."""
    program = trace(graph, largest_copy=SMALL_COPY)
    with quiet():
        program.save(path)


def write_int8(graph: Graph, path: Path) -> None:
    """Write it with weights of 8 bits; the numbers between layers are rounded as they come."""
    with quiet():
        quantization = import_extra("onnxruntime.quantization", extra="onnx")
        # A table that is transposed in each run could not be rounded.
        model = trace(graph, largest_copy=ANY_SIZE).model_proto
        # What torch noted of shapes does not hold for rounded numbers, and would be refused.
        model.graph.ClearField("value_info")
        # Seven bits of a weight in a product: two products of eight overflow where a CPU lacks VNNI, and
        # differences from torch were ten times as large. Tables have eight all the same.
        quantization.quantize_dynamic(
            model, path, op_types_to_quantize=list(QUANTISED), per_channel=True, reduce_range=True
        )


def trace(graph: Graph, *, largest_copy: int) -> "torch.onnx.ONNXProgram":
    """The graph as torch traces it: the encoder's plain path, with padding computed on and ignored.

    `largest_copy`: size, in numbers, of the largest weight that is stored a second time, transposed.
    """
    with quiet(), torch.no_grad():
        import_extra("onnx", extra="onnx")
        optimizer = import_extra("onnxscript.optimizer", extra="onnx")
        passes = import_extra("onnx_ir.passes.common", extra="onnx")
        longest = graph.encoder.config.max_position_embeddings
        ids_BL = torch.zeros(2, max(2, min(8, longest // 2)), dtype=torch.long)
        example = (ids_BL, torch.ones_like(ids_BL), torch.zeros_like(ids_BL))
        sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}
        program = torch.onnx.export(
            graph,
            example,
            dynamo=True,
            input_names=list(INPUTS),
            output_names=list(graph(*example)),
            dynamic_shapes=dict.fromkeys(INPUTS, sizes),
            verbose=False,
        )
        assert program is not None
        # Queries, keys and values are one product, whose weights are joined here and not in each run.
        optimizer.optimize(program.model, input_size_limit=ANY_SIZE, output_size_limit=largest_copy)
        # Torch notes at every operation which lines of which files made it: folders of whoever exports.
        passes.ClearMetadataAndDocStringPass()(program.model)
    return program


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporter: its warnings, its progress on stdout, its advice in the log."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


SHORTEST = 3
"""Tokens of a row: [CLS], one of text, [SEP]."""
NUM_BATCHES = 5
TOLERANCE = 1e-3
"""Largest difference in float32 that rounding explains, as a share of the largest number of an output."""

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
        return f"{self.precision}, {megabytes(self.size_bytes)}; largest differences from torch: {apart}"


def check_graph(
    path: Path, graph: Graph, tokenizer: Tokenizer, *, precision: str, max_length: int
) -> OnnxCheck:
    """Compare the graph on padded batches with torch on each row by itself.

    This also shows that padding and neighbours change nothing.
    """
    session = open_session(path)
    names = [output.name for output in session.get_outputs()]
    differences, scales = dict.fromkeys(names, 0.0), dict.fromkeys(names, 1.0)
    for inputs in check_batches(tokenizer, max_length=max_length):
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


def check_batches(tokenizer: Tokenizer, *, max_length: int) -> Iterator[Arrays]:
    """One to five rows of random tokens, from the longest that are read down to the shortest."""
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
    """The outputs of torch for a row without its padding and its neighbours."""
    alone = [torch.from_numpy(inputs[name][row : row + 1, :length]) for name in INPUTS]
    return {name: output[0].numpy() for name, output in graph(*alone).items()}


Precision = Literal["fp32", "int8"]


class ExportedPart(NamedTuple):
    """The part of a model that is exported."""

    folder: ModelFolder
    reader: Reader
    graph: Graph


def export_onnx(
    source: Path,
    out: Path,
    *,
    part: Role,
    precision: Precision,
    max_length: int | None,
    graph_name: str = GRAPH,
) -> OnnxCheck:
    """Write the graph, the config, the tokenizer and the head into a folder, and compare with torch.

    Of a fine-tuned model, `discriminator` is the whole of it and `encoder` is it without its head.
    `max_length`: tokens to read at once; by default as many as in training if that is known. `graph_name`:
    the graph's place in the folder.
    """
    folder, reader, graph = choose_part(source, part, max_length=max_length)
    write = {"fp32": write_fp32, "int8": write_int8}[precision]
    path = out / graph_name
    path.parent.mkdir(parents=True, exist_ok=True)
    write(graph, path)
    check = check_graph(path, graph, reader.tokenizer, precision=precision, max_length=reader.max_length)
    facts = OnnxFacts(part=part, precision=precision, max_length=reader.max_length, outputs=check.outputs)
    values = {**config_of(folder, part), ONNX_KEY: dataclasses.asdict(facts)}
    write_model(out, Contents(values=values, tensors={}, head=head_state(graph)), reader.tokenizer)
    return check


def choose_part(source: Path, part: Role, *, max_length: int | None) -> ExportedPart:
    """The network that is asked for."""
    model, folder = load(source, max_length=max_length), open_model(source)
    reader, head, family = model.reader, None, None
    if model.tuned is not None and part == "discriminator":
        head, family = model.tuned.model.head(model.tuned.task), model.tuned.family
    elif part != "encoder":
        network = model.discriminator if part == "discriminator" else model.generator
        if network is None:
            raise InputError(
                f"{source} has no {part} with its head. It can {', '.join(model.abilities)}: "
                "--part encoder exports the encoder alone"
            )
        if network.reader is not reader:
            folder = ModelFolder(folder.path.parent / part)
        reader, head = network.reader, network.head
    assert isinstance(reader.encoder, Encoder)
    return ExportedPart(folder, reader, Graph(reader.encoder, head, family).eval())


def config_of(folder: ModelFolder, part: Role) -> dict[str, Any]:
    """The config of the source; without all keys of a head, if the encoder is exported alone."""
    if part != "encoder":
        about = task_of(folder)
        return folder.values if about is None else {**folder.values, TASK_KEY: about}
    of_head = (TASK_KEY, "id2label", "label2id", "problem_type")
    return {
        **{key: value for key, value in folder.values.items() if key not in of_head},
        "architectures": [ARCHITECTURES["encoder"]],
    }


def head_state(graph: Graph) -> dict[str, Tensor]:
    """The weights that stay in torch."""
    state = {} if graph.head is None else dict(graph.head.state_dict())
    if isinstance(graph.head, GeneratorHead):
        state[WORD_TABLE] = graph.encoder.embeddings.word_embeddings.weight
    return state
