"""A run or a model -> a folder for transformers or onnxruntime, with a model card.

With labelled examples, a fine-tuned model is scored before and after its export.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from electra import files
from electra.errors import InputError
from electra.formats.card import (
    ABOUT,
    CARD,
    EXPORT,
    EXPORT_SCORED,
    Facts,
    Loaded,
    OwnerFacts,
    for_onnx,
    for_transformers,
    gather,
    write_card,
)
from electra.formats.transformers import ExportSource, find_source, seal, set_tokenizer, write_transformers
from electra.model.names import Role
from electra.prediction.load import Engine, load
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.model import FineTuned, load_model
from electra.tasks.results import shown
from electra.tasks.seed_results import judge_split
from electra.tasks.task import Task

Form = Literal["transformers", "onnx", "onnx-int8"]


@dataclass(frozen=True, kw_only=True)
class ExportConfig(TaskSource):
    """A model, the format to export it to, and what only its owner knows. With --data, a fine-tuned model is
    scored before and after the export."""

    model: str = ""
    """A run, a fine-tuned model, or a transformers folder."""
    to: Form | None = None
    """Export for transformers, or for onnxruntime in full precision or in int8."""
    out: str = ""
    """Folder to create."""
    part: Role | None = None
    """Network of a run to export; `encoder` leaves out its head. Default: the one used for fine-tuning, with
    its head."""
    name: str = ""
    """Name of the model for its card. Default: the name of the folder."""
    license: str = ""
    """License for the card, such as apache-2.0."""
    language: list[str] = field(default_factory=list)
    """Languages for the card, such as en de."""


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
class Exported:
    """A folder that was exported."""

    folder: Path
    engine: Engine
    """What loads it: electra.load(folder, engine=...)."""
    facts: Facts
    """Format, class or largest difference between the exported and the original model."""
    changes: Sequence[Change]
    """Scores before and after, if there were labelled examples."""

    @property
    def card(self) -> Path:
        """The model card."""
        return self.folder / CARD


def export_model(settings: ExportConfig) -> Exported:
    """Export a model into a new folder, which appears when it is whole."""
    if not (settings.model and settings.to and settings.out):
        raise InputError(
            "give --model RUN|DIR, --to transformers|onnx|onnx-int8 and --out DIR "
            "(see 'electra export --help')"
        )
    out = Path(settings.out).resolve()
    files.refuse_full(out)
    source = find_source(settings.model, part=settings.part)
    comparison = prepare_comparison(settings, source)
    given = OwnerFacts(name=settings.name or out.name, license=settings.license, language=settings.language)
    with files.appearing_whole(out) as folder:
        written = _write(settings.to, source, folder)
        set_tokenizer(folder, source)
        sections = {**gather(source), EXPORT: written.facts}
        changes: list[Change] = []
        if comparison is not None:
            after = load(folder, engine=written.engine).tuned
            assert after is not None
            changes = list(comparison.changes(after))
            sections[EXPORT_SCORED] = {change.title: change.describe() for change in changes}
        write_card(folder, source, written.loaded, given, sections)
        seal(folder, source, {ABOUT: sections})
    return Exported(folder=out, engine=written.engine, facts=written.facts, changes=changes)


class _Written(NamedTuple):
    facts: Facts
    loaded: Loaded
    engine: Engine


def _write(form: Form, source: ExportSource, folder: Path) -> _Written:
    """Write a model into a folder in one of the formats."""
    if form == "transformers":
        architecture = write_transformers(source, folder)
        loaded = for_transformers(source, folder, architecture)
        facts = {"Form": form, "Class": architecture}
        if loaded.obstacle:
            facts["Head"] = f"in head.safetensors, since {loaded.obstacle}"
        return _Written(facts, loaded, "torch")
    # It needs an extra, which the other format does not.
    from electra.formats.onnx import export_onnx

    check = export_onnx(
        source.folder,
        folder,
        # A whole fine-tuned model goes by this name.
        part=source.part or "discriminator",
        precision="int8" if form == "onnx-int8" else "fp32",
        max_length=source.max_length,
    )
    return _Written({"Form": form, "Check": check.describe()}, for_onnx(source, check.outputs), "onnx")


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


def prepare_comparison(settings: ExportConfig, source: ExportSource) -> Comparison | None:
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
