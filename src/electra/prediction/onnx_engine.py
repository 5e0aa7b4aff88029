"""A folder that `electra export --to onnx` made -> the same encoder, computed by onnxruntime.

model.onnx          token ids -> hidden states, and what a plain head makes of them, for other programs
config.json         as the source has it; the key `electra_onnx` is ours
head.safetensors    the head by our names, with a generator's word embeddings
tokenizer files

Our heads stay in torch: they look at the positions that are asked for, where a graph looks at all of them.

B rows, L positions, V tokens of the vocabulary, E numbers in an embedding.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from electra import files
from electra.errors import InputError, import_extra
from electra.formats.imported import Role
from electra.model.encoder import Encoder, Positions
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.model.sizes import EncoderConfig
from electra.tasks import folders
from electra.tasks.families.table import build_family
from electra.tasks.folders import CONFIG, GRAPH, HEAD_WEIGHTS, TASK_KEY, FineTuned
from electra.tasks.model import TaskModel

ONNX_KEY = "electra_onnx"
HIDDEN_STATES = "last_hidden_state"
WORD_TABLE = "word_embeddings.weight"
"""In head.safetensors, what a generator's head is tied to."""
TOKENS_AT_ONCE = 512
"""Of rows that are computed together: a graph computes on padding too. 64 sentences took 0.99 s all together,
0.58 s so, and 0.73 s one by one (small's shape on one core)."""
ERRORS_ONLY = 3
"""Level of onnxruntime's log."""


@dataclass(frozen=True, kw_only=True)
class OnnxFacts:
    """What config.json says of the graph beside it."""

    part: Role
    precision: str
    max_length: int
    """Tokens to read at once, as the source was trained, or as was asked for."""
    outputs: tuple[str, ...]

    @classmethod
    def read(cls, folder: Path) -> "OnnxFacts":
        """Those of a folder that has them."""
        values = folders.read_values(folder)[ONNX_KEY]
        return cls(**{**values, "outputs": tuple(values["outputs"])})


def is_onnx(folder: Path) -> bool:
    """Whether a folder holds what we exported for onnxruntime."""
    return ONNX_KEY in folders.read_values(folder)


def check_intact(folder: Path) -> None:
    """That the files are those that were written, where a manifest tells which those are."""
    if not (folder / files.MANIFEST).is_file():
        return
    content = files.read_json(folder / files.MANIFEST)
    kind = content.get("kind", "") if isinstance(content, dict) else ""
    for problem in files.damaged_files(folder, files.read_manifest(folder, kind=kind)):
        # What others add does not hurt.
        if not problem.endswith("not in the manifest"):
            raise InputError(f"{problem}: copy the folder again, or export again")


class OnnxEncoder(nn.Module):
    """Stands where an `Encoder` does, on the CPU and for prediction only. Threads may share it."""

    def __init__(self, session: Any, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self._session = session
        # Where a module computes is asked of its first parameter, and some heads have none.
        self.place = nn.Parameter(torch.empty(0), requires_grad=False)

    @classmethod
    def read(cls, folder: Path) -> "OnnxEncoder":
        """That of a folder, whose files must be whole."""
        check_intact(folder)
        # A run computes all outputs, asked for or not: a generator's are logits of the whole vocabulary.
        cut = OnnxFacts.read(folder).part == "generator"
        session = open_session(folder / GRAPH, only=HIDDEN_STATES if cut else None)
        return cls(session, folders.read_config(folder))

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
            (found,) = self._session.run([HIDDEN_STATES], arrays)
            hidden_BLD[rows, :length] = torch.from_numpy(found)
        return hidden_BLD


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


def open_session(path: Path, *, only: str | None = None) -> Any:
    """A graph, ready to be run with all outputs or `only` one.

    By one core: other batches are for the others. With two of them at one batch, int8 took 1.5 times as long.
    """
    runtime = import_extra("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    try:
        graph = str(path) if only is None else cut_graph(path, only)
        return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    # Its many kinds of errors have no common parent of their own.
    except Exception as error:
        raise InputError(f"{path} is not a graph that onnxruntime can read: {error}") from error


def cut_graph(path: Path, output: str) -> bytes:
    """What of a graph one of its outputs needs."""
    onnx = import_extra("onnx", extra="onnx")
    whole = onnx.load(path)
    inputs = [value.name for value in whole.graph.input]
    extractor = import_extra("onnx.utils", extra="onnx").Extractor(whole)
    cut: bytes = extractor.extract_model(inputs, [output]).SerializeToString()
    return cut


class OnnxHead(NamedTuple):
    """The head of pre-training and, of a generator, the table that it is tied to."""

    module: DiscriminatorHead | GeneratorHead | None
    word_embeddings_VE: Tensor | None


def load_head(folder: Path, config: EncoderConfig) -> OnnxHead:
    """The head beside a graph, if it has one."""
    part = OnnxFacts.read(folder).part
    if part == "encoder":
        return OnnxHead(None, None)
    state = folders.read_tensor_file(folder / HEAD_WEIGHTS)
    table_VE = state.pop(WORD_TABLE, None)
    if part == "generator" and (table_VE is None or len(table_VE) != config.vocab_size):
        raise InputError(f"{folder / HEAD_WEIGHTS} lacks {WORD_TABLE} of {config.vocab_size} tokens")
    head = DiscriminatorHead(config) if part == "discriminator" else GeneratorHead(config)
    folders.copy_state(state, head, where=str(folder / HEAD_WEIGHTS))
    return OnnxHead(head.eval(), table_VE)


def load_tuned(folder: Path) -> FineTuned:
    """A fine-tuned model whose encoder is a graph."""
    about = folders.read_values(folder)[TASK_KEY]
    family = build_family(about, where=f"{folder / CONFIG}, {TASK_KEY}")
    encoder = OnnxEncoder.read(folder)
    # Only its sizes are asked for, so it takes no memory.
    with torch.device("meta"):
        shape = Encoder(encoder.config)
    model = TaskModel(shape, {about["task"]: family})
    model.register_module("encoder", encoder)
    head = model.head(about["task"])
    if head.state_dict():
        state = folders.read_tensor_file(folder / HEAD_WEIGHTS)
        folders.copy_state(state, head, where=str(folder / HEAD_WEIGHTS))
    return FineTuned(
        model=model.eval(),
        task=about["task"],
        tokenizer=folders.load_tokenizer(folder, encoder.config),
        max_length=OnnxFacts.read(folder).max_length,
    )
