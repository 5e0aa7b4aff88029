"""A folder that `electra export --to onnx` made -> the same encoder, computed by onnxruntime.

model.onnx          token ids -> hidden states and, for other programs, the outputs of a plain head
config.json         that of the source; the key `electra_onnx` is ours
head.safetensors    the head by our names, with a generator's word embeddings
tokenizer.json ...  the tokenizer

Our heads stay in torch: they compute the positions that are asked for, where a graph computes all of them.

B rows, L positions, V tokens of the vocabulary, E numbers in an embedding.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from electra.errors import InputError, import_extra
from electra.model.encoder import Encoder, Positions
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.model.store import (
    CONFIG,
    GRAPH,
    HEAD_WEIGHTS,
    ONNX_KEY,
    ModelFolder,
    NetworkHead,
    RowLength,
    copy_state,
    network_head,
    room_for,
)
from electra.protobuf import DamagedError, as_bytes, read_fields
from electra.schema import check, short
from electra.tasks.families.table import build_family
from electra.tasks.model import TASK_KEY, FineTuned, TaskModel, task_of

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
HIDDEN_STATES = "last_hidden_state"
WORD_TABLE = "word_embeddings.weight"
"""In head.safetensors, the table that a generator's head shares."""
TOKENS_AT_ONCE = 512
"""Tokens of the rows that are computed together: a graph computes on padding too. 64 sentences took 0.99 s
all at once, 0.58 s like this, and 0.73 s one by one (small's shape on one core)."""
ERRORS_ONLY = 3
"""Level of onnxruntime's log."""


@dataclass(frozen=True, kw_only=True)
class OnnxFacts:
    """What config.json says of the graph beside it."""

    part: Role
    precision: str
    max_length: RowLength
    """Tokens to read at once: as many as in training, or as were asked for."""
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, folder: ModelFolder) -> "OnnxFacts":
        """Those of a folder that was exported for onnxruntime."""
        values = folder.values[ONNX_KEY]
        check(values, cls, where=str(folder.path / CONFIG), key=ONNX_KEY)
        known = {field.name: values[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**known, "outputs": tuple(values["outputs"])})


class OnnxEncoder(nn.Module):
    """Takes the place of an `Encoder`, on the CPU and for prediction only. Threads may share it."""

    def __init__(self, session: Any, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self._session = session
        # The device of a module is asked of its first parameter, and some heads have none.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)

    @classmethod
    def read(cls, folder: ModelFolder) -> "OnnxEncoder":
        """The graph of a folder, checked against the manifest."""
        folder.check_files(folder.graph_path.relative_to(folder.path).as_posix())
        # Every run computes all outputs, wanted or not: a generator's are logits of the whole vocabulary.
        cut = OnnxFacts.of(folder).part == "generator"
        session = open_session(folder.graph_path, only=HIDDEN_STATES if cut else None)
        check_signature(session, folder)
        return cls(session, folder.config)

    def forward(
        self,
        input_ids_BL: Tensor,
        *,
        token_type_ids_BL: Tensor | None = None,
        attention_mask_BL: Tensor | None = None,
        positions: Positions = "all",
    ) -> Tensor:
        """Hidden states (B, L, D), as those of `Encoder.forward`: at padding they mean nothing.

        A graph computes all positions, whichever are wanted.
        """
        mask_BL = torch.ones_like(input_ids_BL) if attention_mask_BL is None else attention_mask_BL
        types_BL = torch.zeros_like(input_ids_BL) if token_type_ids_BL is None else token_type_ids_BL
        inputs = {"input_ids": input_ids_BL, "attention_mask": mask_BL, "token_type_ids": types_BL}
        hidden_BLD = torch.zeros(*input_ids_BL.shape, self.config.hidden_size)
        for rows, length in rows_of_like_length(mask_BL):
            arrays = {name: tensor[rows, :length].long().numpy() for name, tensor in inputs.items()}
            hidden_BLD[rows, :length] = self._run(arrays, shape=(len(rows), length, self.config.hidden_size))
        return hidden_BLD

    def _run(self, arrays: dict[str, Any], *, shape: tuple[int, ...]) -> Tensor:
        try:
            (found,) = self._session.run([HIDDEN_STATES], arrays)
        # Its many kinds of errors have no narrower parent in common.
        except Exception as error:
            raise InputError(f"{GRAPH} cannot be computed: {error}") from error
        if found.shape != shape:
            raise InputError(f"{GRAPH} gives the shape {list(found.shape)}, expected {list(shape)}")
        return torch.from_numpy(found)


def rows_of_like_length(mask_BL: Tensor) -> Iterator[tuple[list[int], int]]:
    """The rows of a batch, some at a time, and how long the longest of them is."""
    position_L = torch.arange(1, mask_BL.shape[1] + 1)
    # Not the number of ones: what is masked may stand before text.
    lengths = ((mask_BL != 0) * position_L).amax(dim=1).clamp(min=1).tolist()
    rows: list[int] = []
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and (len(rows) + 1) * lengths[row] > TOKENS_AT_ONCE:
            yield rows, lengths[rows[-1]]
            rows = []
        rows.append(row)
    yield rows, lengths[rows[-1]]


def check_signature(session: Any, folder: ModelFolder) -> None:
    """Refuse a graph that is not for hidden states of the config's size."""
    given = {value.name for value in session.get_inputs()}
    if given != set(INPUTS):
        raise InputError(f"{folder.graph_path} has inputs {short(given)}, expected {', '.join(INPUTS)}")
    shape = next((one.shape for one in session.get_outputs() if one.name == HIDDEN_STATES), None)
    size = folder.config.hidden_size
    if not shape or len(shape) != 3 or shape[-1] != size:
        raise InputError(
            f"{folder.path / CONFIG}: hidden_size is {size}, but {HIDDEN_STATES} of {GRAPH} has the shape "
            f"{short(shape)}: they do not belong together"
        )


def open_session(path: Path, *, only: str | None = None) -> Any:
    """A graph, ready to be run with all outputs or `only` one.

    It computes on one core and leaves the others to other batches: with two cores at one batch, int8 took 1.5
    times as long.
    """
    refuse_other_files(path)
    runtime = import_extra("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    try:
        graph = str(path) if only is None else cut_graph(path, only)
        return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    # Its many kinds of errors have no narrower parent in common.
    except Exception as error:
        raise InputError(f"{path} is not a graph that onnxruntime can read: {error}") from error


_PARTS = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
"""By the name of a message in onnx.proto: number of a field -> the message in it, wherever tensors may be."""
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14
"""Fields of a tensor that is stored in another file."""


def refuse_other_files(path: Path) -> None:
    """Refuse a graph that asks for other files: onnxruntime would read whatever its maker names.

    We write one file. Recent versions stay in its folder by themselves; not all that we work with do.
    """
    try:
        unread = [("model", path.read_bytes())]
        while unread:
            kind, message = unread.pop()
            for number, value in read_fields(message):
                if kind == "tensor" and number in (_EXTERNAL_DATA, _DATA_LOCATION) and value:
                    raise InputError(f"{path} keeps weights in other files, expected all of them in this one")
                if inside := _PARTS.get(kind, {}).get(number):
                    unread.append((inside, as_bytes(value)))
    except (OSError, DamagedError) as error:
        raise InputError(f"{path} is not a graph that onnxruntime can read: {error}") from error


def cut_graph(path: Path, output: str) -> bytes:
    """The part of a graph that one of its outputs needs."""
    onnx = import_extra("onnx", extra="onnx")
    whole = onnx.load(path)
    inputs = [value.name for value in whole.graph.input]
    extractor = import_extra("onnx.utils", extra="onnx").Extractor(whole)
    cut: bytes = extractor.extract_model(inputs, [output]).SerializeToString()
    return cut


def load_head(folder: ModelFolder) -> tuple[NetworkHead | None, Tensor | None]:
    """The head of pre-training beside a graph, if any, and the table (V, E) that a generator's shares."""
    role, path, state = OnnxFacts.of(folder).part, folder.path / HEAD_WEIGHTS, dict(folder.head_tensors)
    if role == "encoder":
        return None, None
    table_VE = state.pop(WORD_TABLE, None)
    vocab_size = folder.config.vocab_size
    if role == "generator" and (table_VE is None or len(table_VE) != vocab_size):
        raise InputError(f"{path} lacks {WORD_TABLE} of {vocab_size} tokens")
    return network_head(role, folder.config, state, where=str(path)).eval(), table_VE


def load_tuned_graph(folder: ModelFolder) -> FineTuned:
    """A fine-tuned model whose encoder is a graph."""
    about = task_of(folder)
    assert about is not None
    family = build_family(about, where=f"{folder.path / CONFIG}, {TASK_KEY}")
    encoder = OnnxEncoder.read(folder)
    with room_for(folder.head_tensors, where=str(folder.path)):
        # It takes the place of an encoder.
        model = TaskModel(cast(Encoder, encoder), {about["task"]: family})
    copy_state(folder.head_tensors, model.head(about["task"]), where=str(folder.path / HEAD_WEIGHTS))
    return FineTuned(
        model=model.eval(),
        task=about["task"],
        tokenizer=folder.tokenizer,
        max_length=OnnxFacts.of(folder).max_length,
    )
