"""What the API answers with -> its description. Answers are not checked against it: tests do that.

Body of a request, as bytes -> a call of the model, every field checked.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from electra.prediction.spans import MASK
from electra.serve.batching import Call
from electra.serve.errors import RefusalError
from electra.serve.limits import Limits, pair_cost
from electra.tasks.families.similarity import Pooling


class Span(BaseModel):
    """A part of a text. Characters are counted as Python does: code points, from 0."""

    text: str
    start: int = Field(description="Its first character.")
    end: int = Field(description="One past its last character.")


class JudgedToken(Span):
    """A token, and what the discriminator makes of it."""

    replaced: float = Field(description="The probability that it was replaced.")


class Detected(BaseModel):
    """A text, token by token."""

    text: str
    tokens: list[JudgedToken]


class Candidate(BaseModel):
    """A token that could stand in a gap."""

    token: str = Field(description="As in the vocabulary, where ## continues a word.")
    probability: float


class Gap(BaseModel):
    """A mask, and the best tokens for it."""

    start: int
    end: int
    candidates: list[Candidate]


class Filled(BaseModel):
    """A text with gaps."""

    text: str
    masks: list[Gap]


class RewrittenToken(Span):
    """A token before and after the generator, and what the discriminator makes of it."""

    original: str
    corrupted: str
    corrupted_start: int
    corrupted_end: int
    masked: bool = Field(description="Whether the generator drew it anew.")
    replaced: bool = Field(description="Whether it is another one now.")
    suspicion: float = Field(description="The discriminator's probability that it was replaced.")


class Corrupted(BaseModel):
    """One turn of the training game."""

    text: str
    corrupted: str
    tokens: list[RewrittenToken]


class Compared(BaseModel):
    """How near two texts are in meaning."""

    similarity: float = Field(description="The cosine of their vectors.")


class OneClass(BaseModel):
    """The class of a text; null if the text is empty."""

    label: str | None
    probabilities: dict[str, float]


class SeveralLabels(BaseModel):
    """All labels of a text."""

    labels: list[str]
    probabilities: dict[str, float]


class OneValue(BaseModel):
    """The value of a text; null if the text is empty."""

    value: float | None


class TaggedWord(Span):
    """A word with its tag."""

    tag: str
    confidence: float


class Chunk(Span):
    """Words that belong together."""

    type: str


class Tagged(BaseModel):
    """A text, word by word; words that were given are joined by blanks."""

    text: str
    words: list[TaggedWord]
    chunks: list[Chunk]


class Answered(BaseModel):
    """The part of a context that answers the question."""

    text: str = Field(description="Empty if there seems to be no answer.")
    start: int | None
    end: int | None
    score: float
    no_answer: float | None = Field(
        description="The probability that there is none; null if the model was not trained to tell."
    )


RESULTS: Mapping[str, Any] = MappingProxyType(
    {
        "detect": list[Detected],
        "fill": list[Filled],
        "corrupt": list[Corrupted],
        "embed": list[list[float]],
        "similarity": list[Compared],
        "classify": list[OneClass | SeveralLabels | OneValue],
        "tag": list[Tagged],
        "answer": list[Answered],
    }
)
"""Ability -> one answer for each text."""


class RequestLimits(BaseModel):
    """How large a request may be."""

    max_texts: int
    max_characters: int = Field(description="Of all texts together.")
    max_body: int = Field(description="Bytes.")


class ModelFacts(BaseModel):
    """What is served here."""

    name: str
    abilities: list[str] = Field(description="Each is a path.")
    labels: list[str] = Field(description="Classes or tags; empty if the model was not trained for any.")
    max_length: int = Field(description="Tokens that it reads at once; longer texts are read in windows.")
    limits: RequestLimits


class Health(BaseModel):
    """How the server is."""

    status: str


MAX_CANDIDATES = 20_000
"""Of all masks of a request together."""
LARGEST_SEED = 2**53 - 1
"""Above this the numbers of JavaScript have gaps."""

# The first error is enough; a list of a million of them would be larger than the body.
Texts = Annotated[list[str], Field(fail_fast=True)]


class Request(BaseModel):
    """What all bodies have in common: nothing is guessed, and no field is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def example(**values: Any) -> ConfigDict:
    """The config of a request that the description of the API shows like this."""
    return ConfigDict(json_schema_extra={"examples": [values]})


class DetectRequest(Request):
    """Texts in which to look for replaced tokens."""

    model_config = example(texts=["the chef ate the meal"])
    texts: Texts = Field(description="Texts of any length.")


class FillRequest(Request):
    """Texts with gaps."""

    model_config = example(texts=[f"the chef {MASK} the meal"], top=3)
    texts: Texts = Field(description=f"Texts with {MASK} where something is missing.")
    top: int = Field(default=5, ge=1, le=100, description="Candidates for each gap.")


class CorruptRequest(Request):
    """Texts to rewrite."""

    model_config = example(texts=["the chef cooked the meal"], mask_prob=0.3, seed=1)
    texts: Texts = Field(description="Texts of any length.")
    mask_prob: float = Field(default=0.15, gt=0, le=1, description="Share of tokens that are drawn anew.")
    seed: int = Field(
        default=0, ge=0, le=LARGEST_SEED, description="The same seed does the same to the same text."
    )


class EmbedRequest(Request):
    """Texts to turn into vectors."""

    model_config = example(texts=["a small city", "a large mountain"])
    texts: Texts = Field(description="Texts of any length.")
    pooling: Pooling | None = Field(
        default=None,
        description="How the vectors of tokens become one; by default as the model was trained, or the mean.",
    )


class SimilarityRequest(Request):
    """Pairs of texts to compare."""

    model_config = example(texts=["a small city"], pairs=["a little town"])
    texts: Texts = Field(description="The first text of each pair.")
    pairs: Texts = Field(description="The second text of each pair.")


class ClassifyRequest(Request):
    """Texts, or pairs of texts, to classify."""

    model_config = example(texts=["the music was good"])
    texts: Texts = Field(description="Texts of any length, or the first text of each pair.")
    pairs: Texts | None = Field(default=None, description="The second text of each pair.")


class TagRequest(Request):
    """Texts whose words get tags."""

    model_config = example(texts=["the river is in Zürich", ["already", "cut", "into", "words"]])
    texts: list[str | Texts] = Field(fail_fast=True, description="Texts, or lists of words.")


class AnswerRequest(Request):
    """Questions, each with the text that may answer it."""

    model_config = example(questions=["where is the river ?"], contexts=["the river is in a small city"])
    questions: Texts = Field(description="Questions.")
    contexts: Texts = Field(description="The text in which to find the answer to each question.")


REQUESTS: Mapping[str, type[Request]] = MappingProxyType(
    {
        "detect": DetectRequest,
        "fill": FillRequest,
        "corrupt": CorruptRequest,
        "embed": EmbedRequest,
        "similarity": SimilarityRequest,
        "classify": ClassifyRequest,
        "tag": TagRequest,
        "answer": AnswerRequest,
    }
)
"""Ability -> what its body looks like."""


def read_call(ability: str, body: bytes, limits: Limits, *, row_length: int) -> Call:
    """The call that a body asks for; `row_length`: tokens that the model reads at once."""
    try:
        request = REQUESTS[ability].model_validate_json(body)
    except ValidationError as error:
        raise explained(error) from None
    values = dict(request)
    columns = {name: value for name, value in values.items() if isinstance(value, list)}
    options = {name: value for name, value in values.items() if name not in columns}
    check_lengths(columns, limits)
    call = Call(
        ability=ability, columns=columns, options=options, cost=cost_of(columns, row_length=row_length)
    )
    if call.cost > limits.max_characters:
        raise RefusalError(
            422,
            f"{' and '.join(columns)} have {call.cost:,} characters to read, and a request may have "
            f"{limits.max_characters:,}: send them in several",
            field=next(iter(columns)),
        )
    if ability == "fill":
        check_candidates(**values)
    return call


def explained(error: ValidationError) -> RefusalError:
    """The first thing that is wrong, and where."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    if not found["loc"]:
        return RefusalError(422, f"the body cannot be read: {found['msg']}", field="body")
    field = "".join(named(found["loc"]))
    return RefusalError(422, f"{field}: {found['msg']}", field=field)


def named(place: tuple[int | str, ...]) -> Iterator[str]:
    """A field and the numbers in its lists, without the types that were tried there."""
    yield str(place[0])
    yield from (f"[{part}]" for part in place[1:] if isinstance(part, int))


def check_lengths(columns: Mapping[str, list[Any]], limits: Limits) -> None:
    """Refuse too many texts, and pairs that are none."""
    for name, values in columns.items():
        if len(values) > limits.max_texts:
            raise RefusalError(
                422,
                f"{name} has {len(values):,} items, and {limits.max_texts} are allowed in a request: send "
                "them in several",
                field=name,
            )
    if len({len(values) for values in columns.values()}) > 1:
        counts = " and ".join(f"{len(values)} {name}" for name, values in columns.items())
        raise RefusalError(422, f"{counts}: expected one of each for the other", field=list(columns)[-1])


def cost_of(columns: Mapping[str, list[Any]], *, row_length: int) -> int:
    """Characters to read."""
    if len(columns) == 2:
        first, second = columns.values()
        return pair_cost(first, second, row_length=row_length)
    (texts,) = columns.values()
    # An empty word takes time, too.
    return sum(len(text) if isinstance(text, str) else sum(len(word) + 1 for word in text) for text in texts)


def check_candidates(texts: list[str], top: int) -> None:
    """Refuse to list more candidates than anybody reads."""
    num_masks = sum(text.count(MASK) for text in texts)
    if num_masks * top > MAX_CANDIDATES:
        raise RefusalError(
            422,
            f"{top} candidates for {num_masks:,} masks are more than {MAX_CANDIDATES:,}: ask for fewer",
            field="top",
        )


def body_schema(ability: str, limits: Limits) -> dict[str, Any]:
    """What a body looks like, with the bounds of a server."""
    schema = REQUESTS[ability].model_json_schema()
    for field in schema["properties"].values():
        for branch in (field, *field.get("anyOf", ())):
            if branch.get("type") == "array":
                branch["maxItems"] = limits.max_texts
    return schema
