"""What was seen when a model folder was opened -> what is wrong or fine, and what it is good for."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from electra.report.findings import Finding, command, sorted_findings
from electra.show import listed, short

LARGE_WEIGHT = 1.0
"""Root mean square of a matrix. Weights begin at 0.02; the largest matrices of the recipe `minutes` have 0.15
after 4 minutes and 0.34 after 30."""
PADDED = 128
"""Rows of embeddings beyond the vocabulary that come from rounding its size up for matrix units."""

Findings = Iterator[Finding]


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What opening a model told; what could not be read is in `problem`."""

    folder: Path
    problem: str = ""
    """Why it cannot be used, with the way out."""
    damage: Sequence[str] = ()
    is_fine_tuned: bool = False
    num_weights: int = 0
    not_finite: Sequence[str] = ()
    """Weights with values that are no numbers."""
    all_zero: Sequence[str] = ()
    """Matrices without any other number."""
    largest: tuple[str, float] | None = None
    """The matrix with the largest root mean square, and that."""
    embedding_rows: int | None = None
    vocab_size: int | None = None
    """Of its tokenizer."""
    tokens_read: int | None = None
    is_lightly_trained: bool = False


def judge_model(facts: ModelFacts) -> list[Finding]:
    """All that is to be said of a model, the worst first."""
    return sorted_findings(finding for rule in _RULES for finding in rule(facts))


def _files(facts: ModelFacts) -> Findings:
    if facts.damage:
        says = f"files are damaged: {listed(facts.damage, most=2)}. Copy them from where they are whole"
        yield Finding(key="damaged_model", severity="wrong", says=says)
    elif facts.problem:
        yield Finding(key="unusable_model", severity="wrong", says=facts.problem)
    else:
        says = f"it can be opened: {short(facts.num_weights)} weights"
        yield Finding(key="unusable_model", severity="fine", says=says)


def _weights(facts: ModelFacts) -> Findings:
    retrain = "Go back to an earlier checkpoint, or train again with half the learning rate"
    if facts.not_finite:
        says = f"weights are no numbers: {listed(facts.not_finite, most=3)}. {retrain}"
        yield Finding(key="weights_not_finite", severity="wrong", says=says)
    elif facts.num_weights and not facts.problem:
        yield Finding(key="weights_not_finite", severity="fine", says="all weights are numbers")
    if facts.all_zero:
        says = f"all numbers are 0 in {listed(facts.all_zero, most=3)}: these layers compute nothing"
        yield Finding(key="zero_weights", severity="wrong", says=says)
    if facts.largest is not None and not facts.not_finite:
        name, size = facts.largest
        says = f"the largest matrix, {name}, has a root mean square of {short(size)}"
        if size > LARGE_WEIGHT:
            says += (
                f"; healthy is below {LARGE_WEIGHT:g}. It may overflow in fp16, and learns a task badly. "
                f"{retrain}"
            )
            yield Finding(key="large_weights", severity="watch", says=says)
        else:
            yield Finding(
                key="large_weights", severity="fine", says=f"{says}; below {LARGE_WEIGHT:g} is healthy"
            )


def _vocabulary(facts: ModelFacts) -> Findings:
    if facts.embedding_rows is None or facts.vocab_size is None:
        return
    says = (
        f"its tokenizer knows {facts.vocab_size:,} tokens, the model has embeddings for "
        f"{facts.embedding_rows:,}"
    )
    spare = facts.embedding_rows - facts.vocab_size
    if spare < 0:
        says += ": put the tokenizer there that the model was trained with"
        yield Finding(key="vocabulary_mismatch", severity="wrong", says=says)
    elif spare > PADDED:
        says += ": is it the tokenizer that it was trained with? Ids would mean other tokens"
        yield Finding(key="vocabulary_mismatch", severity="watch", says=says)
    else:
        yield Finding(key="vocabulary_mismatch", severity="fine", says=says)


def _reading(facts: ModelFacts) -> Findings:
    if facts.problem or facts.damage:
        return
    if facts.tokens_read is None and facts.is_fine_tuned:
        return
    if facts.tokens_read is None:
        says = (
            "nobody wrote down how much it has read: fine-tuning then takes the paper's values, for "
            "encoders with "
            "days of training"
        )
        yield Finding(key="tokens_read", severity="note", says=says)
        return
    says = f"its encoder has read {short(facts.tokens_read)} tokens"
    if facts.is_lightly_trained:
        says += (
            ", few: fine-tuning takes mean pooling without layer decay by itself. It helps with words (tags, "
            "chunks) before it helps with whole sentences; compare with random weights"
        )
    cure = ""
    if facts.is_lightly_trained and not facts.is_fine_tuned:
        cure = command(
            "finetune",
            {"model": "none", "like": facts.folder, "task": "TASK", "data": "DATA", "out": "RANDOM"},
        )
    yield Finding(key="tokens_read", severity="note", says=says, cure=cure)


_RULES = (_files, _weights, _vocabulary, _reading)
