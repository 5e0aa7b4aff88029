"""Sample rows -> tokens with the discriminator's verdict on each, told by class (colour), sign and title."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from electra.report.runs import RunRecord, SampleRow
from electra.show import percent

MOST_ROWS = 6
MOST_EARLIER = 3
_PADDING = "[PAD]"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What the discriminator made of a token."""

    class_: str
    sign: str
    says: str


CAUGHT = Outcome(class_="caught", sign="✓", says="replaced, and noticed")
MISSED = Outcome(class_="missed", sign="✗", says="replaced, not noticed")
ALARM = Outcome(class_="alarm", sign="?", says="original, but suspected")
FINE = Outcome(class_="fine", sign="", says="original, and believed")


@dataclass(frozen=True, kw_only=True)
class Token:
    """A token as the page shows it; without a class it is plain text."""

    text: str
    class_: str = ""
    title: str = ""
    style: str = ""


@dataclass(frozen=True, kw_only=True)
class ShownRow:
    """A row as the page shows it; what the objective does not have is empty."""

    original: str
    masked: Sequence[Token]
    corrupted: Sequence[Token]
    score: str


@dataclass(frozen=True, kw_only=True)
class ShownSamples:
    """The rows of one step."""

    title: str
    rows: Sequence[ShownRow]
    has_verdicts: bool


def outcome(*, replaced: bool, suspicion: float) -> Outcome:
    """The verdict at a probability of one half."""
    if replaced:
        return CAUGHT if suspicion >= 0.5 else MISSED
    return ALARM if suspicion >= 0.5 else FINE


def shown_samples(run: RunRecord) -> list[ShownSamples]:
    """The newest rows first, then some earlier ones, evenly spread over the run."""
    known = [samples for samples in run.samples if samples.rows]
    if not known:
        return []
    *earlier, newest = known
    chosen = [earlier[len(earlier) * part // MOST_EARLIER] for part in range(min(MOST_EARLIER, len(earlier)))]
    return [
        ShownSamples(
            title=f"Step {samples.step:,.0f}",
            rows=[shown_row(row) for row in samples.rows[:MOST_ROWS]],
            has_verdicts=any(row.suspicion for row in samples.rows),
        )
        for samples in (newest, *reversed(chosen))
    ]


def shown_row(row: SampleRow) -> ShownRow:
    """A row with every token marked."""
    return ShownRow(
        original=" ".join(token for token in row.original if token != _PADDING),
        masked=_masked(row),
        corrupted=[
            _token(row, index, token)
            for index, token in enumerate(row.corrupted)
            if token != _PADDING or row.original[index : index + 1] != [_PADDING]
        ],
        score=_score(row),
    )


def _masked(row: SampleRow) -> list[Token]:
    tokens = []
    for token, original in zip_longest(row.masked, row.original[: len(row.masked)]):
        if token != _PADDING:
            is_changed = original is not None and token != original
            tokens.append(
                Token(text=token, class_="mask", title=original) if is_changed else Token(text=token)
            )
    return tokens


def _token(row: SampleRow, index: int, token: str) -> Token:
    original = row.original[index] if index < len(row.original) else token
    replaced = row.replaced[index] if index < len(row.replaced) else token != original
    if _is_mask(row, index):
        return Token(text=token, class_="mask", title=original)
    if index >= len(row.suspicion):
        return Token(text=token, class_="mask", title=f"was {original}") if replaced else Token(text=token)
    suspicion = row.suspicion[index]
    kind = outcome(replaced=replaced, suspicion=suspicion)
    was = f"was “{original}”, " if replaced else ""
    title = f"{was}{percent(suspicion)} suspicious: {kind.says}"
    # Below one tenth a shade would be noise.
    if kind is FINE and suspicion < 0.1:
        return Token(text=token)
    style = f"--doubt: {suspicion:.0%}" if kind is FINE else ""
    return Token(text=f"{token}{kind.sign}", class_=f"token {kind.class_}", title=title, style=style)


def _is_mask(row: SampleRow, index: int) -> bool:
    """Whether a token is neither original nor replaced: single_pass has masks in the row that it judges."""
    both = index < min(len(row.replaced), len(row.corrupted), len(row.original))
    return both and not row.replaced[index] and row.corrupted[index] != row.original[index]


def _score(row: SampleRow) -> str:
    pairs = [
        pair
        for index, pair in enumerate(zip(row.replaced, row.suspicion, strict=False))
        if not _is_mask(row, index)
    ]
    if not pairs:
        return ""
    kinds = [outcome(replaced=replaced, suspicion=suspicion) for replaced, suspicion in pairs]
    replaced = kinds.count(CAUGHT) + kinds.count(MISSED)
    return f"{kinds.count(CAUGHT)} of {replaced} replaced tokens noticed, {kinds.count(ALARM)} false alarms"
