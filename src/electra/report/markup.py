"""Values -> HTML, with everything escaped that comes from outside."""

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
