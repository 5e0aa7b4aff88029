"""Batches of rows -> tensors, with some tokens masked, and all that is random in a step.

Masking is a pure function of rows and noise. Noise is drawn for the *global* batch at the fixed
`seq_length`, and a process takes its own rows of it, so that a row is masked and corrupted in the same way
however many processes and micro-batches share the batch and however far it is padded:

    noise_BLK = masker.draw_noise(batch_size, generator=torch_generator(seed, "mask", step))
    masked = masker(input_ids_BL, lengths_B, noise_BLK[first:last])

`StepRandom` does this for (seed, step, rows). Dropout is drawn for a micro-batch as a whole and belongs to
its first row: the same micro-batches give the same masks, whichever process works on them. Nothing is carried
from step to step, so a resumed run repeats a step exactly.

B rows, L tokens with padding, N tokens without, V vocabulary, K noise streams; of all rows together, P chosen
positions, U of them different, M that could be chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.dropout import seed_dropout
from electra.pretraining.ngrams import NgramIndex
from electra.seeds import derive, torch_generator
from electra.text.batches import Batch


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Rows as they were stored: made on the host, then moved to the device of the model.

    What has to be looked for in the data is found on the host, since a GPU would have to stop for it.
    """

    input_ids_BL: Tensor
    token_type_ids_BL: Tensor
    lengths_B: Tensor
    """Tokens of each row, without padding."""
    attention_mask_BL: Tensor | None
    """1 for tokens and 0 for padding; None where nothing is padded, which is faster."""
    text_N: Tensor
    """The positions of tokens in `input_ids_BL.flatten()`, row by row."""

    @classmethod
    def of(cls, input_ids_BL: Tensor, token_type_ids_BL: Tensor, lengths_B: Tensor) -> Self:
        """Rows on the host, of which the first `lengths_B` positions are no padding."""
        is_token_BL = torch.arange(input_ids_BL.shape[1]) < lengths_B[:, None]
        return cls(
            input_ids_BL=input_ids_BL,
            token_type_ids_BL=token_type_ids_BL,
            lengths_B=lengths_B,
            attention_mask_BL=None if is_token_BL.all() else is_token_BL.long(),
            text_N=is_token_BL.flatten().nonzero().squeeze(1),
        )

    @classmethod
    def from_batch(cls, batch: Batch) -> Self:
        """The rows of a batch, on the host."""
        return cls.of(
            torch.from_numpy(batch.input_ids_BL),
            torch.from_numpy(batch.token_type_ids_BL),
            torch.from_numpy(batch.lengths_B),
        )

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return type(self)(**copied(vars(self), device))

    @property
    def token_mask(self) -> Tensor:
        """Where there is no padding."""
        if self.attention_mask_BL is None:
            return torch.ones_like(self.input_ids_BL, dtype=torch.bool)
        return self.attention_mask_BL.bool()

    @property
    def context(self) -> dict[str, Tensor | None]:
        """What an encoder takes beside token ids: the same for original, masked and corrupted rows."""
        return {
            "token_type_ids_BL": self.token_type_ids_BL,
            "attention_mask_BL": self.attention_mask_BL,
            "text_T": self.text_N,
        }


def copied(tensors: Mapping[str, Tensor | None], device: torch.device | str) -> dict[str, Any]:
    """Tensors of the host on a device."""
    return {name: None if tensor is None else copy_to(tensor, device) for name, tensor in tensors.items()}


def copy_to(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor of the host on a device."""
    if torch.device(device).type != "cuda":
        return tensor.to(device)
    # From memory that stays in its place a copy is made while host and GPU go on.
    return tensor.pin_memory().to(device, non_blocking=True)


def pick(values_BLX: Tensor, positions_N: Tensor) -> Tensor:
    """The values at positions of the flattened rows: (N, X).

    By number, not by a mask: how many a mask has only a look at the data tells.
    """
    return values_BLX.flatten(0, 1).index_select(0, positions_N)


@dataclass(frozen=True, kw_only=True)
class TokenFacts:
    """What objectives must know about a vocabulary."""

    vocab_size: int
    mask_id: int
    special_ids: Sequence[int]
    """[CLS] [SEP] [MASK] [PAD]: never masked, never scored."""
    sep_id: int | None = None
    """[SEP], if something has to be ended by it."""
    continues_word_V: Tensor | None = None
    """Which tokens continue a word, like ##s; None where the vocabulary does not tell."""
    counts_V: Tensor | None = None
    """How often each token occurs in the corpus, for the unigram generator."""
    ngrams: NgramIndex | None = None
    """Which tokens stand between which neighbours in the corpus, for the ngram generator."""

    @property
    def special_mask(self) -> Tensor:
        """The special ids as a mask over the vocabulary."""
        mask_V = torch.zeros(self.vocab_size, dtype=torch.bool)
        mask_V[list(self.special_ids)] = True
        return mask_V


# What the K uniform numbers of a token decide.
_PRIORITY, _ACTION, _RANDOM_ID, _SPAN_LENGTH, _SAMPLE = range(5)
_NUM_STREAMS = 5


@dataclass(frozen=True, kw_only=True)
class MaskingConfig:
    """Which tokens are selected for masking, and what the generator sees in their place."""

    mask_prob: float = 0.15
    """Fraction of a row's tokens that is selected."""
    mask_token_prob: float = 0.85
    """Fraction of the selected tokens that become [MASK]."""
    random_token_prob: float = 0.0
    """Fraction of the selected tokens that become a random token of the vocabulary; the rest stay as they
    are."""
    strategy: Literal["token", "whole_word", "span"] = "token"
    """Unit of selection: a token, a word, or a span of several words."""
    replacement: Literal["without", "as_google"] = "without"
    """Select without replacement; or with it, like the original's code, which may select a token twice: that
    lowers the fraction and corrupts the token."""
    max_span_words: int = 3
    """Longest span, in words."""
    span_lengths: Literal["inverse", "geometric"] = "inverse"
    """Whether a span of n words has a probability proportional to 1/n, or to (1 - span_stop_prob)^n."""
    span_stop_prob: float = 0.2
    """Probability that a geometric span ends after a word."""

    def __post_init__(self) -> None:
        if not 0 < self.mask_prob < 1:
            raise InputError(f"mask_prob is {self.mask_prob}, expected above 0 and below 1 (such as 0.15)")
        for key in ("mask_token_prob", "random_token_prob"):
            if not 0 <= getattr(self, key) <= 1:
                raise InputError(f"{key} is {getattr(self, key)}, expected a fraction of the chosen, 0 to 1")
        if self.mask_token_prob + self.random_token_prob > 1 + 1e-9:
            raise InputError(
                f"mask_token_prob {self.mask_token_prob} and random_token_prob {self.random_token_prob} "
                "are more than 1 together: lower one of them"
            )
        if self.strategy != "token" and self.replacement == "as_google":
            raise InputError(
                f"strategy {self.strategy} chooses without replacement only: set replacement to without"
            )
        if self.max_span_words < 1:
            raise InputError(f"max_span_words is {self.max_span_words}, expected at least 1")
        if not 0 < self.span_stop_prob < 1:
            raise InputError(f"span_stop_prob is {self.span_stop_prob}, expected above 0 and below 1")

    def span_weights(self) -> list[float]:
        """How probable spans of one word, of two, ... are, in proportion to each other."""
        words = range(1, self.max_span_words + 1)
        if self.span_lengths == "inverse":
            return [1 / number for number in words]
        return [(1 - self.span_stop_prob) ** number for number in words]

    @property
    def mean_span_words(self) -> float:
        """How many words are masked as one, in the mean."""
        weights = self.span_weights() if self.strategy == "span" else [1.0]
        return sum(number * weight for number, weight in enumerate(weights, start=1)) / sum(weights)

    def max_predictions(self, seq_length: int) -> int:
        """The most tokens that may be chosen in a row, as in the original."""
        return int((self.mask_prob + 0.005) * seq_length)


@dataclass(frozen=True, kw_only=True)
class Masked:
    """Rows as the generator sees them. Positions are row-major in the padded batch: row · L + column."""

    masked_ids_BL: Tensor
    """The rows with the chosen tokens masked, replaced or kept."""
    positions_P: Tensor
    """Chosen positions in `ids_BL.flatten()`, row by row; as_google may name one twice."""
    original_P: Tensor
    """The tokens that stood there."""
    uniform_P: Tensor
    """A uniform number for each, for `sampling.sample`: samples do not depend on the slicing either."""
    chosen_U: Tensor
    """The chosen positions in order, each once."""
    ordinary_M: Tensor
    """The positions that could have been chosen: neither padding nor a special token."""

    def to(self, device: torch.device | str) -> Self:
        """The same on a device."""
        return type(self)(**copied(vars(self), device))


@dataclass(frozen=True, kw_only=True)
class Proposed(Masked):
    """Rows for which a generator of the host has made its proposals already."""

    sampled_P: Tensor
    """The tokens it proposes for the chosen positions."""


class Masker:
    """Masks rows of one vocabulary, on the host: how many tokens are chosen only a look at the data tells.

    Tokens meet a row's count exactly. Words and spans, which stay whole, never exceed it, and fall short only
    where no further one fits.
    """

    def __init__(
        self,
        config: MaskingConfig,
        *,
        seq_length: int,
        vocab_size: int,
        mask_id: int,
        never_chosen: Sequence[int],
        continues_word_V: Tensor | None = None,
    ) -> None:
        """`never_chosen`: the ids of [CLS] [SEP] [MASK] [PAD]; `continues_word_V` marks pieces like ##s."""
        assert mask_id in never_chosen, "[MASK] itself is never masked"
        if config.strategy != "token" and continues_word_V is None:
            raise InputError(
                f"strategy {config.strategy} needs to know words: this tokenizer marks none, use token"
            )
        self.config = config
        self.seq_length = seq_length
        self.vocab_size = vocab_size
        self.mask_id = mask_id
        self._never_chosen_V = torch.zeros(vocab_size, dtype=torch.bool)
        self._never_chosen_V[list(never_chosen)] = True
        self._continues_word_V = continues_word_V

    def draw_noise(self, num_rows: int, *, generator: torch.Generator) -> Tensor:
        """All that is random about masking `num_rows` rows and sampling for them: noise_BLK."""
        # Double precision: with 24 bits the samples drawn from a large vocabulary would be visibly grained.
        shape = (num_rows, self.seq_length, _NUM_STREAMS)
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    @torch.no_grad()
    def __call__(self, input_ids_BL: Tensor, lengths_B: Tensor, noise_BLK: Tensor) -> Masked:
        """Choose tokens of each row and mask them; `lengths_B` counts a row's tokens without padding."""
        assert (lengths_B <= self.seq_length).all(), (
            f"rows of {lengths_B.max()} tokens, not {self.seq_length}"
        )
        # A batch can be padded beyond the row length, to a width that suits the hardware.
        ids_BL = input_ids_BL[:, : self.seq_length]
        noise_BLK = noise_BLK[:, : ids_BL.shape[1]]
        assert noise_BLK.shape[:2] == ids_BL.shape, f"noise {noise_BLK.shape} for rows {ids_BL.shape}"
        candidate_BL = ~self._never_chosen_V[ids_BL] & _before(lengths_B, ids_BL.shape[1])
        count_B = self._count(candidate_BL, lengths_B)
        if self.config.replacement == "as_google":
            rows_P, columns_P, draws_P = _choose_with_replacement(candidate_BL, count_B, noise_BLK)
        else:
            sizes_BL, unit_BL = self._units(ids_BL, candidate_BL, noise_BLK)
            chosen_BL = (
                _choose(sizes_BL, count_B, noise_BLK[..., _PRIORITY]).gather(1, unit_BL) & candidate_BL
            )
            rows_P, columns_P = chosen_BL.nonzero(as_tuple=True)
            draws_P = columns_P
        noise_PK = noise_BLK[rows_P, draws_P]
        original_P = ids_BL[rows_P, columns_P]
        width = input_ids_BL.shape[1]
        positions_P = rows_P * width + columns_P
        rows_M, columns_M = candidate_BL.nonzero(as_tuple=True)
        return Masked(
            masked_ids_BL=self._replace(input_ids_BL, positions_P, noise_PK),
            positions_P=positions_P,
            original_P=original_P,
            uniform_P=noise_PK[:, _SAMPLE],
            chosen_U=torch.unique(positions_P) if self.config.replacement == "as_google" else positions_P,
            ordinary_M=rows_M * width + columns_M,
        )

    def others(
        self, masked: Masked, noise_BLK: Tensor, *, share: float, among: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Choose a share of the positions that are not masked -> positions, a uniform number for each.

        `among`: the only positions to choose from, if not all.
        """
        width = masked.masked_ids_BL.shape[1]
        # At positions that stay unmasked nothing else depends on these numbers.
        noise_MK = noise_BLK[masked.ordinary_M // width, masked.ordinary_M % width]
        is_other_M = ~torch.isin(masked.ordinary_M, masked.chosen_U)
        if among is not None:
            is_other_M &= torch.isin(masked.ordinary_M, among)
        chosen_M = is_other_M & (noise_MK[:, _ACTION] < share)
        return masked.ordinary_M[chosen_M], noise_MK[chosen_M, _SAMPLE]

    def _count(self, candidate_BL: Tensor, lengths_B: Tensor) -> Tensor:
        """How many tokens to choose in each row: the original's rule, and none without any candidate."""
        # Single precision and half to even, as in the original: 50 tokens · 0.15 must come out the same.
        wanted_B = (lengths_B.float() * self.config.mask_prob).round().long()
        count_B = wanted_B.clamp(max=self.config.max_predictions(self.seq_length)).clamp(min=1)
        return count_B * candidate_BL.any(1)

    def _units(self, ids_BL: Tensor, candidate_BL: Tensor, noise_BLK: Tensor) -> tuple[Tensor, Tensor]:
        """Cut rows into what is chosen as one -> sizes at first tokens (else 0), each token's first token."""
        columns_BL = torch.arange(ids_BL.shape[1]).expand_as(ids_BL)
        if self._continues_word_V is None or self.config.strategy == "token":
            return candidate_BL.long(), columns_BL
        # What is never chosen begins a unit, so that none goes on across it; in itself it counts nothing.
        start_BL = ~(self._continues_word_V[ids_BL] & candidate_BL)
        if self.config.strategy == "span":
            word_BL = start_BL.cumsum(1).clamp(min=1) - 1
            begins_span_BL = self._span_starts(noise_BLK[..., _SPAN_LENGTH]).gather(1, word_BL)
            start_BL &= begins_span_BL | ~candidate_BL
        unit_BL = (columns_BL * start_BL).cummax(1).values
        return torch.zeros_like(ids_BL).scatter_add_(1, unit_BL, candidate_BL.long()), unit_BL

    def _span_starts(self, uniform_BL: Tensor) -> Tensor:
        """Which words begin a span, when spans of random length follow each other."""
        weights = torch.tensor(self.config.span_weights(), dtype=uniform_BL.dtype)
        cumulative = weights.cumsum(0) / weights.sum()
        lengths_BL = 1 + torch.searchsorted(cumulative[:-1], uniform_BL.contiguous(), right=True)
        next_start_BL = lengths_BL.cumsum(1)
        width = uniform_BL.shape[1]
        starts = torch.zeros(len(uniform_BL), width + 1, dtype=torch.bool)
        starts.scatter_(1, next_start_BL.clamp(max=width), True)
        starts[:, 0] = True
        return starts[:, :width]

    def _replace(self, input_ids_BL: Tensor, positions_P: Tensor, noise_PK: Tensor) -> Tensor:
        """What the generator sees: [MASK], a random token, or the token itself."""
        flat = input_ids_BL.flatten().clone()
        action_P = noise_PK[:, _ACTION]
        masked_P = action_P < self.config.mask_token_prob
        random_P = ~masked_P & (action_P < self.config.mask_token_prob + self.config.random_token_prob)
        random_ids_P = (noise_PK[:, _RANDOM_ID] * self.vocab_size).long()
        flat[positions_P[random_P]] = random_ids_P[random_P]
        flat[positions_P[masked_P]] = self.mask_id
        return flat.view_as(input_ids_BL)


def _before(lengths_B: Tensor, width: int) -> Tensor:
    """Which of `width` columns come before each row's end."""
    return torch.arange(width) < lengths_B[:, None]


def _choose(sizes_BL: Tensor, count_B: Tensor, priority_BL: Tensor) -> Tensor:
    """Take units in random order, each that still fits into its row's count -> first tokens of those taken.

    The rule of BERT's whole-word masking, without its loop over words: a pass takes all units up to the first
    that does not fit. What is left of the count only shrinks, so one that did not fit once never will.
    """
    order_BL = priority_BL.argsort(dim=1, stable=True)
    sizes_BL = sizes_BL.gather(1, order_BL)
    taken_BL = torch.zeros_like(sizes_BL, dtype=torch.bool)
    left_B1 = count_B[:, None]
    while (fits_BL := (sizes_BL > 0) & ~taken_BL & (sizes_BL <= left_B1)).any():
        fitting_BL = sizes_BL * fits_BL
        now_BL = fits_BL & (fitting_BL.cumsum(1) <= left_B1)
        taken_BL |= now_BL
        left_B1 = left_B1 - (fitting_BL * now_BL).sum(1, keepdim=True)
    return torch.zeros_like(taken_BL).scatter_(1, order_BL, taken_BL)


def _choose_with_replacement(
    candidate_BL: Tensor, count_B: Tensor, noise_BLK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As in the original: any draw can be any of the row's candidates -> rows, columns, numbers of draws."""
    candidates_first_BL = (~candidate_BL).long().argsort(dim=1, stable=True)
    number_BL = (noise_BLK[..., _PRIORITY] * candidate_BL.sum(1, keepdim=True)).long()
    rows_P, draws_P = _before(count_B, candidate_BL.shape[1]).nonzero(as_tuple=True)
    return rows_P, candidates_first_BL[rows_P, number_BL[rows_P, draws_P]], draws_P


@dataclass(frozen=True, kw_only=True)
class StepRandom:
    """The randomness of the rows from `first_row` on, in the global batch of a step."""

    seed: int
    step: int
    num_rows: int
    """Rows in the global batch."""
    first_row: int = 0
    """Number, in the global batch, of the first row that is worked on."""
    purpose: str = "train"
    """Streams of other purposes are independent: held-out rows are masked alike in each evaluation."""

    def noise(self, masker: Masker, num_rows: int) -> Tensor:
        """The numbers that mask and corrupt the next `num_rows` rows: noise_BLK, on the CPU."""
        last_row = self.first_row + num_rows
        assert last_row <= self.num_rows, f"rows {self.first_row} to {last_row} of {self.num_rows}"
        noise_BLK = _global_noise(masker, self.num_rows, self.seed, self.purpose, self.step)
        return noise_BLK[self.first_row : last_row]

    def uniform(self, name: str, num_rows: int, *shape: int) -> Tensor:
        """More numbers for the next `num_rows` rows, of a shape each, in double precision."""
        generator = torch_generator(self.seed, self.purpose, name, self.step)
        drawn = torch.rand((self.num_rows, *shape), generator=generator, dtype=torch.float64)
        return drawn[self.first_row : self.first_row + num_rows]

    def seed_dropout(self) -> None:
        """Decide the dropout masks of the encoders."""
        # Torch takes signed 64-bit seeds only.
        seed_dropout(derive(self.seed, self.purpose, "dropout", self.step, self.first_row) >> 1)


# The micro-batches of a step all take their slices of the same numbers, and at times of those before.
@lru_cache(maxsize=2)
def _global_noise(masker: Masker, num_rows: int, seed: int, purpose: str, step: int) -> Tensor:
    # From the CPU's generator on any device: the same run on other hardware masks the same tokens.
    return masker.draw_noise(num_rows, generator=torch_generator(seed, purpose, "mask", step))
