"""An encoder with its head -> a graph of ONNX for batches of any size and length, in float32 or int8.

B rows, L positions, D numbers in a hidden state.
"""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra.errors import import_extra
from electra.model.encoder import Encoder
from electra.model.heads import (
    ClassificationHead,
    DiscriminatorHead,
    GeneratorHead,
    RegressionHead,
    SpanHead,
    TaggingHead,
)
from electra.ship.onnx_engine import HIDDEN_STATES
from electra.tasks.classification import Regression
from electra.tasks.family import Family
from electra.tasks.similarity import PoolingHead
from electra.tasks.squad_family import AnswerHead

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
QUANTISED = ("MatMul", "Gemm", "Gather")
"""Operations whose weights become int8: all products, and the tables of embeddings, half of a small model."""
ANY_SIZE = 2**40
SMALL_COPY = 2**18


class Graph(nn.Module):
    """Token ids -> hidden states and, where a head is a function of nothing else, its outputs.

    They are named as in transformers and sentence-transformers. Left out is the joint head of questions:
    its ends depend on which starts were chosen.
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
            case RegressionHead() as head:
                value_B1 = head(hidden_BLD)[:, None]
                if isinstance(self.family, Regression):
                    value_B1 = self.family.low + value_B1 * (self.family.high - self.family.low)
                return {"logits": value_B1}
            case DiscriminatorHead() | ClassificationHead() | TaggingHead() as head:
                return {"logits": head(hidden_BLD)}
            case PoolingHead() as head:
                return {"sentence_embedding": head(hidden_BLD, attention_mask_BL)}
            case AnswerHead(span=SpanHead() as span):
                return {
                    "start_logits": span.start(hidden_BLD).squeeze(-1),
                    "end_logits": span.end(hidden_BLD).squeeze(-1),
                }
        return {}


def write_fp32(graph: Graph, path: Path) -> None:
    """Write the graph as it is."""
    program = trace(graph, largest_copy=SMALL_COPY)
    with quiet():
        program.save(path)


def write_int8(graph: Graph, path: Path) -> None:
    """Write it with weights of 8 bits; the numbers between layers are rounded so as they come."""
    with quiet():
        quantization = import_extra("onnxruntime.quantization", extra="onnx")
        # A table that is turned round in each run could not be rounded.
        model = trace(graph, largest_copy=ANY_SIZE).model_proto
        # What torch noted of shapes does not hold for rounded numbers, and would be refused.
        model.graph.ClearField("value_info")
        # Seven bits of a weight in a product: two products of eight overflow where a CPU lacks VNNI, and
        # differences from torch were ten times as large. Tables have eight all the same.
        quantization.quantize_dynamic(
            model, path, op_types_to_quantize=list(QUANTISED), per_channel=True, reduce_range=True
        )


def trace(graph: Graph, *, largest_copy: int) -> "torch.onnx.ONNXProgram":
    """What torch sees of a graph: the plain way of the encoder, with padding computed on and ignored.

    `largest_copy`: numbers of a weight that is stored twice, for two uses, to be turned round only here.
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
    """Keep to itself what the exporter has to say: warnings, progress on stdout, advice in the log."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    nowhere = io.StringIO()
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
