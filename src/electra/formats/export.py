"""A run or a model -> a folder for transformers, onnxruntime or gensim, with a model card.

With labelled examples, a fine-tuned model is scored before and after its export. The folder can be pushed to
the Hugging Face Hub as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from electra import files, hub
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
    for_word2vec,
    gather,
    write_card,
)
from electra.formats.transformers import (
    ExportSource,
    find_source,
    seal,
    set_tokenizer,
    write_transformers,
)
from electra.formats.word2vec import KIND as VECTORS_KIND
from electra.formats.word2vec import VECTORS, Tokens, read_vectors
from electra.model.names import Role
from electra.model.sizes import transformers_obstacle
from electra.model.store import GRAPH, HEAD_WEIGHTS, JS_GRAPHS, TOKENS_READ, WEIGHT_FILES
from electra.prediction.load import Engine, load
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.model import FineTuned, load_model
from electra.tasks.results import shown
from electra.tasks.seed_results import judge_split
from electra.tasks.task import Task
from electra.text.tokenizer import VOCABULARY_FILE

REPLACED = [
    *(*WEIGHT_FILES, "model-*.safetensors", "pytorch_model-*.bin", HEAD_WEIGHTS, GRAPH),
    *("modules.json", "1_Pooling/*", VOCABULARY_FILE, VECTORS, *JS_GRAPHS.values()),
]
"""Patterns of what would be part of this model if it were left in a repository by an earlier one."""
Form = Literal["transformers", "onnx", "onnx-int8", "word2vec"]

Layout = Literal["plain", "transformers_js"]
JS_TOKENIZER = {"tokenizer_class": "ElectraTokenizer"}
"""What transformers.js must be told, so that second texts of pairs are in a segment of their own."""


@dataclass(frozen=True, kw_only=True)
class ExportConfig(TaskSource):
    """A model, the format to export it to, and what only its owner knows. With --data, a fine-tuned model is
    scored before and after the export."""

    model: str = ""
    """A run, a fine-tuned model, or a transformers folder."""
    to: Form | None = None
    """Export for transformers, for onnxruntime in full precision or in int8, or its word vectors alone for
    gensim and others (word2vec's text format)."""
    out: str = ""
    """Folder to create."""
    part: Role | None = None
    """Network of a run to export; `encoder` leaves out its head. Default: the one used for fine-tuning, with
    its head."""
    name: str = ""
    """Name of the model for its card. Default: the name of the folder."""
    license: str = ""
    """License for the card, such as apache-2.0."""
    layout: Layout = "plain"
    """Of onnx and onnx-int8: the graph beside config.json, or a folder that transformers.js loads."""
    language: list[str] = field(default_factory=list)
    """Languages for the card, such as en de."""
    push: str = ""
    """Repository on the Hugging Face Hub to upload the folder to, such as your-name/your-model; it is made if
    there is none. The token is that of HF_TOKEN or of `hf auth login`."""
    private: bool = False
    """With --push: make a repository that only you can see; one that others can see is refused."""
    tokens: Tokens = "words"
    """Of word2vec: vectors of whole words, or of all tokens, with pieces such as ##s and special tokens."""
    words: list[str] = field(default_factory=list)
    """Of word2vec: words whose nearest neighbours are printed. Default: some frequent ones."""

    def __post_init__(self) -> None:
        if self.private and not self.push:
            raise InputError("--private is for a repository on the Hub: give --push OWNER/NAME as well")

    @property
    def given(self) -> OwnerFacts:
        """What only the owner knows."""
        name = self.name or Path(self.out).resolve().name
        return OwnerFacts(name=name, license=self.license, language=self.language)


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
    engine: Engine | None
    """What loads it: electra.load(folder, engine=...); None: it is for others only."""
    facts: Facts
    """Format, class or largest difference between the exported and the original model."""
    changes: Sequence[Change]
    """Scores before and after, if there were labelled examples."""
    address: str | None = None
    """Where it was pushed to."""
    neighbours: Mapping[str, Sequence[tuple[str, float]]] = field(default_factory=dict)
    """Of word vectors: word -> the nearest others with their cosines, the nearest first."""

    @property
    def card(self) -> Path:
        """The model card."""
        return self.folder / CARD


def export_model(settings: ExportConfig) -> Exported:
    """Export a model into a new folder, which appears when it is whole."""
    if not (settings.model and settings.to and settings.out):
        raise InputError(
            "give --model RUN|DIR, --to transformers|onnx|onnx-int8|word2vec and --out DIR "
            "(see 'electra export --help')"
        )
    out = Path(settings.out).resolve()
    files.refuse_full(out)
    if settings.push:
        hub.require_account(settings.push)
    source = find_source(settings.model, part=settings.part)
    require_layout(settings, source)
    if settings.to == "word2vec":
        return export_vectors(settings, source, out)
    if settings.words or settings.tokens != "words":
        raise InputError(f"--tokens and --words are for --to word2vec, not for {settings.to}: leave them out")
    comparison = prepare_comparison(settings, source)
    with files.appearing_whole(out) as folder:
        written = _write(settings.to, settings.layout, source, folder)
        set_tokenizer(folder, source, **(JS_TOKENIZER if settings.layout == "transformers_js" else {}))
        sections = {**gather(source), EXPORT: written.facts}
        changes: list[Change] = []
        if comparison is not None:
            after = load(folder, engine=written.engine).tuned
            assert after is not None
            changes = list(comparison.changes(after))
            sections[EXPORT_SCORED] = {change.title: change.describe() for change in changes}
        write_card(folder, source, written.loaded, settings.given, sections)
        seal(folder, source, {ABOUT: sections})
    return Exported(
        folder=out,
        engine=written.engine,
        facts=written.facts,
        changes=changes,
        address=push(settings, out),
    )


def push(settings: ExportConfig, out: Path) -> str | None:
    """Upload a folder if that was asked for -> where it is now."""
    if not settings.push:
        return None
    return hub.push_folder(out, settings.push, private=settings.private, replaced=REPLACED)


def export_vectors(settings: ExportConfig, source: ExportSource, out: Path) -> Exported:
    """Export the word vectors of a model alone."""
    if settings.data or settings.task:
        raise InputError("--data and --task are for the score of a model, which word vectors have not")
    found = read_vectors(source.model, tokens=settings.tokens)
    found.require(settings.words)
    count, size = found.vectors_NE.shape
    facts = {
        "Form": "word2vec",
        "Vectors": f"{count:,} of {size} numbers: input embeddings of {settings.tokens}",
    }
    with files.appearing_whole(out) as folder:
        found.write(folder / VECTORS)
        sections = {**gather(source), EXPORT: facts}
        write_card(folder, source, for_word2vec(found.words, size), settings.given, sections)
        files.write_manifest(folder, {ABOUT: sections, "kind": VECTORS_KIND, TOKENS_READ: source.tokens_read})
    shown = settings.words or found.frequent()
    neighbours = {word: found.nearest(word) for word in shown}
    return Exported(
        folder=out,
        engine=None,
        facts=facts,
        changes=[],
        neighbours=neighbours,
        address=push(settings, out),
    )


class _Written(NamedTuple):
    facts: Facts
    loaded: Loaded
    engine: Engine


def _write(form: Form, layout: Layout, source: ExportSource, folder: Path) -> _Written:
    """Write a model into a folder in one of the formats."""
    if form == "transformers":
        architecture = write_transformers(source, folder)
        loaded = for_transformers(source, folder, architecture)
        facts = {"Form": form, "Class": architecture}
        if loaded.obstacle:
            facts["Head"] = f"in head.safetensors, since {loaded.obstacle}"
        return _Written(facts, loaded, "torch")
    # It needs an extra, which the other format does not.
    from electra.formats.onnx import Precision, export_onnx

    precision: Precision = "int8" if form == "onnx-int8" else "fp32"
    graph_name = GRAPH if layout == "plain" else JS_GRAPHS[precision]
    check = export_onnx(
        source.folder,
        folder,
        # A whole fine-tuned model goes by this name.
        part=source.part or "discriminator",
        precision=precision,
        max_length=source.max_length,
        graph_name=graph_name,
    )
    facts = {"Form": form, "Check": check.describe()}
    if layout != "plain":
        facts["Layout"] = f"{layout}: {graph_name}"
    return _Written(facts, for_onnx(source, check.outputs, graph_name), "onnx")


def require_layout(settings: ExportConfig, source: ExportSource) -> None:
    """Refuse a folder for transformers.js of what it has no class for."""
    if settings.layout == "plain":
        return
    if settings.to not in ("onnx", "onnx-int8"):
        raise InputError(
            f"--layout {settings.layout} is for --to onnx and onnx-int8, not for {settings.to}: leave it out"
        )
    if obstacle := transformers_obstacle(source.config):
        raise InputError(
            f"{source.path}: {obstacle}, and transformers.js has the same. Without --layout the graph is "
            "exported for onnxruntime, which runs in JavaScript too"
        )


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
