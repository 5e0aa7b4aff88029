"""Pairs of texts -> a vector for each text; the cosine of two says how near they are in meaning.

Both texts of a pair are encoded by themselves, so that the vectors of a million texts are made once and then
compared. As it comes out of pre-training an encoder is weak at this: it must be trained on pairs.

B rows, two for each of U pairs; L positions, D numbers in a hidden state.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.tasks.families import scores
from electra.tasks.families.family import (
    Family,
    Prediction,
    Score,
    TaskBatch,
    TaskRow,
    TextExample,
    check_finite,
    sequence,
)
from electra.text.tokenizer import Tokenizer

Pooling = Literal["mean", "cls", "max"]

RANKED_AT_A_TIME = 256
"""Texts whose cosines with all others are held in memory."""

ROUNDING = 1e-6
"""Cosines that are nearer to each other than this count as equal."""


class PoolingHead(nn.Module):
    """Hidden states -> a vector of length 1 for each row; special tokens count, padding does not."""

    def __init__(self, pooling: Pooling) -> None:
        super().__init__()
        self.pooling = pooling

    def forward(self, hidden_BLD: Tensor, attention_mask_BL: Tensor) -> Tensor:
        """Vectors (B, D) in float32, whose product is their cosine."""
        padding_BL1 = (attention_mask_BL == 0)[..., None]
        match self.pooling:
            case "mean":
                # Up to a factor, which the length of 1 takes away.
                pooled_BD = hidden_BLD.float().masked_fill(padding_BL1, 0.0).sum(dim=1)
            case "cls":
                pooled_BD = hidden_BLD[:, 0].float()
            case "max":
                pooled_BD = hidden_BLD.float().masked_fill(padding_BL1, -math.inf).amax(dim=1)
        return functional.normalize(pooled_BD, dim=-1)


@dataclass(frozen=True, kw_only=True)
class Similarity(Family[TextExample]):
    """How near two texts are in meaning; the label is a value from 0 to `max_score`."""

    name: ClassVar[str] = "similarity"

    pooling: Pooling = "mean"
    """How hidden states become a vector: their mean, the one of [CLS], or of each number the largest."""
    loss: Literal["sts", "cosent", "contrastive"] = "sts"
    """sts: a cosine shall be its label. cosent: cosines shall be in the order of the labels. contrastive: of
    all second texts in a batch its own shall be nearest to a first one, and the reverse; needs no labels."""
    temperature: float = 0.05
    """Difference of cosines that counts as much: cosent and contrastive."""
    max_score: float = 5.0
    """The label of two texts that mean the same."""

    def __post_init__(self) -> None:
        for key in ("temperature", "max_score"):
            value = getattr(self, key)
            if not 0 < value < math.inf:
                raise InputError(f"{key} is {value}, expected a number above 0")

    def rows(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """Two for each example, which are a unit."""
        texts = [text for example in examples for text in pair_of(example)]
        rows = []
        for number, text_ids in enumerate(tokenizer.encode(texts).split()):
            place = number // 2
            ids, types = sequence(text_ids, text_ids[:0], tokenizer, max_length=max_length)
            targets = self.targets(examples[place])
            rows.append(
                TaskRow(input_ids=ids, token_type_ids=types, example=place, unit=place, targets=targets)
            )
        return rows

    def targets(self, example: TextExample) -> dict[str, float]:
        """The label as a share of the highest; without one, pairs to be contrasted belong together."""
        if example.label is None:
            return {"similarity": 1.0} if self.loss == "contrastive" else {}
        if isinstance(example.label, tuple) or not 0 <= example.label <= self.max_score:
            raise InputError(
                f"{example.where}: the similarity is {example.label}, expected a number from 0 to "
                f"{self.max_score:g}. If the data goes higher, set max_score to its highest value"
            )
        return {"similarity": example.label / self.max_score}

    def head(self, config: EncoderConfig) -> PoolingHead:
        """It has no weights: the encoder itself learns to make the vectors."""
        return PoolingHead(self.pooling)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """The loss of each pair (U)."""
        assert all(a.unit == b.unit for a, b in zip(batch.rows[::2], batch.rows[1::2], strict=True))
        vectors_BD: Tensor = head(hidden_BLD, batch.attention_mask_BL)
        first_UD, second_UD = vectors_BD[::2], vectors_BD[1::2]
        cosine_U = (first_UD * second_UD).sum(dim=-1)
        target_U = batch.target("similarity", dtype=torch.float32)[::2]
        match self.loss:
            case "sts":
                return (cosine_U - target_U).square()
            case "cosent":
                return cosent_loss(cosine_U, target_U, temperature=self.temperature).expand(len(cosine_U))
            case "contrastive":
                # A pair of low label teaches little, and its texts are negatives for the other pairs.
                return target_U * contrastive_losses(
                    first_UD, second_UD, known_UU=known_pairs(batch), temperature=self.temperature
                )

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The vector of each row's text, of length 1."""
        return list(head(hidden_BLD, batch.attention_mask_BL).detach().cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The cosine; after contrastive training the rank, too, of the second text among all second texts."""
        assert [row.example for row in rows] == [number // 2 for number in range(2 * len(examples))]
        if not examples:
            return []
        first_UD, second_UD = np.stack(outputs[::2]), np.stack(outputs[1::2])
        cosine_U = (first_UD * second_UD).sum(axis=-1)
        check_finite(examples, list(cosine_U))
        cosines = cosine_U.tolist()
        if self.loss != "contrastive":
            return [{"similarity": cosine} for cosine in cosines]
        ranked = zip(cosines, ranks(first_UD, second_UD), strict=True)
        return [{"similarity": cosine, "rank": rank} for cosine, rank in ranked]

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Correlations with the labels; after contrastive training the mean reciprocal rank before them."""
        found: dict[str, Score] = {}
        if self.loss == "contrastive":
            shares = [self.targets(example)["similarity"] for example in examples]
            found["mrr"] = mean_reciprocal_rank([prediction["rank"] for prediction in predictions], shares)
        cosines = [prediction["similarity"] for prediction in predictions]
        gold = [example.label for example in examples if isinstance(example.label, int | float)]
        if len(gold) == len(examples):
            return found | {
                "spearman": scores.spearman(gold, cosines),
                "pearson": scores.pearson(gold, cosines),
            }
        unknown = f"{len(examples) - len(gold)} of {len(examples)} pairs have no similarity value"
        return found | dict.fromkeys(("spearman", "pearson"), scores.undefined(unknown))

    def labels(self) -> tuple[str, ...]:
        """None: it is a number that is predicted."""
        return ()


def pair_of(example: TextExample) -> tuple[str, str]:
    """Both texts, or an error that says where one is missing."""
    if example.text_pair is None:
        raise InputError(f"{example.where}: one text only, expected a pair to compare")
    return example.text, example.text_pair


def known_pairs(batch: TaskBatch) -> Tensor:
    """Where a first and a second text (U, U) are no negatives: they are equal, or one is in both pairs."""
    numbers: dict[bytes, int] = {}
    texts = [numbers.setdefault(row.input_ids.tobytes(), len(numbers)) for row in batch.rows]
    first_U, second_U = torch.tensor(texts, device=batch.input_ids_BL.device).view(-1, 2).unbind(dim=1)
    pairs = ((first_U, first_U), (second_U, second_U), (first_U, second_U))
    equal_3UU = torch.stack([left[:, None] == right[None, :] for left, right in pairs])
    return equal_3UU.any(dim=0)


def contrastive_losses(
    first_UD: Tensor, second_UD: Tensor, *, known_UU: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of finding each pair (U) by its first text among all second ones, and the reverse."""
    # Autocast would round the cosines to three digits.
    with torch.autocast(first_UD.device.type, enabled=False):
        logits_UU = first_UD @ second_UD.T / temperature
    own_UU = torch.eye(len(logits_UU), dtype=torch.bool, device=logits_UU.device)
    logits_UU = logits_UU.masked_fill(known_UU & ~own_UU, -math.inf)
    target_U = torch.arange(len(logits_UU), device=logits_UU.device)
    forth_U = functional.cross_entropy(logits_UU, target_U, reduction="none")
    back_U = functional.cross_entropy(logits_UU.T, target_U, reduction="none")
    return (forth_U + back_U) / 2


def cosent_loss(cosine_U: Tensor, target_U: Tensor, *, temperature: float) -> Tensor:
    """log(1 + Σ exp((cosine_i - cosine_j) / temperature)) over all i that should be less similar than j."""
    difference_UU = (cosine_U[:, None] - cosine_U[None, :]) / temperature
    less_UU = target_U[:, None] < target_U[None, :]
    return torch.logsumexp(torch.cat([difference_UU.new_zeros(1), difference_UU[less_UU]]), dim=0)


def ranks(first_UD: NDArray[np.float32], second_UD: NDArray[np.float32]) -> list[int]:
    """1 + the number of second texts that are nearer to a first text than its own is."""
    found: list[int] = []
    for start in range(0, len(first_UD), RANKED_AT_A_TIME):
        cosine_CU = first_UD[start : start + RANKED_AT_A_TIME] @ second_UD.T
        own_C = np.diagonal(cosine_CU, offset=start)
        found.extend((1 + (cosine_CU > own_C[:, None] + ROUNDING).sum(axis=1)).tolist())
    return found


def mean_reciprocal_rank(ranks: Sequence[int], shares: Sequence[float]) -> Score:
    """Pairs count as far as they belong together: that a bad pair is not found is no fault."""
    if not any(shares):
        return scores.undefined("no pair belongs together")
    return Score(float(np.average(1 / np.array(ranks), weights=shares)))
