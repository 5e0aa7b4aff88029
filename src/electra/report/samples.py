"""Sample rows -> HTML in which the discriminator's verdict on each token is seen, with and without colour."""

from dataclasses import dataclass
from itertools import zip_longest

from electra.report.markup import Html, details, element, join, percent, text
from electra.report.runs import Run, SampleRow, Samples

MOST_ROWS = 6
MOST_EARLIER = 3
_PADDING = "[PAD]"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a token."""

    class_: str
    sign: str
    says: str


CAUGHT = Outcome(class_="caught", sign="✓", says="replaced, and noticed")
MISSED = Outcome(class_="missed", sign="✗", says="replaced, not noticed")
ALARM = Outcome(class_="alarm", sign="?", says="original, but suspected")
FINE = Outcome(class_="fine", sign="", says="original, and believed")


def outcome(*, replaced: bool, suspicion: float) -> Outcome:
    """The verdict at probability one half."""
    if replaced:
        return CAUGHT if suspicion >= 0.5 else MISSED
    return ALARM if suspicion >= 0.5 else FINE


def samples_html(run: Run) -> Html:
    """The newest rows, and how some earlier ones looked."""
    known = [samples for samples in run.samples if samples.rows]
    if not known:
        return element("p", "No samples were written.", class_="quiet")
    *earlier, newest = known
    chosen = [earlier[len(earlier) * part // MOST_EARLIER] for part in range(min(MOST_EARLIER, len(earlier)))]
    has_verdicts = any(row.suspicion for row in newest.rows)
    return join(
        [
            _legend() if has_verdicts else "",
            element("p", _title(newest), class_="quiet"),
            _rows(newest),
            *(details(_title(samples), _rows(samples)) for samples in reversed(chosen)),
        ]
    )


def _legend() -> Html:
    signs = join(
        element(
            "span",
            join([element("span", f"token{kind.sign}", class_=f"token {kind.class_}"), " ", kind.says]),
        )
        for kind in (CAUGHT, MISSED, ALARM)
    )
    return element("p", signs, class_="legend")


def _title(samples: Samples) -> str:
    return f"Step {samples.step:,.0f}"


def _rows(samples: Samples) -> Html:
    return join(_row(row) for row in samples.rows[:MOST_ROWS])


def _row(row: SampleRow) -> Html:
    lines = [
        ("original", _plain(row.original)),
        ("masked", _masked(row) if row.masked else ""),
        ("corrupted", _corrupted(row) if row.corrupted else ""),
        ("", _score(row)),
    ]
    shown = (element("dt", name) + element("dd", line) for name, line in lines if line)
    return element("dl", Html("".join(shown)), class_="sample")


def _plain(tokens: list[str]) -> Html:
    return text(" ".join(token for token in tokens if token != _PADDING))


def _masked(row: SampleRow) -> Html:
    parts = []
    for token, original in zip_longest(row.masked, row.original[: len(row.masked)]):
        if token != _PADDING:
            is_changed = original is not None and token != original
            parts.append(element("span", token, class_="mask", title=original) if is_changed else text(token))
    return join(parts, " ")


def _corrupted(row: SampleRow) -> Html:
    parts = []
    for index, token in enumerate(row.corrupted):
        if token == _PADDING and index >= 1 and row.original[index : index + 1] == [_PADDING]:
            continue
        parts.append(_token(row, index, token))
    return join(parts, " ")


def _token(row: SampleRow, index: int, token: str) -> Html:
    original = row.original[index] if index < len(row.original) else token
    replaced = row.replaced[index] if index < len(row.replaced) else token != original
    if index >= len(row.suspicion):
        return element("span", token, class_="mask", title=f"was {original}") if replaced else text(token)
    suspicion = row.suspicion[index]
    kind = outcome(replaced=replaced, suspicion=suspicion)
    was = f"was “{original}”, " if replaced else ""
    title = f"{was}{percent(suspicion)} suspicious: {kind.says}"
    if kind is FINE:
        # Below one tenth a shade would be noise.
        shade = f"--doubt: {suspicion:.0%}" if suspicion >= 0.1 else ""
        return element("span", token, class_="token fine", title=title, style=shade) if shade else text(token)
    return element("span", f"{token}{kind.sign}", class_=f"token {kind.class_}", title=title)


def _score(row: SampleRow) -> str:
    pairs = list(zip(row.replaced, row.suspicion, strict=False))
    if not pairs:
        return ""
    kinds = [outcome(replaced=replaced, suspicion=suspicion) for replaced, suspicion in pairs]
    replaced = kinds.count(CAUGHT) + kinds.count(MISSED)
    return f"{kinds.count(CAUGHT)} of {replaced} replaced tokens noticed, {kinds.count(ALARM)} false alarms"
