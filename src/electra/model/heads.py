"""Hidden states -> logits: the two heads of pre-training, the loss over the vocabulary, the heads of tasks.

torch's cross-entropy passes over the logits six times, forward and backward; with a vocabulary of 30,000 each
pass costs as much as a layer of a small encoder. In `token_loss`, the softmax that the loss needs is the one
that is sampled from and the one that the gradient is made of, and a few rows at a time stay in the cache.

B rows, L positions, P chosen positions, C of them in a chunk, V tokens, K beams; numbers in a hidden state D,
an embedding E, a hidden layer F.
"""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from electra.model import shapes
from electra.model.dropout import Dropout
from electra.model.encoder import GlorotLinear, norm_of
from electra.model.sizes import EncoderConfig

LOGITS_PER_CHUNK = 2**25
"""Positions x vocabulary that are held at a time: 128 MiB in float32."""

SPAN_HIDDEN_SIZE = 512
"""Width of the hidden layers in the joint span head, as in the original."""

OUTSIDE = -1000.0
"""Added to the logits of positions that an answer cannot include, as in the original."""


Pooling = Literal["mean", "cls", "max"]
"""How the hidden states of a text become one vector."""


def pool(hidden_BLD: Tensor, attention_mask_BL: Tensor | None, pooling: Pooling) -> Tensor:
    """One vector (B, D) for each row; special tokens count, padding does not, as in sentence-transformers.

    Without a mask nothing is padding.
    """
    if pooling == "cls":
        return hidden_BLD[:, 0]
    if attention_mask_BL is None:
        return hidden_BLD.mean(dim=1) if pooling == "mean" else hidden_BLD.amax(dim=1)
    # Not by a product with the mask: what stands at padding means nothing, and could be infinite.
    padding_BL1 = (attention_mask_BL == 0)[..., None]
    if pooling == "max":
        return hidden_BLD.masked_fill(padding_BL1, -math.inf).amax(dim=1)
    total_BD = hidden_BLD.masked_fill(padding_BL1, 0.0).sum(dim=1)
    return total_BD / attention_mask_BL.sum(dim=1, keepdim=True)


def gather_positions(hidden_BLD: Tensor, position_BP: Tensor) -> Tensor:
    """The hidden states at some positions of each row: (B, P, D)."""
    index_BPD = position_BP.long()[..., None].expand(-1, -1, hidden_BLD.shape[-1])
    return hidden_BLD.gather(1, index_BPD)


class GeneratorHead(nn.Module):
    """Hidden states at chosen positions -> logits over the vocabulary, by the tied word embeddings."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.embedding_size, bias=not config.is_modern)
        self.norm = norm_of(config, config.embedding_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden_PD: Tensor, word_embeddings_VE: Tensor) -> Tensor:
        """All logits at once (P, V): for few positions."""
        return functional.linear(self.transform(hidden_PD), word_embeddings_VE, self.bias)

    def transform(self, hidden_PD: Tensor) -> Tensor:
        """The vectors that are compared with the word embeddings: (P, E)."""
        vector_PE: Tensor = self.norm(functional.gelu(self.dense(hidden_PD)))
        return vector_PE

    def reduce(
        self,
        hidden_PD: Tensor,
        word_embeddings_VE: Tensor,
        function: Callable[..., tuple[Tensor, ...]],
        *columns_P: Tensor,
        logits_per_chunk: int = LOGITS_PER_CHUNK,
    ) -> tuple[Tensor, ...]:
        """`function(logits_CV, *columns_C)` over all positions, chunk by chunk; its results are (P, ...).

        With more than one chunk the logits are computed a second time for the gradient, so the function must
        give the same result again: randomness comes in as a column. It should compute first what needs a
        gradient, since the second time ends there; a look of `token_loss` is taken twice.
        """

        def reduce_chunk(vector_CE: Tensor, *columns_C: Tensor) -> tuple[Tensor, ...]:
            return function(functional.linear(vector_CE, word_embeddings_VE, self.bias), *columns_C)

        num_positions = len(hidden_PD)
        if shapes.compiles_products(hidden_PD.device):
            more = shapes.round_up(num_positions) - num_positions
            hidden_PD, *columns = (shapes.lengthen(tensor, more) for tensor in (hidden_PD, *columns_P))
            columns_P = tuple(columns)
        vector_PE = self.transform(hidden_PD)
        chunk_size = max(1, logits_per_chunk // len(word_embeddings_VE))
        if len(vector_PE) <= chunk_size:
            return tuple(result[:num_positions] for result in reduce_chunk(vector_PE, *columns_P))
        results = []
        for first in range(0, len(vector_PE), chunk_size):
            chunk = [tensor[first : first + chunk_size] for tensor in (vector_PE, *columns_P)]
            results.append(checkpoint(reduce_chunk, *chunk, use_reentrant=False, preserve_rng_state=False))
        return tuple(torch.cat(parts)[:num_positions] for parts in zip(*results, strict=True))


class Judged(NamedTuple):
    """Distributions over the vocabulary at some positions, in float32 and without a gradient."""

    logits_CV: Tensor
    probs_CV: Tensor
    best_C: Tensor
    """The most probable token."""
    log_normaliser_C: Tensor
    """The logarithm of the sum of the exponentials of all logits: log-probability = logit - this."""

    def entropy(self) -> Tensor:
        """In nats, at each position."""
        mean_C: Tensor = torch.linalg.vecdot(self.probs_CV, self.logits_CV)
        return self.log_normaliser_C - mean_C


Look = Callable[..., tuple[Tensor, ...]]
"""`look(judged, target_C, *columns_C)`: what else is wanted of the distributions, such as tokens drawn; not
the probabilities themselves, of which the gradient is made afterwards."""

_LOGITS_PER_BLOCK = 2**19
"""Logits that are worked on at a time: some passes over 2 MiB in float32, near enough to a core for that."""


def token_loss(
    logits_CV: Tensor, target_C: Tensor, *columns_C: Tensor, look: Look | None = None
) -> tuple[Tensor, ...]:
    """The cross-entropy (C) of the true tokens, and what a look finds: a function for `GeneratorHead.reduce`.

    Both are computed in float32, in whatever precision the logits come. Only the loss has a gradient.
    """
    apply: Callable[..., tuple[Tensor, ...]] = _TokenLoss.apply
    return apply(logits_CV, look, target_C.long(), *columns_C)


def is_best(judged: Judged, target_C: Tensor) -> tuple[Tensor]:
    """A look: whether the most probable token is the true one."""
    return (judged.best_C == target_C,)


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits_CV: Tensor, look: Look | None, target_C: Tensor, *columns_C: Tensor
    ) -> tuple[Tensor, ...]:
        # A pass over all logits goes to memory and back; blocks of rows stay in the cache for all passes.
        num_rows = size = max(1, len(logits_CV))
        if logits_CV.device.type == "cpu":
            size = max(1, _LOGITS_PER_BLOCK // logits_CV.shape[1])
        gradient_CV = torch.empty_like(logits_CV) if ctx.needs_input_grad[0] else None
        found: list[tuple[Tensor, ...]] = []
        # What is looked at is in float32, which autocast would undo.
        device = logits_CV.device.type
        plain = (
            torch.autocast(device, enabled=False)
            if torch.amp.is_autocast_available(device)
            else nullcontext()
        )
        with plain:
            for first in range(0, num_rows, size):
                rows = slice(first, first + size)
                judged = _judge(logits_CV[rows].float())
                loss_C = judged.log_normaliser_C - _at(judged.logits_CV, target_C[rows])
                columns = (column_C[rows] for column_C in (target_C, *columns_C))
                found.append((loss_C, *(look(judged, *columns) if look else ())))
                if gradient_CV is not None:
                    # The probabilities, less 1 at the true token.
                    minus_C1 = torch.full_like(loss_C, -1.0)[:, None]
                    gradient_CV[rows] = judged.probs_CV.scatter_add_(1, target_C[rows, None], minus_C1)
        ctx.save_for_backward(gradient_CV)
        loss_C, *others = (torch.cat(parts) for parts in zip(*found, strict=True))
        ctx.mark_non_differentiable(*others)
        ctx.set_materialize_grads(False)
        return loss_C, *others

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (gradient_CV,) = ctx.saved_tensors
        nothing = (None,) * (len(ctx.needs_input_grad) - 1)
        if gradients[0] is None:
            return None, *nothing
        return gradient_CV * gradients[0][:, None].to(gradient_CV.dtype), *nothing


def _judge(logits_CV: Tensor) -> Judged:
    probs_CV = logits_CV.softmax(-1)
    best_C = best_tokens(logits_CV)
    # From the most probable token, whose probability never vanishes, without a pass over all logits.
    log_normaliser_C = _at(logits_CV, best_C) - _at(probs_CV, best_C).log()
    return Judged(logits_CV, probs_CV, best_C, log_normaliser_C)


_BLOCK = 256
"""Tokens whose largest logit is found at once."""


def best_tokens(logits_CV: Tensor) -> Tensor:
    """What `argmax` gives, in a fifth of its time on a CPU: unlike `amax` it has no vector instructions."""
    num_blocks = logits_CV.shape[1] // _BLOCK
    if logits_CV.device.type != "cpu" or num_blocks < 2 or torch.compiler.is_compiling():
        return logits_CV.argmax(-1)
    whole = num_blocks * _BLOCK
    top_CN = logits_CV[:, :whole].view(len(logits_CV), num_blocks, _BLOCK).amax(-1)
    # What is left over, fewer than a block, makes the last one together with some tokens of the one before.
    top_CN = torch.cat([top_CN, logits_CV[:, -_BLOCK:].amax(-1, keepdim=True)], dim=1)
    first_C1 = (top_CN.argmax(-1, keepdim=True) * _BLOCK).clamp(max=logits_CV.shape[1] - _BLOCK)
    block_CE = logits_CV.gather(1, first_C1 + torch.arange(_BLOCK))
    return first_C1.squeeze(1) + block_CE.argmax(-1)


def _at(values_CV: Tensor, index_C: Tensor) -> Tensor:
    return values_CV.gather(1, index_C[:, None]).squeeze(1)


class DiscriminatorHead(nn.Module):
    """Hidden states -> one logit for each position: above 0, its token looks replaced.

    On the modern backbone with a norm, as ModernBERT's heads have it.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=not config.is_modern)
        self.norm = norm_of(config, config.hidden_size) if config.is_modern else nn.Identity()
        self.output = GlorotLinear(config.hidden_size, 1)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Logits (B, L)."""
        logits_BL: Tensor = self.output(self.norm(functional.gelu(self.dense(hidden_BLD)))).squeeze(-1)
        return logits_BL


class DiscriminatorHeadWithCls(DiscriminatorHead):
    """The same, of each position's state with that of [CLS] added to it, as DeBERTaV3 has it.

    A verdict then knows the whole text even where attention does not bring it there, and [CLS], which most
    tasks read, learns in pre-training what is unusual about a text.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.context_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Logits (B, L)."""
        return super().forward(self.context_norm(hidden_BLD + hidden_BLD[:, :1]))


DetectionHead = Literal["plain", "with_cls"]
DETECTION_HEADS: dict[DetectionHead, type[DiscriminatorHead]] = {
    "plain": DiscriminatorHead,
    "with_cls": DiscriminatorHeadWithCls,
}


def detection_head_of(names: Iterable[str]) -> DetectionHead:
    """Which head it is that has weights of these names."""
    return "with_cls" if any("context_norm." in name for name in names) else "plain"


HeadLayers = Literal["one", "two"]
"""Of a head that judges whole rows: one linear layer, as in the original, or a dense layer with a gelu before
it, as in the classes of transformers."""


class ClassificationHead(nn.Module):
    """The hidden state of [CLS], or the mean of all -> a logit for each class."""

    def __init__(
        self,
        config: EncoderConfig,
        num_classes: int,
        pooling: Pooling = "cls",
        layers: HeadLayers = "one",
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size) if layers == "two" else None
        self.output = GlorotLinear(config.hidden_size, num_classes)

    def forward(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        """Logits (B, classes)."""
        pooled_BD = self.dropout(pool(hidden_BLD, attention_mask_BL, self.pooling))
        if self.dense is not None:
            pooled_BD = self.dropout(functional.gelu(self.dense(pooled_BD)))
        logits: Tensor = self.output(pooled_BD)
        return logits


class RegressionHead(ClassificationHead):
    """The same with one number in place of classes."""

    def __init__(self, config: EncoderConfig, pooling: Pooling = "cls", layers: HeadLayers = "one") -> None:
        super().__init__(config, 1, pooling, layers)

    def forward(self, hidden_BLD: Tensor, attention_mask_BL: Tensor | None = None) -> Tensor:
        """Predictions (B)."""
        return super().forward(hidden_BLD, attention_mask_BL).squeeze(-1)


class TaggingHead(nn.Module):
    """States at the first piece of each word -> a logit for each tag; as in the original, no dropout."""

    def __init__(self, config: EncoderConfig, num_tags: int) -> None:
        super().__init__()
        self.output = GlorotLinear(config.hidden_size, num_tags)

    def forward(self, hidden_BPD: Tensor) -> Tensor:
        """Logits (B, P, tags)."""
        logits: Tensor = self.output(hidden_BPD)
        return logits


def outside_bias(answer_mask_BL: Tensor) -> Tensor:
    """0 where an answer may lie (the text, and [CLS] for "no answer"), a very low number elsewhere."""
    return (answer_mask_BL == 0) * OUTSIDE


class SpanHead(nn.Module):
    """Hidden states -> start and end logits, independent of each other."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.start = GlorotLinear(config.hidden_size, 1)
        self.end = GlorotLinear(config.hidden_size, 1)

    def forward(self, hidden_BLD: Tensor, answer_mask_BL: Tensor) -> tuple[Tensor, Tensor]:
        """Start logits and end logits (B, L)."""
        outside_BL = outside_bias(answer_mask_BL)
        return self.start(hidden_BLD).squeeze(-1) + outside_BL, self.end(hidden_BLD).squeeze(-1) + outside_BL


class SpanBeam(NamedTuple):
    """The most probable starts and, for each, its most probable ends."""

    start_log_prob_BK: Tensor
    start_index_BK: Tensor
    end_log_prob_BKK: Tensor
    end_index_BKK: Tensor


class JointSpanHead(nn.Module):
    """Hidden states -> start logits, and end logits that depend on the start."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.start = GlorotLinear(config.hidden_size, 1)
        self.end_dense = GlorotLinear(2 * config.hidden_size, SPAN_HIDDEN_SIZE)
        self.end = GlorotLinear(SPAN_HIDDEN_SIZE, 1)

    def forward(self, hidden_BLD: Tensor, answer_mask_BL: Tensor, start_B: Tensor) -> tuple[Tensor, Tensor]:
        """For training: start logits, and the logits (B, L) of ends given the true starts."""
        start_logits_BL = self.start_logits(hidden_BLD, answer_mask_BL)
        end_logits_B1L = self.end_logits(hidden_BLD, answer_mask_BL, start_B[:, None])
        return start_logits_BL, end_logits_B1L.squeeze(1)

    def start_logits(self, hidden_BLD: Tensor, answer_mask_BL: Tensor) -> Tensor:
        """Logits (B, L) of an answer's first token."""
        start_BL: Tensor = self.start(hidden_BLD).squeeze(-1) + outside_bias(answer_mask_BL)
        return start_BL

    def end_logits(self, hidden_BLD: Tensor, answer_mask_BL: Tensor, start_BK: Tensor) -> Tensor:
        """Logits (B, K, L) of an answer's last token, for each of some starts."""
        # The layer sees start and end side by side: both halves of its product are computed once and added,
        # instead of making K copies of all hidden states.
        at_start, at_end = self.end_dense.weight.chunk(2, dim=1)
        start_BKF = functional.linear(gather_positions(hidden_BLD, start_BK), at_start, self.end_dense.bias)
        end_BLF = functional.linear(hidden_BLD, at_end)
        pair_BKLF = functional.gelu(start_BKF[:, :, None] + end_BLF[:, None])
        end_BKL: Tensor = self.end(pair_BKLF).squeeze(-1) + outside_bias(answer_mask_BL)[:, None]
        return end_BKL

    def beam(self, hidden_BLD: Tensor, answer_mask_BL: Tensor, *, beam_size: int = 20) -> SpanBeam:
        """For prediction: the best starts and, for each, the best ends."""
        beam_size = min(beam_size, hidden_BLD.shape[1])
        start_log_prob_BL = self.start_logits(hidden_BLD, answer_mask_BL).float().log_softmax(dim=-1)
        start_log_prob_BK, start_index_BK = start_log_prob_BL.topk(beam_size)
        end_logits_BKL = self.end_logits(hidden_BLD, answer_mask_BL, start_index_BK)
        end_log_prob_BKK, end_index_BKK = end_logits_BKL.float().log_softmax(dim=-1).topk(beam_size)
        return SpanBeam(start_log_prob_BK, start_index_BK, end_log_prob_BKK, end_index_BKK)


class UnanswerableHead(nn.Module):
    """[CLS] and the expected start -> one logit: above 0, the text seems to hold no answer."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = GlorotLinear(2 * config.hidden_size, SPAN_HIDDEN_SIZE)
        self.output = GlorotLinear(SPAN_HIDDEN_SIZE, 1)

    def forward(self, hidden_BLD: Tensor, start_logits_BL: Tensor) -> Tensor:
        """Logits (B)."""
        expected_BD = (start_logits_BL.softmax(dim=-1)[:, None] @ hidden_BLD).squeeze(1)
        pair = torch.cat([hidden_BLD[:, 0], expected_BD], dim=-1)
        logits_B: Tensor = self.output(functional.gelu(self.dense(pair))).squeeze(-1)
        return logits_B
