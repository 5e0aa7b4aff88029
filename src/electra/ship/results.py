"""What the API answers with -> its description. Answers are not checked against it: tests do that."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, Field


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
