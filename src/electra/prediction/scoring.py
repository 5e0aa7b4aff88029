"""Texts -> how acceptable each looks to a model, token by token, by one or both of two methods.

detection           log(1 - p(replaced)), by the discriminator: one pass over a text
pseudo_likelihood   log p(token | all others), by the generator or a model of masked language modelling: each
                    token is masked in turn, so that a text of T tokens is read T times. The energies of
                    Electric are such logarithms already, and take one pass.

The score of a text is the sum over its tokens, without [CLS] and [SEP]: of two texts the one with the higher
sum is the more acceptable. Sums of texts of different lengths are hard to compare; the mean per token helps.

T tokens of a text.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.prediction.pretrained import Discriminator, EnergyNetwork, Generator
from electra.text.spans import MASK, Ids, Tokens

Method = Literal["detection", "pseudo_likelihood"]
By = Literal["auto", "detection", "pseudo_likelihood", "both"]
"""auto is every method that the model has the networks for."""
TokenDetail = Literal["hide", "show"]

METHODS: tuple[Method, ...] = get_args(Method)

LACKING: Mapping[Method, str] = {
    "detection": (
        "the model has no discriminator with its head (ElectraForPreTraining): use pseudo_likelihood"
    ),
    "pseudo_likelihood": (
        "the model has no generator with its head (ElectraForMaskedLM): use detection, or name the run that "
        "holds both networks"
    ),
}
NO_PROBABILITIES = (
    "the discriminator of the objective electric gives energies, not probabilities of a replacement: use "
    "pseudo_likelihood, which they are"
)

TokenScores = list[NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """The networks of a model that can tell how acceptable a text is."""

    discriminator: Discriminator | None
    generator: Generator | None
    energy: EnergyNetwork | None

    @property
    def known(self) -> dict[Method, Callable[[Sequence[Ids]], TokenScores]]:
        """What computes each method that there are networks for."""
        found: dict[Method, Callable[[Sequence[Ids]], TokenScores]] = {}
        if self.discriminator is not None:
            found["detection"] = self.discriminator.log_originals
        if likelihood := self.energy or self.generator:
            found["pseudo_likelihood"] = likelihood.log_likelihoods
        return found

    def methods(self, by: By) -> tuple[Method, ...]:
        """The methods that were asked for; an InputError if the model lacks one."""
        if by not in get_args(By):
            raise InputError(f"by is {by!r}, expected one of {', '.join(get_args(By))}")
        known = self.known
        if by == "auto":
            wanted: tuple[Method, ...] = tuple(known)
        else:
            wanted = METHODS if by == "both" else (by,)
        for method in wanted:
            if method not in known:
                is_electric = method == "detection" and self.energy is not None
                raise InputError(f"by is {by}, but {NO_PROBABILITIES if is_electric else LACKING[method]}")
        return wanted

    def token_scores(self, texts_ids: Sequence[Ids], *, by: By) -> dict[Method, TokenScores]:
        """Method -> the score of each token of each text. Texts of the same tokens have the same scores."""
        methods = self.methods(by)
        # Computed once: in two batches they would differ by rounding, and a tie would be no tie.
        places: dict[bytes, int] = {}
        number_of = [places.setdefault(ids_T.tobytes(), len(places)) for ids_T in texts_ids]
        different = [np.frombuffer(content, np.uint32) for content in places]
        found = {method: self.known[method](different) for method in methods}
        return {method: [scores[number] for number in number_of] for method, scores in found.items()}

    def means(self, texts_ids: Sequence[Ids], places: Sequence[slice], *, method: Method) -> list[float]:
        """The mean score of some tokens of each text, by one method."""
        if method == "pseudo_likelihood" and self.energy is None and self.generator is not None:
            # No other tokens are masked: those of an option are few.
            found = self.generator.log_likelihoods(texts_ids, places)
        else:
            found = self.known[method](texts_ids)
        return [
            float(score_T[place].mean(dtype=np.float64)) for score_T, place in zip(found, places, strict=True)
        ]

    def sums(self, texts_ids: Sequence[Ids], *, by: By) -> dict[Method, NDArray[np.float64]]:
        """Method -> the score of each text; NaN for a text without tokens."""
        found = self.token_scores(texts_ids, by=by)
        return {
            method: np.array([total(score_T) for score_T in scores], np.float64)
            for method, scores in found.items()
        }


def total(score_T: NDArray[np.float32]) -> float:
    """The score of a text; NaN if it has no tokens, since nothing is neither acceptable nor not."""
    return float(score_T.sum(dtype=np.float64)) if len(score_T) else float("nan")


def check_gaps(texts: Sequence[str], places: Sequence[str] | None = None) -> None:
    """Refuse a gap: it has no score, and neither network has learned what a text with gaps is worth.

    `places`: where each text comes from; by default it is one of `texts`.
    """
    for number, text in enumerate(texts):
        if MASK in text:
            where = f"texts[{number}]" if places is None else places[number]
            raise InputError(f"{where} holds {MASK}, a gap that has no score: fill it first")


def describe_scores(
    text: str,
    tokens: Tokens,
    scores: Mapping[Method, NDArray[np.float32]],
    *,
    unk_id: int,
    detail: TokenDetail,
) -> dict[str, Any]:
    """The scores of a text as plain data; None where a text without tokens has none."""
    num_tokens = len(tokens.ids_T)
    found: dict[str, Any] = {
        "text": text,
        "num_tokens": num_tokens,
        "num_unknown": int((tokens.ids_T == unk_id).sum()),
        "scores": {
            method: {"sum": total(score_T), "mean": total(score_T) / num_tokens}
            if num_tokens
            else {"sum": None, "mean": None}
            for method, score_T in scores.items()
        },
    }
    if detail == "show":
        found["tokens"] = [
            {
                "text": text[start:end],
                "start": start,
                "end": end,
                "scores": {method: float(score_T[place]) for method, score_T in scores.items()},
            }
            for place, (start, end) in enumerate(tokens.spans)
        ]
    return found
