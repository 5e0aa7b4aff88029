"""A loaded model: lists of texts -> plain data in the same order, with the characters of each text.

    model = electra.load("RUN")
    model.abilities                                    # such as ("embed", "detect", "fill", "corrupt")
    model.detect(["The chef ate the meal."])[0]["tokens"][2]

Texts are batched by length. One that is longer than the encoder reads at once goes through in windows that
overlap, and each of its tokens is judged where it has the most context; nothing is cut off. A text without
tokens gets an empty answer. No method changes the model, so threads may share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.prediction import pretrained, tasks
from electra.prediction.pretrained import Discriminator, Generator, embed
from electra.prediction.spans import (
    Ids,
    Reader,
    Word,
    check_texts,
    gaps,
    join_words,
    locate,
    locate_with_gaps,
    words_of,
)
from electra.tasks.families.similarity import Pooling, Similarity
from electra.tasks.folders import FineTuned
from electra.text.tokenizer import Tokenizer

ABILITIES = {
    "classification": "classify",
    "multi_label": "classify",
    "regression": "classify",
    "similarity": "similarity",
    "tagging": "tag",
    "question_answering": "answer",
}
"""Family of a fine-tuned model -> the method for it."""

Plain = dict[str, Any]
Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True, repr=False)
class Model:
    """What was found in a folder. `electra.load` makes it."""

    path: str
    reader: Reader
    """The encoder that texts become vectors by."""
    vector_size: int
    discriminator: Discriminator | None = None
    generator: Generator | None = None
    tuned: FineTuned | None = None

    def __repr__(self) -> str:
        return f"Model({self.path!r}, abilities={self.abilities})"

    @cached_property
    def abilities(self) -> tuple[str, ...]:
        """The methods that this model has the heads for."""
        found = {
            "embed": True,
            "detect": self.discriminator is not None,
            "fill": self.generator is not None,
            "corrupt": self.discriminator is not None and self.generator is not None,
        }
        task = () if self.tuned is None else (ABILITIES.get(self.tuned.family.name),)
        return (*(name for name, is_there in found.items() if is_there), *filter(None, task))

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes or tags that it was trained for; empty if it has none."""
        return () if self.tuned is None else self.tuned.family.labels()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text -> token ids and back."""
        return self.reader.tokenizer

    def detect(self, texts: Sequence[str]) -> list[Plain]:
        """How probably each token was replaced."""
        discriminator = self._needed(self.discriminator, "detect")
        texts = check_texts(texts)
        located = locate(texts, self.tokenizer)
        suspicions = discriminator.suspicions([tokens.ids_T for tokens in located])
        return [
            {
                "text": text,
                "tokens": [
                    {"text": text[start:end], "start": start, "end": end, "replaced": float(suspicion)}
                    for (start, end), suspicion in zip(tokens.spans, suspicion_T, strict=True)
                ],
            }
            for text, tokens, suspicion_T in zip(texts, located, suspicions, strict=True)
        ]

    def fill(self, texts: Sequence[str], *, top: int = 5) -> list[Plain]:
        """What could stand at each "[MASK]" of a text: the `top` most probable tokens."""
        generator = self._needed(self.generator, "fill")
        texts = check_texts(texts)
        if top < 1:
            raise InputError(f"top is {top}, expected 1 or more candidates")
        texts_ids = [tokens.ids_T for tokens in locate_with_gaps(texts, self.tokenizer)]
        positions = [np.flatnonzero(ids_T == self.tokenizer.mask_id) for ids_T in texts_ids]
        best = generator.best(texts_ids, positions, top=top)
        return [
            {
                "text": text,
                "masks": [
                    {"start": start, "end": end, "candidates": self._candidates(*guesses)}
                    for (start, end), guesses in zip(gaps(text), of_text, strict=True)
                ],
            }
            for text, of_text in zip(texts, best, strict=True)
        ]

    def corrupt(self, texts: Sequence[str], *, mask_prob: float = 0.15, seed: int = 0) -> list[Plain]:
        """One turn of the training game: the generator rewrites some tokens, the discriminator judges all.

        `corrupted` is the text with nothing changed but the replaced tokens; `replaced` says which those are,
        `suspicion` what the discriminator makes of each. The same seed does the same to the same text.
        """
        generator = self._needed(self.generator, "corrupt")
        discriminator = self._needed(self.discriminator, "corrupt")
        texts = check_texts(texts)
        return pretrained.corrupt(
            texts,
            locate(texts, self.tokenizer),
            generator=generator,
            discriminator=discriminator,
            mask_prob=mask_prob,
            seed=seed,
        )

    def embed(self, texts: Sequence[str], *, pooling: Pooling | None = None) -> list[list[float]]:
        """A vector of length 1 for each text, all zeros if the text is empty.

        `pooling` of hidden states is mean, cls or max; by default what the model was trained with, or mean.
        """
        vectors: list[list[float]] = self._vectors(check_texts(texts), pooling).tolist()
        return vectors

    def similarity(self, texts: Sequence[str], pairs: Sequence[str]) -> list[Plain]:
        """How near each text is in meaning to the one beside it: the cosine of their vectors."""
        self._needed(self.tuned, "similarity")
        texts, pairs = check_pairs(texts, pairs, names=("texts", "pairs"))
        cosines = (self._vectors(texts, None) * self._vectors(pairs, None)).sum(axis=1)
        return [{"similarity": cosine} for cosine in cosines.tolist()]

    def classify(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[Plain]:
        """The class of each text, or of each pair, with all probabilities; or its labels, or its value."""
        model = self._needed(self.tuned, "classify")
        first, second = check_pairs(texts, pairs, names=("texts", "pairs"))
        return tasks.classify(model, self._ids(first), self._ids(second))

    def tag(self, texts: Sequence[str | Sequence[str]]) -> list[Plain]:
        """A tag for each word, and the chunks that the tags mark.

        A text is cut into words as the tokenizer does it: with WordPiece at blanks and at punctuation, which
        is a word too. A list of words is taken as it is; its characters are those of the words joined by
        blanks, which is the `text` of the answer.
        """
        model = self._needed(self.tuned, "tag")
        if isinstance(texts, str):
            check_texts(texts)
        cut = self._words(texts)
        tagged = tasks.tag(model, [words for _, words in cut])
        return [
            {"text": text, "words": words, "chunks": tasks.chunks_of(model, text, words)}
            for (text, _), words in zip(cut, tagged, strict=True)
        ]

    def answer(self, questions: Sequence[str], contexts: Sequence[str]) -> list[Plain]:
        """The part of each context that answers the question; `text` is "" if none seems to.

        `no_answer` is the probability that there is none, or None if the model was not trained to tell.
        """
        model = self._needed(self.tuned, "answer")
        return tasks.answer(model, *check_pairs(questions, contexts, names=("questions", "contexts")))

    def _needed(self, part: Value | None, ability: str) -> Value:
        if part is None or ability not in self.abilities:
            raise InputError(f"{self.path} cannot {LACKING[ability]}. It can: {', '.join(self.abilities)}")
        return part

    def _ids(self, texts: Sequence[str]) -> list[Ids]:
        return self.tokenizer.encode(texts).split()

    def _vectors(self, texts: Sequence[str], pooling: Pooling | None) -> NDArray[np.float32]:
        family = None if self.tuned is None else self.tuned.family
        own: Pooling = family.pooling if isinstance(family, Similarity) else "mean"
        return embed(self._ids(texts), self.reader, pooling=pooling or own, size=self.vector_size)

    def _candidates(self, ids_K: NDArray[np.int64], share_K: NDArray[np.float32]) -> list[Plain]:
        pairs = zip(self.tokenizer.tokens(ids_K), share_K.tolist(), strict=True)
        return [{"token": token, "probability": probability} for token, probability in pairs]

    def _words(self, texts: Sequence[str | Sequence[str]]) -> list[tuple[str, list[Word]]]:
        """Each text, cut into words; lists of words are joined."""
        lists = [
            check_texts([given] if isinstance(given, str) else given, name=f"texts[{number}]")
            for number, given in enumerate(texts)
        ]
        located = iter(locate([given for given in texts if isinstance(given, str)], self.tokenizer))
        return [
            (given, words_of(given, next(located), self._continues_word))
            if isinstance(given, str)
            else join_words(words)
            for given, words in zip(texts, lists, strict=True)
        ]

    @cached_property
    def _continues_word(self) -> NDArray[np.bool_]:
        return self.tokenizer.continues_word()


LACKING = {
    "detect": "detect replaced tokens: it has no discriminator with its head (ElectraForPreTraining)",
    "fill": "fill masks: it has no generator with its head (ElectraForMaskedLM)",
    "corrupt": "corrupt: that takes a discriminator and a generator, as `electra pretrain` leaves them",
    "similarity": "compare texts: it was not fine-tuned for similarity; embed gives vectors of any encoder",
    "classify": "classify: it was not fine-tuned for classes, labels or values",
    "tag": "tag: it was not fine-tuned for tagging",
    "answer": "answer: it was not fine-tuned for question answering",
}
"""What a model lacks that has not this ability."""


def check_pairs(
    first: Sequence[str], second: Sequence[str] | None, *, names: tuple[str, str]
) -> tuple[list[str], list[str]]:
    """Two lists of one length; without a second, its texts are empty."""
    texts = check_texts(first, name=names[0])
    if second is None:
        return texts, [""] * len(texts)
    others = check_texts(second, name=names[1])
    if len(others) != len(texts):
        raise InputError(
            f"{len(texts)} {names[0]} and {len(others)} {names[1]}: expected one of each for the other"
        )
    return texts, others
