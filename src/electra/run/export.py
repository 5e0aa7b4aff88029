"""`electra export`: a run or a model -> a folder for transformers or onnxruntime, with a model card."""

from collections.abc import Sequence

from electra import config, show
from electra.formats.export import Change, ExportConfig, export_model
from electra.tasks.results import shown


def main(arguments: Sequence[str]) -> None:
    """Export a model."""
    settings = config.parse(ExportConfig, arguments, prog="electra export")
    exported = export_model(settings)
    facts = [(name.lower(), value) for name, value in exported.facts.items()]
    print(show.table([("model", settings.model), *facts, ("card", str(exported.card))]))
    if exported.changes:
        print(f"\n{exported_scores(exported.changes)}")


def exported_scores(changes: Sequence[Change]) -> str:
    """A line for each score."""
    rows: list[Sequence[str]] = [("split", "score", "before", "after", "difference")]
    for split, name, before, after in changes:
        difference = None if before is None or after is None else after - before
        rows.append((split, name, *(shown(name, value) for value in (before, after, difference))))
    return show.table(rows)
