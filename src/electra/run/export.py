"""`electra export`: a run or a model -> a folder for transformers, onnxruntime or gensim, with a card."""

from collections.abc import Mapping, Sequence

from electra import config, show
from electra.formats.export import Change, ExportConfig, export_model
from electra.store.cache import with_urls
from electra.tasks.results import shown


def main(arguments: Sequence[str]) -> None:
    """Export a model."""
    given = config.read(ExportConfig, as_options(arguments), prog="electra export")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        export(given.config())


def export(settings: ExportConfig) -> None:
    """Export, and show what came of it."""
    exported = export_model(settings)
    facts = [(name.lower(), value) for name, value in exported.facts.items()]
    if exported.address is not None:
        facts.append(("pushed to", exported.address))
    print(with_urls(show.table([("model", settings.model), *facts, ("card", str(exported.card))])))
    if exported.neighbours:
        print(f"\n{nearest_words(exported.neighbours)}")
    if exported.changes:
        print(f"\n{exported_scores(exported.changes)}")


def as_options(arguments: Sequence[str]) -> list[str]:
    """`--private` by itself as `--private true`."""
    values = [*arguments[1:], "--"]
    return [
        f"{word}=true" if word == "--private" and after.startswith("--") else word
        for word, after in zip(arguments, values, strict=False)
    ]


def nearest_words(neighbours: Mapping[str, Sequence[tuple[str, float]]]) -> str:
    """A line for each word: the nearest others, with their cosines."""
    rows: list[Sequence[str]] = [("word", "nearest, with cosines")]
    for word, others in neighbours.items():
        rows.append((word, ", ".join(f"{other} {cosine:.2f}" for other, cosine in others)))
    return show.table(rows)


def exported_scores(changes: Sequence[Change]) -> str:
    """A line for each score."""
    rows: list[Sequence[str]] = [("split", "score", "before", "after", "difference")]
    for split, name, before, after in changes:
        difference = None if before is None or after is None else after - before
        rows.append((split, name, *(shown(name, value) for value in (before, after, difference))))
    return show.table(rows)
