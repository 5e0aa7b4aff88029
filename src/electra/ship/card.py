"""What was exported, and what is known of it -> README.md, the card of a model: facts, and nothing else."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from electra import files
from electra.ship import card_code
from electra.ship.card_code import kind_of
from electra.ship.card_facts import Sections
from electra.ship.exporting import Source
from electra.tasks.families import build_family
from electra.tasks.layout import HEAD_WEIGHTS

CARD = "README.md"

WHAT = {
    "discriminator": "A discriminator of ELECTRA: it tells how probably each token of a text was replaced.",
    "generator": "A generator of ELECTRA: it proposes tokens for the gaps of a text.",
    "encoder": "An encoder of ELECTRA: it turns texts into vectors, and is a start for fine-tuning.",
    "classification": "An ELECTRA that tells the class of a text, or of a pair of texts.",
    "multi_label": "An ELECTRA that tells which labels a text has, or a pair of texts.",
    "regression": "An ELECTRA that gives a text, or a pair of texts, a value.",
    "multiple_choice": "An ELECTRA that chooses how a text goes on.",
    "similarity": "An ELECTRA that turns texts into vectors, which are near where texts mean the same.",
    "tagging": "An ELECTRA that gives each word of a text a tag.",
    "question_answering": "An ELECTRA that finds the answer to a question in a text.",
}
PIPELINE_TAGS = {
    "generator": "fill-mask",
    "encoder": "feature-extraction",
    "classification": "text-classification",
    "multi_label": "text-classification",
    "regression": "text-classification",
    "multiple_choice": "multiple-choice",
    "similarity": "sentence-similarity",
    "tagging": "token-classification",
    "question_answering": "question-answering",
}
"""Kind -> what the Hugging Face hub calls its task."""

NO_HEAD = (
    f"transformers has no head that computes the same as this one. `ElectraModel` loads the encoder; the "
    f"head is in `{HEAD_WEIGHTS}`, by the names that `electra` gives it."
)
NAMES_ARE_TEXT = (
    'The names of special tokens are plain text to the tokenizer, as they were in training: "[SEP]" in a '
    "text separates nothing. `tokenizer(text, split_special_tokens=False)` reads them as tokens."
)
NAMES_ARE_TOKENS = (
    'The tokenizer reads the names of special tokens as tokens, so that "[MASK]" shows a gap. With '
    "`tokenizer(text, split_special_tokens=True)` they are plain text, as they were in training."
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """What only the owner of a model can say."""

    name: str
    license: str = ""
    language: Sequence[str] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """How an export is loaded."""

    library: str
    """By which it is known to the Hugging Face hub."""
    ways: Mapping[str, Sequence[str]]
    """Name of a library -> lines of Python; without lines it is left out."""
    has_other_head: bool = False
    """Whether transformers sees the encoder only, of a model that has a head."""


def for_transformers(source: Source, folder: Path, architecture: str) -> Loaded:
    """An export for transformers."""
    vectors = kind_of(source) == "similarity"
    return Loaded(
        library="sentence-transformers" if vectors else "transformers",
        ways={
            "sentence-transformers" if vectors else "transformers": card_code.with_transformers(
                source, architecture
            ),
            "electra": card_code.with_electra(source, engine="torch"),
        },
        has_other_head=(folder / HEAD_WEIGHTS).is_file(),
    )


def for_onnx(source: Source, outputs: Sequence[str]) -> Loaded:
    """An export for onnxruntime."""
    return Loaded(
        library="onnx",
        ways={
            "onnxruntime": card_code.with_onnxruntime(source, outputs),
            "electra": card_code.with_electra(source, engine="onnx"),
        },
    )


def write_card(folder: Path, source: Source, loaded: Loaded, given: Given, sections: Sections) -> None:
    """Write README.md."""
    text = "\n".join(card_lines(source, loaded, given, sections)) + "\n"
    files.write_file(folder / CARD, lambda file: file.write(text.encode()))


def card_lines(source: Source, loaded: Loaded, given: Given, sections: Sections) -> Iterator[str]:
    """The card, line by line."""
    yield from ("---", front_matter(source, loaded, given).rstrip(), "---", "")
    yield from (f"# {given.name}", "", WHAT[kind_of(source)], "")
    if source.part is None and (labels := build_family(dict(source.about), where=source.path).labels()):
        yield from (f"Labels: {', '.join(labels)}", "")
    if loaded.has_other_head:
        yield from (NO_HEAD, "")
    for library, lines in loaded.ways.items():
        if lines:
            yield from (f"## With {library}", "", "```python", *lines, "```", "")
    yield from (NAMES_ARE_TOKENS if source.part == "generator" else NAMES_ARE_TEXT, "")
    for title, facts in sections.items():
        yield from (f"## {title}", "", "| | |", "|---|---|")
        yield from (f"| {cell(name)} | {cell(value)} |" for name, value in facts.items())
        yield ""
    yield "Made with electra."


def front_matter(source: Source, loaded: Loaded, given: Given) -> str:
    """What the hub reads; keys without a value are left out."""
    values: dict[str, Any] = {
        "license": given.license,
        "language": list(given.language),
        "library_name": loaded.library,
        "pipeline_tag": PIPELINE_TAGS.get(kind_of(source)),
        "tags": ["electra"],
    }
    present = {key: value for key, value in values.items() if value}
    text: str = yaml.safe_dump(present, sort_keys=False, allow_unicode=True)
    return text


def cell(text: str) -> str:
    """Text that stays in its cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
