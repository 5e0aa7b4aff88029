"""A loaded model: texts -> plain data in the same order, with the characters of each text.

    model = electra.load("RUN")
    model.abilities                            # such as ("embed", "detect", "fill", "score", "choose")
    model.detect(["The chef ate the meal."])[0]["tokens"][2]

Texts are a list, a generator or whatever else yields them, and are batched by length. One that is longer
than the encoder reads at once goes through in windows that overlap, and each of its tokens is judged where it
has the most context; nothing is cut off. A text without tokens gets an empty answer. No method changes the
model, so threads may share it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.model.heads import Pooling
from electra.prediction import pretrained
from electra.prediction.options import ChooseBy, choose_options
from electra.prediction.pretrained import Discriminator, EnergyNetwork, Generator, embed
from electra.prediction.scoring import By, Scorer, TokenDetail, check_gaps, describe_scores
from electra.prediction.windows import Reader, wanted
from electra.tasks.families.family import Ability, Predictor, TaskRow
from electra.tasks.families.table import task_abilities
from electra.tasks.inference import judged_batches
from electra.tasks.model import FineTuned
from electra.tasks.precision import ASKED_FOR, FLOAT32
from electra.text.spans import check_texts, locate, locate_with_gaps, mask_gaps
from electra.text.templates import DEFAULT_TEMPLATE
from electra.text.tokenizer import Tokenizer

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
    energy: EnergyNetwork | None = None
    """In place of the other two, what a run of Electric has."""
    tuned: FineTuned | None = None
    precision: str = FLOAT32
    """Of matrix products: fp32, bf16, fp16, or that of an exported graph."""
    precision_reason: str = ASKED_FOR
    """Why it is this one."""

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
            "score": bool(self.scorer.known),
            "choose": bool(self.scorer.known),
        }
        task = self.task_ability
        return (*(name for name, is_there in found.items() if is_there), *([task.name] if task else []))

    @property
    def task_ability(self) -> Ability | None:
        """What it was fine-tuned for; None if it was not, or if no method is for it."""
        return None if self.tuned is None else self.tuned.family.ability

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes or tags that it was trained for; empty if it has none."""
        return () if self.tuned is None else self.tuned.family.labels()

    @property
    def tokenizer(self) -> Tokenizer:
        """Text -> token ids and back."""
        return self.reader.tokenizer

    def detect(self, texts: Iterable[str]) -> list[Plain]:
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

    def fill(self, texts: Iterable[str], *, top: int = 5) -> list[Plain]:
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
                    for (start, end), guesses in zip(mask_gaps(text), of_text, strict=True)
                ],
            }
            for text, of_text in zip(texts, best, strict=True)
        ]

    def corrupt(self, texts: Iterable[str], *, mask_prob: float = 0.15, seed: int = 0) -> list[Plain]:
        """One turn of the training game: the generator rewrites some tokens, the discriminator judges all.

        `corrupted` is the text with nothing changed but the replaced tokens; `replaced` says which those are,
        `suspicion` what the discriminator makes of each. The same seed does the same to the same text.

        A generator of `replaced_span` rewrites whole phrases: each that it draws anew is one of the `tokens`,
        and `phrase` numbers the phrases that the text was cut into; else it is None.
        """
        generator = self._needed(self.generator, "corrupt")
        discriminator = self._needed(self.discriminator, "corrupt")
        texts = check_texts(texts)
        return pretrained.corrupt_texts(
            texts,
            locate(texts, self.tokenizer),
            generator=generator,
            discriminator=discriminator,
            mask_prob=mask_prob,
            seed=seed,
        )

    def score(self, texts: Iterable[str], *, by: By = "auto", tokens: TokenDetail = "hide") -> list[Plain]:
        """How acceptable each text looks: of two texts, the one with the higher sum looks better.

        By detection, a token scores log(1 - p(replaced)), in one pass; by pseudo_likelihood log p(token | all
        others), where each token is masked in turn. `both` computes both, auto what the model has networks
        for. The mean is the sum per token; a text without tokens has neither. `tokens` may show the scores of
        all tokens as well.
        """
        self.need_scorer()
        texts = check_texts(texts)
        check_gaps(texts)
        if tokens not in get_args(TokenDetail):
            raise InputError(f"tokens is {tokens!r}, expected one of {', '.join(get_args(TokenDetail))}")
        located = locate(texts, self.tokenizer)
        found = self.scorer.token_scores([one.ids_T for one in located], by=by)
        return [
            describe_scores(
                text,
                one,
                {method: scores[number] for method, scores in found.items()},
                unk_id=self.tokenizer.unk_id,
                detail=tokens,
            )
            for number, (text, one) in enumerate(zip(texts, located, strict=True))
        ]

    def need_scorer(self) -> None:
        """Refuse a model that cannot score at all."""
        if not self.scorer.known:
            raise InputError(self._cannot("score"))

    @cached_property
    def scorer(self) -> Scorer:
        """Token ids -> scores, for those who have many texts."""
        return Scorer(discriminator=self.discriminator, generator=self.generator, energy=self.energy)

    def embed(self, texts: Iterable[str], *, pooling: Pooling | None = None) -> list[list[float]]:
        """A vector of length 1 for each text, all zeros if the text is empty.

        `pooling` of hidden states is mean, cls or max; by default what the model was trained with, or mean.
        """
        vectors: list[list[float]] = self._vectors(check_texts(texts), pooling).tolist()
        return vectors

    def similarity(self, texts: Iterable[str], pairs: Iterable[str]) -> list[Plain]:
        """How near each text is in meaning to the one beside it: the cosine of their vectors."""
        return self.ask("similarity", texts=texts, pairs=pairs)

    def classify(self, texts: Iterable[str], pairs: Iterable[str] | None = None) -> list[Plain]:
        """The class of each text, or of each pair, with all probabilities; or its labels, or its value."""
        return self.ask("classify", texts=texts, pairs=pairs)

    def tag(self, texts: Iterable[str | Iterable[str]]) -> list[Plain]:
        """A tag for each word, and the chunks that the tags mark.

        A text is cut into words as the tokenizer does it: with WordPiece at blanks and at punctuation, which
        is a word too. A list of words is taken as it is; its characters are those of the words joined by
        blanks, which is the `text` of the answer.
        """
        return self.ask("tag", texts=texts)

    def answer(self, questions: Iterable[str], contexts: Iterable[str]) -> list[Plain]:
        """The part of each context that answers the question; `text` is "" if none seems to.

        `no_answer` is the probability that there is none, or None if the model was not trained to tell.
        """
        return self.ask("answer", questions=questions, contexts=contexts)

    def choose(
        self,
        texts: Iterable[str] | None = None,
        choices: Iterable[Iterable[str]] | None = None,
        *,
        questions: Iterable[str] | None = None,
        options: Iterable[str] | None = None,
        template: str = DEFAULT_TEMPLATE,
        by: ChooseBy = "auto",
    ) -> list[Plain]:
        """The best of several choices for each text: its place, its text, and all probabilities.

        A pre-trained model chooses among `options`, the same ones for all texts: the one that looks least
        replaced at {} in the `template`, a sentence that follows the text or has a place for it, {text}. Its
        score, among `scores`, is the mean of log(1 - p(replaced)) over its tokens or, by pseudo_likelihood,
        of log p(token | all others). A text without tokens has no choice.

        A model that was fine-tuned for multiple choice chooses among `choices`, of which each text has its
        own. Its texts may be called `questions`: they are such, or beginnings that the choices continue.
        """
        if (texts is None) == (questions is None):
            raise InputError("texts: expected a list of texts")
        given = questions if texts is None else texts
        assert given is not None
        if self.task_ability is not None and self.task_ability.name == "choose":
            if choices is None or options is not None:
                raise InputError(
                    f"options: {self.path} was fine-tuned for multiple choice: give choices, a list for each "
                    "question"
                )
            return self.ask("choose", questions=given, choices=choices)
        if "choose" not in self.abilities:
            raise InputError(self._cannot("choose"))
        if options is None or choices is not None:
            raise InputError(
                f"choices: {self.path} was not fine-tuned for multiple choice: give options, the same for "
                "all texts"
            )
        return choose_options(
            check_texts(given),
            options,
            template=template,
            by=by,
            scorer=self.scorer,
            tokenizer=self.tokenizer,
            max_length=self.reader.max_length,
        )

    def ask(self, ability: str, **fields: Any) -> list[Any]:
        """Use an ability by its name: `ask("detect", texts=[...])` is `detect([...])`.

        A family of tasks that adds an ability of its own is used by this alone.
        """
        is_task = self.task_ability is not None and self.task_ability.name == ability
        if ability in self.abilities and not is_task:
            found: list[Any] = getattr(self, ability)(**fields)
            return found
        tuned = self._needed(self.tuned, ability)
        return tuned.family.answer(fields, self._predictor)

    @cached_property
    def _predictor(self) -> Predictor:
        tuned = self.tuned
        assert tuned is not None
        return Predictor(
            tokenizer=tuned.tokenizer,
            max_length=tuned.max_length,
            outputs=self._outputs,
            embed=lambda texts: self._vectors(texts, None),
        )

    def _outputs(self, rows: Sequence[TaskRow]) -> list[Any]:
        tuned = self.tuned
        assert tuned is not None
        outputs: list[Any] = [None] * len(rows)
        with self.reader.computing():
            batches = judged_batches(tuned.model, tuned.task, rows, pad_id=tuned.tokenizer.pad_id)
            for places, judged in wanted(batches):
                for place, output in zip(places, judged.outputs, strict=True):
                    outputs[place] = output
        return outputs

    def _needed(self, part: Value | None, ability: str) -> Value:
        if part is None or ability not in self.abilities:
            raise InputError(self._cannot(ability))
        return part

    def _cannot(self, ability: str) -> str:
        return f"{self.path} cannot {lacking(ability)}. It can: {', '.join(self.abilities)}"

    def _vectors(self, texts: Sequence[str], pooling: Pooling | None) -> NDArray[np.float32]:
        own: Pooling = "mean" if self.tuned is None else self.tuned.family.pooling
        texts_ids = self.tokenizer.encode(texts).split()
        return embed(texts_ids, self.reader, pooling=pooling or own, size=self.vector_size)

    def _candidates(self, ids_K: NDArray[np.int64], share_K: NDArray[np.float32]) -> list[Plain]:
        pairs = zip(self.tokenizer.tokens(ids_K), share_K.tolist(), strict=True)
        return [{"token": token, "probability": probability} for token, probability in pairs]


LACKING = {
    "detect": "detect replaced tokens: it has no discriminator with its head (ElectraForPreTraining)",
    "fill": "fill masks: it has no generator with its head (ElectraForMaskedLM)",
    "corrupt": "corrupt: that takes a discriminator and a generator, as `electra pretrain` leaves them",
    "score": (
        "score texts: it has neither a discriminator nor a generator with its head. Name the run that it was "
        "made from"
    ),
    "choose": (
        "choose: it was not fine-tuned for multiple choice, and has neither a discriminator nor a generator "
        "with its head to choose among options"
    ),
}
"""Ability of a pre-trained model -> what is missing in a model that has it not."""


def lacking(ability: str) -> str:
    """What a model cannot do, and why."""
    of_tasks = task_abilities()
    if ability in of_tasks and ability not in LACKING:
        return f"{ability}: it was not fine-tuned for {of_tasks[ability].purpose}"
    return LACKING.get(ability, f"{ability}: there is no such ability")
