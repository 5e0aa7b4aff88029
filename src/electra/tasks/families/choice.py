"""Questions with choices -> the right one.

B rows, L positions, U questions, C choices, D numbers in a hidden state.
"""

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import HeadLayers, RegressionHead
from electra.model.sizes import EncoderConfig
from electra.tasks.data.columns import Cells, Classes, OwnTaskConfig, RowReader, quoted
from electra.tasks.families import scores
from electra.tasks.families.family import (
    LEAVE_HEAD,
    Ability,
    Card,
    Example,
    ForeignModel,
    Learned,
    Mistake,
    PooledFamily,
    Prediction,
    Predictor,
    Recognised,
    Score,
    Splits,
    TaskBatch,
    TaskRow,
    TransformersHead,
    check_finite,
    known_labels,
    pair_outputs,
    sequence,
)
from electra.tasks.task import content_key
from electra.text.spans import as_list, check_lengths, check_texts
from electra.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceExample(Example):
    """A question, or the beginning of a text, and the answers to choose from."""

    prompt: str
    choices: tuple[str, ...]
    label: int | None = None
    """Position of the right choice; None if it is not known."""


class ChoiceReader(RowReader):
    """A prompt, choices, and which of them is right."""

    @property
    def text_columns(self) -> tuple[str, ...]:
        """The prompt and all choices."""
        return self.config.prompt, *self.config.choice_columns

    def example(self, cells: Cells, id: str, *, classes: Classes | None) -> ChoiceExample:
        """The prompt with its choices."""
        columns = self.config.choice_columns
        choices = tuple(cells.text_of(column, text) for column in columns for text in cells.values(column))
        if len(choices) < 2:
            raise InputError(
                f"{cells.where}: one choice in {self.config.choices!r}, expected a list of two or more, or "
                "several columns"
            )
        label = None if classes is None else self.right_choice(cells, choices)
        return ChoiceExample(
            id=id, where=cells.where, prompt=cells.text(self.config.prompt), choices=choices, label=label
        )

    def right_choice(self, cells: Cells, choices: tuple[str, ...]) -> int:
        """Position of the choice that is named by number, letter, column or text."""
        name, columns = cells.name(self.label_column), self.config.choice_columns
        ways = [
            [str(number) for number in range(len(choices))],
            list(string.ascii_uppercase[: len(choices)]),
            [text.strip() for text in choices],
            list(columns) if len(columns) == len(choices) else [],
        ]
        # Where choices are "2" and "1", a label can be read in two ways: better an error than the wrong one.
        found = {number for way in ways for number, known in enumerate(way) if known == name}
        if len(found) != 1:
            problem = "could mean several choices" if found else "names no choice"
            raise InputError(
                f"{cells.where}: {self.label_column!r} is {name!r}, which {problem}; expected a number from "
                f"0 to {len(choices) - 1}, a letter from A, a column or the text of one of {quoted(choices)}"
            )
        return found.pop()

    def content(self, example: ChoiceExample) -> str:
        """The prompt and its choices, in whatever order."""
        return content_key(example.prompt, *sorted(example.choices))


class ChooseRequest(TypedDict):
    """Questions, each with the choices to choose from."""

    questions: Annotated[list[str], "Questions, or beginnings of texts that the choices continue."]
    choices: Annotated[list[list[str]], "The choices of each question, two or more."]


class Chosen(TypedDict):
    """The choice for a question."""

    choice: Annotated[int, "The place of the most probable choice, from 0."]
    text: Annotated[str, "That choice."]
    probabilities: Annotated[list[float], "Of each choice, in their order; they add up to 1."]


CHOOSE = Ability(
    name="choose",
    purpose="multiple choice",
    request=ChooseRequest,
    answer=Chosen,
    example={"questions": ["who ate the meal ?"], "choices": [["the chef", "the river"]]},
)


CHOOSER = "ElectraForMultipleChoice"
SUMMARIES: dict[HeadLayers, dict[str, Any]] = {
    "two": {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    "one": {"summary_type": "first", "summary_use_proj": False, "summary_activation": "linear"},
}
"""How its class in transformers comes to the vector of a row, which one linear layer then judges. The first
is what it does unless its config says otherwise."""


class MultipleChoice(PooledFamily[ChoiceExample]):
    """The right one of several answers: a row for each, and the rows of a question are a unit."""

    name: ClassVar[str] = "multiple_choice"
    kind: ClassVar[str] = "multiple_choice"
    reader = ChoiceReader
    ability: ClassVar[Ability | None] = CHOOSE
    card: ClassVar[Card] = Card(
        what="An ELECTRA that chooses the right answer to a question, or how a text goes on.",
        hub_task="multiple-choice",
        use='model.choose(["Who ate the meal?"], [["The chef.", "The meal."]])',
        class_lines=(
            'choices = ["The chef.", "The meal."]',
            'inputs = tokenizer(["Who ate the meal?"] * 2, choices, padding=True, return_tensors="pt")',
            "logits = model(**{name: ids[None] for name, ids in inputs.items()}).logits",
        ),
        tokenizer_arguments='["Who ate the meal?"] * 2, ["The chef.", "The meal."], padding=True',
    )

    def labels(self) -> tuple[str, ...]:
        """There are none: every question has its own choices."""
        return ()

    def settings(self) -> dict[str, Any]:
        """The head."""
        return {"head_pooling": self.head_pooling, "head_layers": self.head_layers}

    @classmethod
    def learn_table(cls, config: OwnTaskConfig, labels: Sequence[str], splits: Splits) -> Learned:
        """Nothing is learned from all examples together."""
        return Learned(cls(), "accuracy", splits, [])

    @classmethod
    def recognised(cls, foreign: ForeignModel) -> Recognised | None:
        """A model whose vector of a row comes to its last layer in one of two ways."""
        if foreign.architecture != CHOOSER:
            return None
        said = {key: foreign.values.get(key, usual) for key, usual in SUMMARIES["two"].items()}
        layers = next((layers for layers, summary in SUMMARIES.items() if summary == said), None)
        if layers is None:
            known = " or ".join(map(str, SUMMARIES.values()))
            raise InputError(f"{foreign.where}: {said} cannot be read, expected {known}. {LEAVE_HEAD}")
        family = cls(head_layers=layers)
        for name in family.tensor_names():
            foreign.tensor(name)
        return Recognised(family, "accuracy")

    def rows(
        self, examples: Sequence[ChoiceExample], tokenizer: Tokenizer, *, max_length: int
    ) -> list[TaskRow]:
        """[CLS] prompt [SEP] choice [SEP] for each choice."""
        prompts = tokenizer.encode([example.prompt for example in examples]).split()
        choices = iter(
            tokenizer.encode([choice for example in examples for choice in example.choices]).split()
        )
        rows = []
        for place, (example, prompt) in enumerate(zip(examples, prompts, strict=True)):
            targets = {} if example.label is None else {"label": example.label}
            for choice in range(len(example.choices)):
                ids, types = sequence(prompt, next(choices), tokenizer, max_length=max_length)
                rows.append(
                    TaskRow(
                        input_ids=ids,
                        token_type_ids=types,
                        example=place,
                        unit=place,
                        targets=targets,
                        origin=choice,
                    )
                )
        return rows

    def head(self, config: EncoderConfig) -> nn.Module:
        """One logit for each row."""
        return RegressionHead(config, self.head_pooling, self.head_layers)

    def losses(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> Tensor:
        """Cross-entropy over the choices of each question, which may have different numbers of them."""
        questions = questions_of(batch.rows)
        logits_B = head(hidden_BLD, batch.attention_mask_BL).float()
        logits_UC = nn.utils.rnn.pad_sequence(
            [logits_B[question] for question in questions], batch_first=True, padding_value=float("-inf")
        )
        target_U = batch.target("label")[[question.start for question in questions]]
        return functional.cross_entropy(logits_UC, target_U, reduction="none")

    def outputs(self, head: nn.Module, hidden_BLD: Tensor, batch: TaskBatch) -> list[Any]:
        """The logit of each choice."""
        return list(head(hidden_BLD, batch.attention_mask_BL).float().cpu().numpy())

    def predictions(
        self, examples: Sequence[ChoiceExample], rows: Sequence[TaskRow], outputs: Sequence[Any]
    ) -> list[Prediction]:
        """The most probable choice, and the probability of each."""
        logits = np.array(outputs, np.float32)
        by_question = [logits[question] for question in questions_of(rows)]
        check_finite(examples, by_question)
        return [choice_prediction(logits_C) for logits_C in by_question]

    def scores(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]
    ) -> dict[str, Score]:
        """The share of questions that are answered right."""
        gold = known_labels(examples)
        return {"accuracy": scores.accuracy(gold, [prediction["choice"] for prediction in predictions])}

    def mistakes(self, example: ChoiceExample, prediction: Prediction) -> Iterator[Mistake]:
        """Another choice than the right one; the surer the worse."""
        if example.label is not None and prediction["choice"] != example.label:
            confidence = prediction["probabilities"][prediction["choice"]]
            said = {
                "text": example.prompt,
                "gold": example.choices[example.label],
                "predicted": example.choices[prediction["choice"]],
                "confidence": confidence,
            }
            yield Mistake(confidence, said)

    def table_row(self, example: ChoiceExample, prediction: Prediction) -> dict[str, str]:
        """The prompt, the place of the choice, and the choice."""
        choice = prediction["choice"]
        return {"prompt": example.prompt, "choice": str(choice), "choice_text": example.choices[choice]}

    def answer(self, fields: Mapping[str, Any], predictor: Predictor) -> list[Chosen]:
        """The most probable of each question's choices."""
        questions = check_texts(fields["questions"], name="questions")
        choices = check_choices(fields["choices"])
        check_lengths(questions, choices, names=("questions", "choices"))
        encode = predictor.tokenizer.encode
        encoded = iter(encode([choice for of_question in choices for choice in of_question]).split())
        pairs = [
            (question, next(encoded))
            for question, of_question in zip(encode(questions).split(), choices, strict=True)
            for _ in of_question
        ]
        logits = iter(pair_outputs(pairs, predictor))
        found: list[Chosen] = []
        for number, of_question in enumerate(choices):
            logits_C = np.array([next(logits) for _ in of_question])
            check_finite([Example(id=str(number), where=f"questions[{number}]")], [logits_C])
            said = choice_prediction(logits_C)
            found.append(
                Chosen(
                    choice=said["choice"],
                    text=of_question[said["choice"]],
                    probabilities=said["probabilities"],
                )
            )
        return found

    def transformers_obstacle(self, config: EncoderConfig) -> str | None:
        """It has one layer on [CLS], too, if it is told to leave out the one before."""
        return self.pooling_obstacle(config, CHOOSER)

    def tensor_names(self) -> dict[str, str]:
        """What transformers calls the weights of the head, and what we do."""
        modules = {"classifier": "output"}
        if self.head_layers == "two":
            modules["sequence_summary.summary"] = "dense"
        return {
            f"{theirs}.{kind}": f"{ours}.{kind}"
            for theirs, ours in modules.items()
            for kind in ("weight", "bias")
        }

    def to_transformers(self, head: nn.Module) -> TransformersHead:
        """The same layers; with one, the state of [CLS] comes to it as it is."""
        state = head.state_dict()
        tensors = {theirs: state[ours] for theirs, ours in self.tensor_names().items()}
        return TransformersHead(CHOOSER, dict(SUMMARIES[self.head_layers]), tensors)

    def from_transformers(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same layers."""
        return {ours: tensors[theirs] for theirs, ours in self.tensor_names().items()}

    def onnx_outputs(
        self, head: nn.Module, hidden_BLD: Tensor, attention_mask_BL: Tensor
    ) -> dict[str, Tensor]:
        """The logit of each row (B, 1), which is a question with one of its choices."""
        return {"logits": head(hidden_BLD, attention_mask_BL)[:, None]}

    @property
    def head_lines(self) -> Sequence[str]:
        """The vector of each choice, and one layer; asked for where transformers cannot take the mean."""
        return (
            'choices = ["The chef.", "The meal."]',
            'inputs = tokenizer(["Who ate the meal?"] * 2, choices, padding=True, return_tensors="pt")',
            'is_text = inputs["attention_mask"][..., None]',
            "vectors = (model(**inputs).last_hidden_state * is_text).sum(dim=1) / is_text.sum(dim=1)",
            'head = load_file(f"{folder}/head.safetensors")',
            'logits = vectors @ head["output.weight"].T + head["output.bias"]',
        )


def questions_of(rows: Sequence[TaskRow]) -> list[slice]:
    """Where the rows of each question lie; its first choice is number 0."""
    starts = [place for place, row in enumerate(rows) if row.origin == 0]
    return [slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True)]


def choice_prediction(logits_C: NDArray[Any]) -> Prediction:
    """The most probable choice, and the probability of each."""
    share_C = np.exp(logits_C - logits_C.max(), dtype=np.float64)
    share_C /= share_C.sum()
    return {"choice": int(share_C.argmax()), "probabilities": share_C.tolist()}


def check_choices(choices: Iterable[Iterable[str]]) -> list[list[str]]:
    """Lists of two or more texts, or an error that says which is none."""
    if isinstance(choices, str):
        raise InputError("choices is one string, expected a list of choices for each question")
    found = []
    for number, given in enumerate(as_list(choices, name="choices")):
        of_question = check_texts(given, name=f"choices[{number}]")
        if len(of_question) < 2:
            raise InputError(f"choices[{number}] has {len(of_question)} texts, expected two or more")
        found.append(of_question)
    return found
