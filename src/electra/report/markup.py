"""Values -> HTML, with everything escaped that comes from outside.

Numbers -> what a person reads.
"""

from collections.abc import Iterable, Sequence
from html import escape


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(value: object) -> Html:
    """Any value as HTML: what is not yet is escaped."""
    return value if isinstance(value, Html) else Html(escape(str(value), quote=True))


def join(parts: Iterable[object], separator: str = "") -> Html:
    """Pieces one after another."""
    return Html(separator.join(text(part) for part in parts))


def element(tag: str, content: object = "", **attributes: object) -> Html:
    """`<tag name="value">content</tag>`; `class_` is written `class`, an attribute that is "" is left out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{text(str(value))}"'
        for name, value in attributes.items()
        if value != ""
    )
    return Html(f"<{tag}{given}>{text(content)}</{tag}>")


def table(head: Sequence[object], rows: Iterable[Sequence[object]], *, class_: str = "") -> Html:
    """A table that scrolls by itself where it is too wide; the first cell of a row is its head.

    Each cell knows its column's name, for screens on which a style sheet takes columns apart.
    """
    top = element("tr", join(element("th", cell, scope="col") for cell in head))

    def cells(row: Sequence[object]) -> list[Html]:
        names = ["" if isinstance(name, Html) else name for name in head[1:]]
        return [element("td", cell, data_label=name) for name, cell in zip(names, row[1:], strict=True)]

    body = join(element("tr", join([element("th", row[0], scope="row"), *cells(row)])) for row in rows)
    inner = (element("thead", top) if head else Html("")) + element("tbody", body)
    return element("div", element("table", Html(inner), class_=class_), class_="scroll", tabindex="0")


def section(identity: str, title: object, *content: object) -> Html:
    """A part of the page that can be linked to."""
    return element("section", join([element("h2", title), *content]), id=identity)


def details(summary: object, *content: object) -> Html:
    """A part that opens when it is asked for."""
    return element("details", join([element("summary", summary), *content]))


_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

_TIMES = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def short(value: float | None) -> str:
    """About three digits: 0.123, 12.3, 1.23M; a dash for nothing; powers of ten where no prefix reaches."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1e18 or 0 < size < 1e-3:
        return f"{value:.2e}".replace("e-0", "e-").replace("e+", "e")
    for scale, prefix in _PREFIXES:
        if size >= scale:
            return f"{_digits(value / scale)}{prefix}"
    return _digits(value)


def _digits(value: float) -> str:
    decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A fraction in percent, with one decimal."""
    return "–" if value is None else f"{value:.1%}"


def duration(seconds: float | None) -> str:
    """Two units of time: 42 s, 7 min 5 s, 3 h 12 min, 4 d 3 h."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    large, unit, small, rest_unit = next(units for units in _TIMES if whole >= units[0])
    count, rest = divmod(whole, large)
    return f"{count} {unit}" + (f" {rest // small} {rest_unit}" if rest // small else "")
