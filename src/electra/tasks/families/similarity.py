"""Pairs of texts -> a vector for each text; the cosine of two says how near they are in meaning.

Both texts of a pair are encoded by themselves, so that the vectors of a million texts are made once and then
compared. As it comes out of pre-training an encoder is weak at this: it must be trained on pairs. A pair may
have a third text that is known not to belong to it, a hard negative.

In transformers layout the folder of a model is one of sentence-transformers, too. The files are those of the
models published since its version 2; later versions write other names, and read these without a word.

B rows, two or three for each of U pairs; N negatives, C = U + N texts to choose from; L positions, D numbers
in a hidden state.
"""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra import files
from electra.errors import InputError
from electra.model.heads import Pooling, pool
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import Cells, Classes, OwnTaskConfig
from electra.tasks.families import scores
from electra.tasks.families.classification import Regression, ValueReader, texts_of
from electra.tasks.families.family import (
    Ability,
    Card,
    Family,
    Learned,
    Mistake,
    Prediction,
    Predictor,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TextExample,
    check_finite,
    sequence,
    value_notes,
)
from electra.tasks.task import TRAIN, content_key
from electra.text.spans import check_pairs
from electra.text.tokenizer import Tokenizer

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
        pooled_BD = pool(hidden_BLD.float(), attention_mask_BL, self.pooling)
        return functional.normalize(pooled_BD, dim=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContrastedExample(TextExample):
    """A pair, and what does not belong to it although one might think so."""

    negative: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ValuedExample(TextExample):
    """A pair to score vectors with, whose value may be on any scale; nothing is learned from it.

    Many of a set may mean the same, so that the texts of a pair need not find each other.
    """


class SimilarityReader(ValueReader):
    """Two texts, and how near they are in meaning: not below 0."""

    @property
    def needs_labels(self) -> bool:
        """Pairs that belong together are enough to contrast them with others."""
        return self.config.similarity_loss != "contrastive"

    def label(self, cells: Cells, classes: Classes) -> float:
        """The similarity."""
        value, highest = super().label(cells, classes), self.config.max_score
        if value < 0 or (highest is not None and value > highest):
            expected = "0 or more" if highest is None else f"0 to {highest:g} (max_score)"
            raise InputError(f"{cells.where}: {self.label_column!r} is {value:g}, expected {expected}")
        return value

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> TextExample:
        """The pair; with its negative, if there is a column of them and it is not empty in this row."""
        pair, column = super().example(cells, id, classes=classes), self.config.negative
        if column is None:
            return pair
        if self.config.similarity_loss != "contrastive":
            raise InputError(
                f"{cells.where}: negative names the column {column!r}, from which only similarity_loss "
                "contrastive learns"
            )
        cells.value(column)
        values = {field.name: getattr(pair, field.name) for field in dataclasses.fields(pair)}
        return ContrastedExample(**values, negative=None if cells.is_missing(column) else cells.text(column))

    def content(self, example: TextExample) -> str:
        """The pair, whichever text is first."""
        return content_key(*sorted((example.text, example.text_pair or "")))


class SimilarityRequest(TypedDict):
    """Pairs of texts to compare."""

    texts: Annotated[list[str], "The first text of each pair."]
    pairs: Annotated[list[str], "The second text of each pair."]


class Compared(TypedDict):
    """How near two texts are in meaning."""

    similarity: Annotated[float, "The cosine of their vectors."]


COMPARE = Ability(
    name="similarity",
    purpose="similarity; embed gives vectors of any encoder",
    request=SimilarityRequest,
    answer=Compared,
    example={"texts": ["a small city"], "pairs": ["a little town"]},
)


@dataclass(frozen=True, kw_only=True)
class Similarity(Family[TextExample]):
    """How near two texts are in meaning; the label is a value from 0 to `max_score`."""

    name: ClassVar[str] = "similarity"
    kind: ClassVar[str] = "similarity"
    reader = SimilarityReader
    ability: ClassVar[Ability | None] = COMPARE
    card: ClassVar[Card] = Card(
        what="An ELECTRA that turns texts into vectors, which are near where texts mean the same.",
        hub_task="sentence-similarity",
        use='model.similarity(["The chef ate the meal."], ["A cook had dinner."])',
        gives_vectors=True,
    )

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

    def labels(self) -> tuple[str, ...]:
        """None: it is a number that is predicted."""
        return ()

    def settings(self) -> dict[str, Any]:
        """All fields."""
        return dataclasses.asdict(self)

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """With the highest label of all examples, unless it is told."""
        known = [example.label for examples in splits.values() for example in examples]
        values = [label for label in known if label is not None]
        highest = config.max_score or max(values, default=1.0)
        if highest == 0:
            raise InputError(
                f"{splits[TRAIN][0].where}: 0, as in every line: expected pairs that are similar too"
            )
        family = cls(pooling=config.pooling, loss=config.similarity_loss, max_score=highest)
        main_score = "mrr" if family.loss == "contrastive" else "spearman"
        return Learned(family, main_score, splits, value_notes(values))

    def can_judge(self, other: Family[Any]) -> bool:
        """Also pairs whose similarity is to be predicted as a number, as in STS-B."""
        return isinstance(other, Regression) or super().can_judge(other)

    def input_columns(self, examples: Sequence[TextExample]) -> dict[str, Any]:
        """Always a second text."""
        return {"text_pair": "text_pair"}

    def rows(
        self, examples: Sequence[TextExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """Two for each example, or three with a negative, which are a unit."""
        contrasted = [contrasted_texts(example) for example in examples]
        places = [place for place, texts in enumerate(contrasted) for _ in texts]
        encoded = tokenizer.encode([text for texts in contrasted for text in texts]).split()
        rows = []
        for place, text_ids in zip(places, encoded, strict=True):
            ids, types = sequence(text_ids, text_ids[:0], tokenizer, max_length=max_length)
            targets = self.targets(examples[place])
            rows.append(
                TaskRow(
                    input_ids=ids,
                    token_type_ids=types,
                    example=place,
                    unit=place,
                    targets=targets,
                    # Some of its tokens may be hidden in training, which makes no other text of it.
                    origin=ids.tobytes(),
                )
            )
        return rows

    def targets(self, example: TextExample) -> dict[str, float]:
        """The label as a share of the highest; without one, pairs to be contrasted belong together."""
        if isinstance(example, ValuedExample):
            return {}
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
        vectors_BD: Tensor = head(hidden_BLD, batch.attention_mask_BL)
        first, second, negative = parts_of(batch.rows)
        first_UD, second_UD = vectors_BD[first], vectors_BD[second]
        cosine_U = (first_UD * second_UD).sum(dim=-1)
        target_U = batch.target("similarity", dtype=torch.float32)[first]
        match self.loss:
            case "sts":
                return (cosine_U - target_U).square()
            case "cosent":
                return cosent_loss(cosine_U, target_U, temperature=self.temperature).expand(len(cosine_U))
            case "contrastive":
                # A pair of low label teaches little, and its texts are negatives for the other pairs.
                choices_CD = torch.cat([second_UD, vectors_BD[negative]])
                return target_U * contrastive_losses(
                    first_UD, choices_CD, known_UC=known_pairs(batch), temperature=self.temperature
                )

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The vector of each row's text, of length 1."""
        return list(head(hidden_BLD, batch.attention_mask_BL).detach().cpu().numpy())

    def predictions(
        self, examples: Sequence[TextExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The cosine; after contrastive training the rank, too, of the second text among all of those.

        Negatives are among them.
        """
        first, second, negative = parts_of(rows)
        for part in (first, second):
            assert [rows[place].example for place in part] == list(range(len(examples)))
        if not examples:
            return []
        vectors_BD = np.stack(outputs)
        first_UD, second_UD = vectors_BD[first], vectors_BD[second]
        cosine_U = (first_UD * second_UD).sum(axis=-1)
        check_finite(examples, list(cosine_U))
        cosines = cosine_U.tolist()
        if self.loss != "contrastive":
            return [{"similarity": cosine} for cosine in cosines]
        ranked = zip(cosines, ranks(first_UD, vectors_BD[[*second, *negative]]), strict=True)
        return [{"similarity": cosine, "rank": rank} for cosine, rank in ranked]

    def scores(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Correlations with the labels; after contrastive training, before them, how second texts are found:

        mrr is the mean reciprocal rank, accuracy the share of those that are the nearest of all.
        """
        found: dict[str, Score] = {}
        gold = [example.label for example in examples if isinstance(example.label, int | float)]
        is_valued = bool(examples) and all(isinstance(example, ValuedExample) for example in examples)
        if self.loss == "contrastive" and not is_valued:
            shares = [self.targets(example)["similarity"] for example in examples]
            rank_U = np.array([prediction["rank"] for prediction in predictions])
            found["mrr"] = mean_by_share(1 / rank_U, shares)
            found["accuracy"] = mean_by_share(rank_U == 1, shares)
            if not gold:
                return found
        cosines = [prediction["similarity"] for prediction in predictions]
        if len(gold) == len(examples):
            return found | {
                "spearman": scores.spearman(gold, cosines),
                "pearson": scores.pearson(gold, cosines),
            }
        unknown = f"{len(examples) - len(gold)} of {len(examples)} pairs have no similarity value"
        return found | dict.fromkeys(("spearman", "pearson"), scores.undefined(unknown))

    @property
    def needs_whole_batch(self) -> bool:
        """Unless a cosine is compared with its label alone."""
        return self.loss != "sts"

    @property
    def ensemble_obstacle(self) -> str | None:
        """Ranks cannot be averaged."""
        return "ranks among all texts have no mean" if self.loss == "contrastive" else None

    def averaged(
        self,
        examples: Sequence[TextExample],
        rows: Sequence[TaskRow],
        outputs_by_model: Sequence[Sequence[Any]],
    ) -> list[Prediction]:
        """The mean cosine: the vectors of different models have nothing in common."""
        by_model = [self.predictions(examples, rows, outputs) for outputs in outputs_by_model]
        return [
            {"similarity": float(np.mean([prediction["similarity"] for prediction in said]))}
            for said in zip(*by_model, strict=True)
        ]

    def mistakes(self, example: TextExample, prediction: Prediction) -> Iterator[Mistake]:
        """All pairs: labels and cosines are on different scales, so it cannot be told which is worst."""
        if isinstance(example.label, int | float):
            said = {"gold": f"{example.label:g}", "predicted": f"{prediction['similarity']:.3f} (cosine)"}
            yield Mistake(0.0, {**texts_of(example), **said})

    def table_row(self, example: TextExample, prediction: Prediction) -> dict[str, str]:
        """Both texts and their cosine."""
        return {**texts_of(example), "similarity": f"{prediction['similarity']:.6g}"}

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Compared]:
        """The cosine of each pair; 0 if one of its texts is empty."""
        texts, pairs = check_pairs(fields["texts"], fields["pairs"], names=("texts", "pairs"))
        cosines = (predictor.embed(texts) * predictor.embed(pairs)).sum(axis=1)
        return [Compared(similarity=cosine) for cosine in cosines.tolist()]

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """There is no head to express."""
        return "vectors are made by sentence-transformers, of the encoder alone"

    def write_beside(self, folder: Path, *, max_length: int) -> None:
        """Make it a folder of sentence-transformers."""
        add_sentence_transformer(folder, pooling=self.pooling, max_length=max_length)

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """The vectors, named as in sentence-transformers."""
        return {"sentence_embedding": head(hidden_BLD, attention_mask_BL)}


def pair_of(example: TextExample) -> tuple[str, str]:
    """Both texts, or an error that says where one is missing."""
    if example.text_pair is None:
        raise InputError(f"{example.where}: one text only, expected a pair to compare")
    return example.text, example.text_pair


def contrasted_texts(example: TextExample) -> list[str]:
    """The pair and, if it has one, its negative."""
    negative = getattr(example, "negative", None)
    return [*pair_of(example), *([] if negative is None else [negative])]


class Parts(NamedTuple):
    """Places, among some rows, of the first texts, of the second ones and of the negatives."""

    first: list[int]
    second: list[int]
    negative: list[int]


def parts_of(rows: Sequence[TaskRow]) -> Parts:
    """What each row is, by its place in its unit."""
    parts, number = Parts([], [], []), 0
    for place, row in enumerate(rows):
        number = number + 1 if place and rows[place - 1].unit == row.unit else 0
        parts[number].append(place)
    assert len(parts.first) == len(parts.second), "a text without the other one of its pair"
    return parts


def known_pairs(batch: TaskBatch) -> Tensor:
    """Where a first text and a choice (U, C) are no negatives: they are equal, or one is in both pairs."""
    numbers: dict[bytes, int] = {}
    texts = [numbers.setdefault(row.origin, len(numbers)) for row in batch.rows]
    text_B = torch.tensor(texts, device=batch.input_ids_BL.device)
    first, second, negative = parts_of(batch.rows)
    first_U, second_U, choices_C = text_B[first], text_B[second], text_B[[*second, *negative]]
    known_UC = (first_U[:, None] == choices_C) | (second_U[:, None] == choices_C)
    known_UC[:, : len(first)] |= first_U[:, None] == first_U
    return known_UC


def contrastive_losses(
    first_UD: Tensor, choices_CD: Tensor, *, known_UC: Tensor, temperature: float
) -> Tensor:
    """Cross-entropy of finding the second text of each pair (U) among all choices, and the reverse.

    The first choices are the second texts. The reverse finds the first text among all first ones.
    """
    # Autocast would round the cosines to three digits.
    with torch.autocast(first_UD.device.type, enabled=False):
        logits_UC = first_UD @ choices_CD.T / temperature
    own_UC = torch.eye(*logits_UC.shape, dtype=torch.bool, device=logits_UC.device)
    logits_UC = logits_UC.masked_fill(known_UC & ~own_UC, -math.inf)
    target_U = torch.arange(len(logits_UC), device=logits_UC.device)
    forth_U = functional.cross_entropy(logits_UC, target_U, reduction="none")
    back_U = functional.cross_entropy(logits_UC[:, : len(first_UD)].T, target_U, reduction="none")
    return (forth_U + back_U) / 2


def cosent_loss(cosine_U: Tensor, target_U: Tensor, *, temperature: float) -> Tensor:
    """log(1 + Σ exp((cosine_i - cosine_j) / temperature)) over all i that should be less similar than j."""
    difference_UU = (cosine_U[:, None] - cosine_U[None, :]) / temperature
    less_UU = target_U[:, None] < target_U[None, :]
    return torch.logsumexp(torch.cat([difference_UU.new_zeros(1), difference_UU[less_UU]]), dim=0)


def ranks(first_UD: NDArray[np.float32], choices_CD: NDArray[np.float32]) -> list[int]:
    """1 + the number of choices that are nearer to a first text than its own, the one of its number, is."""
    found: list[int] = []
    for start in range(0, len(first_UD), RANKED_AT_A_TIME):
        cosine_SC = first_UD[start : start + RANKED_AT_A_TIME] @ choices_CD.T
        own_S = np.diagonal(cosine_SC, offset=start)
        found.extend((1 + (cosine_SC > own_S[:, None] + ROUNDING).sum(axis=1)).tolist())
    return found


def mean_by_share(value_U: NDArray[Any], shares: Sequence[float]) -> Score:
    """Pairs count as far as they belong together: that a bad pair is not found is no fault."""
    if not any(shares):
        return scores.undefined("no pair belongs together")
    return Score(float(np.average(value_U, weights=shares)))


MODULES = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
"""What a text goes through, with the subfolder of each."""

POOLING_KEYS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len": "pooling_mode_mean_sqrt_len_tokens",
}


KNOWN_TYPES = ("electra", "bert", "modernbert", "electra_modern")
"""What transformers loads, the last one with the classes beside it."""


def add_sentence_transformer(folder: Path, *, pooling: Pooling, max_length: int) -> None:
    """Say how texts become vectors, in the files that sentence-transformers reads beside config.json."""
    config = files.read_json(folder / "config.json")
    if config.get("model_type") not in KNOWN_TYPES:
        raise InputError(
            f"{folder} cannot be made a folder for sentence-transformers: its model_type is "
            f"{config.get('model_type')!r}, expected one of {', '.join(KNOWN_TYPES)}. "
            f"{config.get('not_transformers_because', '')}".rstrip()
        )
    (folder / MODULES["Pooling"]).mkdir(exist_ok=True)
    files.write_json(
        folder / MODULES["Pooling"] / "config.json",
        {
            "word_embedding_dimension": config["hidden_size"],
            **{key: mode == pooling for mode, key in POOLING_KEYS.items()},
        },
    )
    # The tokenizer changes the case itself, if at all.
    longest = min(max_length, config["max_position_embeddings"])
    files.write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False}
    )
    files.write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": "cosine"})
    # Last, since by this file the folder is known.
    files.write_json(
        folder / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(MODULES.items())
        ],
    )
