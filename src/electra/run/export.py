"""`electra export`: a run or a model -> a folder for transformers or onnxruntime, with a card of facts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from electra import config, files, show
from electra.errors import InputError
from electra.formats.card import (
    ABOUT,
    CARD,
    EXPORT,
    EXPORT_SCORED,
    Facts,
    Given,
    Loaded,
    for_onnx,
    for_transformers,
    gather,
    write_card,
)
from electra.formats.transformers import Source, find_source, seal, set_tokenizer, write_transformers
from electra.model.names import Role
from electra.predict.load import Engine, load
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.model import FineTuned, load_model
from electra.tasks.results import shown
from electra.tasks.seed_results import judge_split
from electra.tasks.task import Task

Form = Literal["transformers", "onnx", "onnx-int8"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(TaskSource):
    """A model, the form that it shall have, and what only its owner can say of it. With --data, of a model
    that was fine-tuned, its score before and after is told."""

    model: str = ""
    """A run, a fine-tuned model, or a folder of transformers."""
    to: Form | None = None
    """For transformers, or for onnxruntime in full or in reduced precision."""
    out: str = ""
    """Folder to make."""
    part: Role | None = None
    """Which network of a run; encoder: without its head. By default the one that goes on, with its head."""
    name: str = ""
    """For the card; by default the name of the folder."""
    license: str = ""
    """For the card, such as apache-2.0."""
    language: list[str] = field(default_factory=list)
    """For the card, such as en de."""


def main(arguments: Sequence[str]) -> None:
    """Export a model."""
    settings = config.parse(ExportConfig, arguments, prog="electra export")
    if not (settings.model and settings.to and settings.out):
        raise InputError(
            "give --model RUN|DIR, --to transformers|onnx|onnx-int8 and --out DIR "
            "(see 'electra export --help')"
        )
    out = Path(settings.out).resolve()
    files.refuse_full(out)
    source = find_source(settings.model, part=settings.part)
    comparison = prepare_comparison(settings, source)
    given = Given(name=settings.name or out.name, license=settings.license, language=settings.language)
    with files.appearing_whole(out) as folder:
        exported = export(settings.to, source, folder)
        set_tokenizer(folder, source)
        sections = {**gather(source), EXPORT: exported.facts}
        changes: list[Change] = []
        if comparison is not None:
            after = load(folder, engine=exported.engine).tuned
            assert after is not None
            changes = list(comparison.changes(after))
            sections[EXPORT_SCORED] = {change.title: change.describe() for change in changes}
        write_card(folder, source, exported.loaded, given, sections)
        seal(folder, source, {ABOUT: sections})
    lines = [*((name.lower(), value) for name, value in exported.facts.items()), ("card", str(out / CARD))]
    print(show.table([("model", settings.model), *lines]))
    if changes:
        print(f"\n{score_table(changes)}")


class Exported(NamedTuple):
    """What was made."""

    facts: Facts
    loaded: Loaded
    engine: Engine


def export(form: Form, source: Source, folder: Path) -> Exported:
    """Fill a folder with a model in one of the forms."""
    if form == "transformers":
        architecture = write_transformers(source, folder)
        loaded = for_transformers(source, folder, architecture)
        facts = {"Form": form, "Class": architecture}
        if loaded.obstacle:
            facts["Head"] = f"in head.safetensors, since {loaded.obstacle}"
        return Exported(facts, loaded, "torch")
    # It takes an extra, which the other form does not need.
    from electra.formats.onnx import export_onnx

    check = export_onnx(
        source.folder,
        folder,
        # The whole of a fine-tuned model is asked for by this name.
        part=source.part or "discriminator",
        precision="int8" if form == "onnx-int8" else "fp32",
        max_length=source.max_length,
    )
    return Exported({"Form": form, "Check": check.describe()}, for_onnx(source, check.outputs), "onnx")


class Change(NamedTuple):
    """A score before and after; None where it is undefined."""

    split: str
    name: str
    before: float | None
    after: float | None

    @property
    def title(self) -> str:
        """For the card."""
        return f"{self.name} on {self.split}, in %"

    def describe(self) -> str:
        """For the card."""
        return f"{shown(self.name, self.after)}, before the export {shown(self.name, self.before)}"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A fine-tuned model as it was, and labelled examples."""

    tuned: FineTuned
    task: Task

    def changes(self, after: FineTuned) -> Iterator[Change]:
        """Every score of both models."""
        for split in self.task.scored_splits:
            old, new = (judge_split(tuned, self.task, split).scores for tuned in (self.tuned, after))
            for name, score in old.items():
                values = (one.value if one.is_defined else None for one in (score, new[name]))
                yield Change(split, name, *values)


def prepare_comparison(settings: ExportConfig, source: Source) -> Comparison | None:
    """Read the examples before anything is exported; None if none are named."""
    if not (settings.data or settings.task):
        return None
    if source.part is not None:
        raise InputError(
            f"--data and --task are for the score of a fine-tuned model with its head, and {settings.model} "
            f"is exported as {source.part}: leave them out"
        )
    tuned = load_model(source.model)
    name = catalogue.one_task(settings, default=tuned.task)
    task = catalogue.load_for(tuned, name, settings)
    if not task.scored_splits:
        raise InputError(f"{name} has no labelled examples but those of train, if any: give some in --data")
    return Comparison(tuned=tuned, task=task)


def score_table(changes: Sequence[Change]) -> str:
    """A line for each score."""
    rows: list[Sequence[str]] = [("split", "score", "before", "after", "difference")]
    for split, name, before, after in changes:
        difference = None if before is None or after is None else after - before
        rows.append((split, name, *(shown(name, value) for value in (before, after, difference))))
    return show.table(rows)
