"""JSON bodies of the API -> calls of the model; and the models of its answers.

`ENDPOINTS` lists the abilities of pre-trained models. To add one, write the model of its body (an
`AbilityRequest`) and of one result (a `@result`), and add an entry to the table. The key of the entry is the
path, and the name of the method of `electra.prediction.model.Model` that takes the fields of the body as
keyword arguments and returns one result for each text. The ability of a fine-tuned model is described by its
family (`electra.tasks.families`), and `endpoint_of` makes the same of it. Its route, its batches, its limits,
its description and, unless `warms_up` is False, its first call when the server starts all follow.
"""

import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias, MappingProxyType, UnionType
from typing import Annotated, Any, NotRequired, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
    with_config,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict, is_typeddict  # pydantic needs these before Python 3.12

from electra.model.heads import Pooling
from electra.prediction.options import ChooseBy
from electra.prediction.scoring import By, Method, TokenDetail
from electra.serve.batching import Call
from electra.serve.errors import ApiError, shortened
from electra.serve.limits import Limits
from electra.show import did_you_mean
from electra.tasks.families.family import MAX_PAIR_WINDOWS
from electra.tasks.families.table import task_abilities
from electra.text.spans import MASK
from electra.text.templates import DEFAULT_TEMPLATE

MAX_CANDIDATES = 20_000
"""Candidates for all masks of a request together."""
LARGEST_SEED = 2**53 - 1
"""JavaScript has no exact integers above this."""
CHARACTERS_OF_TOKEN = 4
"""So many make a token of most languages, roughly."""
UNKNOWN = "unknown_field"
"""The type of pydantic's error for a field that a body may not have."""


# Bodies


def check_unicode(text: str) -> str:
    """Refuse half of a surrogate pair: JSON can escape it, and UTF-8 cannot write it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PydanticCustomError(
            "half_character", "half of a character at {at}", {"at": error.start}
        ) from None
    return text


Text = Annotated[str, AfterValidator(check_unicode)]
# The first error is enough: a list of a million of them would be larger than the body.
Texts = Annotated[list[Text], Field(fail_fast=True)]


class AbilityRequest(BaseModel):
    """A body: lists of texts, one item of each list per result, and options that apply to all of them."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def refuse_unknown_fields(cls, body: Any) -> Any:
        """Name the first unknown field and the nearest known one.

        It comes before any other error: most often it is the misspelt name of a field that is missing. And
        pydantic would list every one of a hundred thousand unknown fields.
        """
        known = cls.model_fields
        unknown = [name for name in body if name not in known] if isinstance(body, dict) else []
        if not unknown:
            return body
        name = shortened(unknown[0])
        guess = did_you_mean(name, known, cutoff=0.5) or f"; expected {', '.join(known)}"
        raise PydanticCustomError(UNKNOWN, "unknown field {field}{guess}", {"field": name, "guess": guess})

    def columns(self) -> dict[str, list[Any]]:
        """The lists."""
        return {name: value for name, value in self if isinstance(value, list)}

    def settings(self) -> dict[str, Any]:
        """All other fields."""
        return {name: value for name, value in self if not isinstance(value, list)}

    def check(self, limits: Limits) -> None:
        """Refuse what is above a limit of the server that only this body has."""

    def cost(self, *, row_length: int) -> int:
        """Characters that the model has to read; it reads `row_length` tokens at once."""
        return sum(len(text) for texts in self.columns().values() for text in texts)


def example(**values: Any) -> ConfigDict:
    """The part of a model's config that gives the API's description this example."""
    return ConfigDict(json_schema_extra={"examples": [values]})


def pair_cost(first: Sequence[str], second: Sequence[str], *, row_length: int) -> int:
    """Characters to read for pairs of texts, roughly.

    If neither text of a pair fits into half a row, each window of one is read with each window of the other,
    up to a number of rows; above it, with one of the other's (`pair_windows`).
    """
    most = MAX_PAIR_WINDOWS * CHARACTERS_OF_TOKEN * row_length

    def cost(a: int, b: int) -> int:
        # Windows overlap, and have half of a row.
        return max(a + b, min(2 * a * b // row_length, max(most, 3 * max(a, b))))

    return sum(cost(len(a), len(b)) for a, b in zip(first, second, strict=True))


class DetectRequest(AbilityRequest):
    """Texts in which to look for replaced tokens."""

    model_config = example(texts=["the chef ate the meal"])
    texts: Texts = Field(description="Texts of any length.")


class FillRequest(AbilityRequest):
    """Texts with gaps."""

    model_config = example(texts=[f"the chef {MASK} the meal"], top=3)
    texts: Texts = Field(description=f"Texts with {MASK} where something is missing.")
    top: int = Field(
        default=5, ge=1, le=100, validate_default=True, description="Number of candidates for each gap."
    )

    @field_validator("top")
    @classmethod
    def bound_candidates(cls, top: int, info: ValidationInfo) -> int:
        """Refuse to list more candidates than anybody reads."""
        num_masks = sum(text.count(MASK) for text in info.data.get("texts", ()))
        if num_masks * top > MAX_CANDIDATES:
            raise PydanticCustomError(
                "too_many_candidates",
                "{top} candidates for each of {num_masks} masks are more than {most}: ask for fewer",
                {"top": top, "num_masks": num_masks, "most": MAX_CANDIDATES},
            )
        return top


class CorruptRequest(AbilityRequest):
    """Texts to corrupt."""

    model_config = example(texts=["the chef cooked the meal"], mask_prob=0.3, seed=1)
    texts: Texts = Field(description="Texts of any length.")
    mask_prob: float = Field(
        default=0.15, gt=0, le=1, description="Share of the tokens that the generator draws anew."
    )
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description="The same seed corrupts a text in the same way."
    )


class EmbedRequest(AbilityRequest):
    """Texts to turn into vectors."""

    model_config = example(texts=["a small city", "a large mountain"])
    texts: Texts = Field(description="Texts of any length.")
    pooling: Pooling | None = Field(
        default=None,
        description="How the vectors of the tokens become one. Default: as the model was trained, else mean.",
    )


class ScoreRequest(AbilityRequest):
    """Texts whose acceptability is judged."""

    model_config = example(texts=["the chef cooked the meal"])
    texts: Texts = Field(description=f"Texts of any length, without {MASK}.")
    by: By = Field(
        default="auto",
        description="detection takes one pass, pseudo_likelihood one for each token; auto is what the model "
        "has the networks for.",
    )
    tokens: TokenDetail = Field(default="hide", description="Whether to list the scores of all tokens.")

    def cost(self, *, row_length: int) -> int:
        """A text is read once and, unless only detection is wanted, once more for each of its tokens."""
        once = super().cost(row_length=row_length)
        if self.by == "detection":
            return once
        # A token is read with no more than a window of others.
        window = CHARACTERS_OF_TOKEN * row_length
        return once + sum(len(text) // CHARACTERS_OF_TOKEN * min(len(text), window) for text in self.texts)


class OptionsRequest(AbilityRequest):
    """Texts, and options to choose from for each of them."""

    model_config = example(texts=["the music was fast"], options=["good", "old"], template="It was {}.")
    texts: Texts = Field(description="Texts of any length.")
    options: Texts = Field(min_length=2, description="The options, the same for all texts.")
    template: Text = Field(
        default=DEFAULT_TEMPLATE,
        description="The sentence, with {} for the option; it follows the text unless it has {text}, too.",
    )
    by: ChooseBy = Field(
        default="auto",
        description="detection takes one pass, pseudo_likelihood one for each token of an option; auto is "
        "detection, if the model can.",
    )

    def columns(self) -> dict[str, list[Any]]:
        """The texts: options are no list with one item per result."""
        return {"texts": self.texts}

    def settings(self) -> dict[str, Any]:
        """All other fields."""
        return {"options": self.options, "template": self.template, "by": self.by}

    def check(self, limits: Limits) -> None:
        """Refuse too many options, and long ones: each is read behind each text."""
        if len(self.options) > limits.max_options:
            raise ApiError(
                422,
                f"options has {len(self.options):,} items and a request may have {limits.max_options:,}",
                field="options",
            )
        longest = limits.max_option_characters
        named = {f"options[{number}]": option for number, option in enumerate(self.options)}
        for name, text in {"template": self.template, **named}.items():
            if len(text) > longest:
                raise ApiError(
                    422, f"{name} has {len(text):,} characters, and may have {longest:,}", field=name
                )

    def cost(self, *, row_length: int) -> int:
        """A text is read with each option and, unless by detection, once for each of its tokens."""
        return sum(
            (len(text) + len(self.template) + len(option))
            * (1 if self.by == "detection" else 1 + len(option) // CHARACTERS_OF_TOKEN)
            for text in self.texts
            for option in self.options
        )


class TaskRequest(AbilityRequest):
    """A body for a fine-tuned model: texts or pairs, lists of words, or questions with their choices."""

    def cost(self, *, row_length: int) -> int:
        """Lists within a list are read one by one, and even an empty text in them takes time."""
        first, *others = self.columns().values()
        if not others:
            return sum(len(text) if isinstance(text, str) else _length(text) for text in first)
        (second,) = others
        pairs = [
            (one, other)
            for one, given in zip(first, second, strict=True)
            for other in ([given] if isinstance(given, str) else given)
        ]
        num_nested = sum(len(given) for given in second if isinstance(given, list))
        return num_nested + pair_cost(
            *([pair[side] for pair in pairs] for side in (0, 1)), row_length=row_length
        )


def _length(words: Sequence[str]) -> int:
    return sum(len(word) + 1 for word in words)


# Answers: plain data, as the model returns it, so no objects are made to check it

result = with_config(ConfigDict(extra="forbid"))
"""Makes a field that is missing from the description an error: none is dropped in silence."""


@result
class TextSpan(TypedDict):
    """A part of a text. Positions count characters as Python does: code points, from 0."""

    text: str
    start: Annotated[int, Field(description="Position of the first character.")]
    end: Annotated[int, Field(description="Position after the last character.")]


@result
class JudgedToken(TextSpan):
    """A token as the discriminator sees it."""

    replaced: Annotated[float, Field(description="Probability that the token was replaced.")]


@result
class Detected(TypedDict):
    """A text, token by token."""

    text: str
    tokens: list[JudgedToken]


@result
class Candidate(TypedDict):
    """A token that may fill a gap."""

    token: Annotated[str, Field(description="As in the vocabulary, where ## continues a word.")]
    probability: float


@result
class Gap(TypedDict):
    """A mask and the best tokens for it."""

    start: int
    end: int
    candidates: list[Candidate]


@result
class Filled(TypedDict):
    """A text with gaps."""

    text: str
    masks: list[Gap]


@result
class RewrittenToken(TextSpan):
    """A token, or a phrase that is rewritten as one, before and after the generator."""

    original: str
    corrupted: str
    corrupted_start: int
    corrupted_end: int
    masked: Annotated[bool, Field(description="Whether the generator drew it anew.")]
    replaced: Annotated[bool, Field(description="Whether it changed.")]
    suspicion: Annotated[
        float,
        Field(description="The discriminator's probability that it was replaced; of a phrase the highest."),
    ]
    phrase: Annotated[
        int | None,
        Field(description="Number of its phrase, if the generator rewrites whole phrases; else null."),
    ]


@result
class CorruptedText(TypedDict):
    """One round of the training game."""

    text: str
    corrupted: str
    tokens: list[RewrittenToken]


@result
class ChosenOption(TypedDict):
    """The option that looks least replaced behind a text; null if the text is empty."""

    choice: Annotated[int | None, Field(description="Its place among the options, from 0.")]
    text: Annotated[str | None, Field(description="That option.")]
    probabilities: Annotated[list[float], Field(description="Of each option; they add up to 1.")]
    scores: Annotated[list[float], Field(description="Of each option: the mean logarithm of its tokens.")]


@result
class ScoreOfText(TypedDict):
    """The logarithms of all tokens; null for a text without tokens."""

    sum: Annotated[float | None, Field(description="Of two texts, the higher one looks better.")]
    mean: Annotated[float | None, Field(description="The sum per token.")]


@result
class ScoredToken(TextSpan):
    """A token and its logarithm, by method."""

    scores: dict[Method, float]


@result
class ScoredText(TypedDict):
    """How acceptable a text looks, by method."""

    text: str
    num_tokens: int
    num_unknown: Annotated[int, Field(description="Tokens that the vocabulary does not have.")]
    scores: dict[Method, ScoreOfText]
    tokens: NotRequired[list[ScoredToken]]


class RequestLimits(BaseModel):
    """How large a request may be."""

    max_texts: int
    max_characters: int = Field(description="Characters of all texts together.")
    max_body: int = Field(description="Bytes of the body.")


class ModelFacts(BaseModel):
    """What the server offers."""

    name: str
    abilities: list[str] = Field(description="Each one is a path.")
    task: str | None = Field(description="What it was fine-tuned for; null if it was only pre-trained.")
    labels: list[str] = Field(description="Classes or tags; empty if the model was not trained for any.")
    max_length: int = Field(description="Tokens that the model reads at once; longer texts go in windows.")
    precision: str = Field(description="Of its matrix products: fp32, bf16, fp16 or, of a graph, int8.")
    precision_reason: str = Field(description="Why it is this one.")
    limits: RequestLimits


class ServerHealth(BaseModel):
    """State of the server."""

    status: str


# The table, and the way from a body to a call


@dataclass(frozen=True)
class Endpoint:
    """What an ability takes and what it answers."""

    request: type[AbilityRequest]
    results: Any
    """The type of the list of results."""
    warms_up: bool = True
    """Whether its example is computed when the server starts."""

    @property
    def example(self) -> dict[str, Any]:
        """A body that works with any model that has the ability."""
        (found,) = self.request.model_json_schema()["examples"]
        return dict(found)


ENDPOINTS: Mapping[str, Endpoint] = MappingProxyType(
    {
        "detect": Endpoint(DetectRequest, list[Detected]),
        "fill": Endpoint(FillRequest, list[Filled]),
        "corrupt": Endpoint(CorruptRequest, list[CorruptedText]),
        "score": Endpoint(ScoreRequest, list[ScoredText]),
        # Words that a tokenizer may not know; and what it computes, `score` has computed.
        "choose": Endpoint(OptionsRequest, list[ChosenOption], warms_up=False),
        "embed": Endpoint(EmbedRequest, list[list[float]]),
    }
)
"""Ability of a pre-trained model, which is a path and a method of `Model` -> its body and its results."""


def endpoint_of(ability: str, *, is_tuned: bool) -> Endpoint:
    """What an ability takes and answers: from the table above, or as the family of a task describes it.

    Both have `choose`: what it takes depends on whether the model was fine-tuned.
    """
    is_of_task = ability not in ENDPOINTS or (is_tuned and ability in task_abilities())
    return task_endpoint(ability) if is_of_task else ENDPOINTS[ability]


@functools.cache
def task_endpoint(ability: str) -> Endpoint:
    """What the family of a task describes."""
    described = task_abilities()[ability]
    fields: dict[str, Any] = {}
    for name, kind, text, is_required in described_fields(described.request):
        fields[name] = (request_type(kind), Field(... if is_required else None, description=text))
    document = described.request.__doc__
    request = create_model(described.request.__name__, __base__=TaskRequest, __doc__=document, **fields)
    request.model_config["json_schema_extra"] = {"examples": [dict(described.example)]}
    return Endpoint(request, GenericAlias(list, (result_type(described.answer),)))


def described_fields(described: type) -> Iterator[tuple[str, Any, str | None, bool]]:
    """Name, type, description of each field of a family's TypedDict, and whether it is required."""
    for name, hint in get_type_hints(described, include_extras=True).items():
        is_required = get_origin(hint) is not NotRequired
        kind = hint if is_required else get_args(hint)[0]
        kind, *texts = get_args(kind) if get_origin(kind) is Annotated else (kind,)
        yield name, kind, texts[0] if texts else None, is_required


def request_type(kind: Any) -> Any:
    """The type of a field with its texts checked; a list ends at its first error."""
    if kind is str:
        return Text
    parts = tuple(request_type(part) for part in get_args(kind))
    if get_origin(kind) is list:
        return Annotated[GenericAlias(list, parts), Field(fail_fast=True)]
    return functools.reduce(operator.or_, parts) if get_origin(kind) in (Union, UnionType) else kind


def result_type(kind: Any) -> Any:
    """The type of an answer with its TypedDicts as pydantic reads them."""
    parts = tuple(result_type(part) for part in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return functools.reduce(operator.or_, parts)
    if get_origin(kind) is list:
        return GenericAlias(list, parts)
    if not is_typeddict(kind):
        return kind
    fields = {
        name: Annotated[result_type(part), Field(description=text)]
        for name, part, text, _ in described_fields(kind)
    }
    make: Any = TypedDict
    made = make(kind.__name__, fields)
    made.__doc__ = kind.__doc__
    return result(made)


def make_call(
    ability: str, body: AbilityRequest, limits: Limits, *, row_length: int, num_readings: int = 1
) -> Call:
    """The call that a body asks for, within the limits.

    The model reads `row_length` tokens at once, and each text so many times.
    """
    body.check(limits)
    columns = body.columns()
    for name, values in columns.items():
        if len(values) > limits.max_texts:
            raise ApiError(
                422,
                f"{name} has {len(values):,} items and a request may have {limits.max_texts:,}: send several "
                "requests",
                field=name,
            )
    if len({len(values) for values in columns.values()}) > 1:
        counts = " and ".join(f"{len(values):,} {name}" for name, values in columns.items())
        raise ApiError(422, f"{counts}: the lists must have the same length", field=list(columns)[-1])
    cost = num_readings * body.cost(row_length=row_length)
    if cost > limits.max_characters:
        raise ApiError(
            422,
            f"{' and '.join(columns)}: {cost:,} characters to read, and a request may have "
            f"{limits.max_characters:,}: send several requests",
            field=next(iter(columns)),
        )
    return Call(ability=ability, columns=columns, options=body.settings(), cost=cost)


def explain_invalid(errors: Sequence[Mapping[str, Any]]) -> ApiError:
    """What FastAPI found wrong with a body -> the first error, with the field that it is about."""
    found = errors[0]
    place = found["loc"][1:]
    if found["type"] == "json_invalid":
        return ApiError(422, f"the body is not JSON: {found['ctx']['error']} at {place[0]}", field="body")
    if found["type"] == UNKNOWN:
        return ApiError(422, found["msg"], field=found["ctx"]["field"])
    if not place:
        return ApiError(422, f"the body cannot be read: {found['msg']}", field="body")
    # Names of the types that were tried stand between the positions in lists.
    field = f"{place[0]}" + "".join(f"[{part}]" for part in place[1:] if isinstance(part, int))
    return ApiError(422, f"{field}: {found['msg']}", field=field)


def bounds_schema(endpoint: Endpoint, limits: Limits) -> dict[str, Any]:
    """The limits of a server for the lists of a body, as JSON Schema."""

    def can_be_list(schema: dict[str, Any]) -> bool:
        return any(branch.get("type") == "array" for branch in (schema, *schema.get("anyOf", ())))

    fields = endpoint.request.model_json_schema()["properties"]
    lists = [name for name, schema in fields.items() if can_be_list(schema)]
    most = {name: limits.max_options if name == "options" else limits.max_texts for name in lists}
    return {"properties": {name: {"maxItems": count} for name, count in most.items()}}
