"""The commands as Python functions: keyword arguments -> folders on disk, and objects that know them.

    data = electra.prepare(corpus="FOLDER", out="DATA")
    run = electra.pretrain(data=data, out="RUN", model={"size": "tiny"}, train={"steps": 1000})
    tuned = electra.finetune(model=run, task="csv", data="labelled.csv", out="OUT", seeds=3)
    tuned.median, tuned.load().classify(["a text"])

Keys, defaults and folders are those of the commands (`electra pretrain --help`), and so is resuming: the same
call continues what was interrupted. A group of keys is a mapping such as train={"steps": 1000}, or an object
of its class. An argument that is None is not given. Mistakes raise `electra.errors.InputError`.

torch and numpy are imported by the functions, not by `import electra`.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from electra.errors import InputError

if TYPE_CHECKING:
    from electra.formats.export import Form, Layout
    from electra.formats.word2vec import Tokens
    from electra.model.heads import DetectionHead
    from electra.model.names import Role
    from electra.prediction.load import Engine
    from electra.prediction.model import Model
    from electra.prediction.scoring import By, TokenDetail
    from electra.pretraining.config import (
        AdversarialConfig,
        GeneratorConfig,
        ModelConfig,
        NegativeSamplingConfig,
        ObjectiveName,
        PretrainTrainConfig,
        ReplacedSpanConfig,
        SinglePassConfig,
        TwoStageConfig,
    )
    from electra.pretraining.masking import MaskingConfig
    from electra.report.findings import Finding
    from electra.tasks.config import EpochLogConfig, EpochTrainConfig
    from electra.tasks.data.catalogue import ConllConfig, SquadConfig
    from electra.tasks.data.columns import OwnTaskConfig
    from electra.tasks.data.views import ContrastiveConfig
    from electra.tasks.sweep import SweepConfig
    from electra.text.tables import Quoting
    from electra.text.tokenizer import Tokenizer
    from electra.train.checkpoint import CheckpointConfig
    from electra.train.devices import DeviceName, PrecisionName
    from electra.train.engine import ResumeConfig
    from electra.train.health import HealthConfig
    from electra.train.session import LogConfig

PathLike = str | os.PathLike[str]
Group = Mapping[str, Any]
"""Keys of a group, such as {"steps": 1000}."""


@dataclass(frozen=True)
class Folder:
    """A folder that a function has made; it can be used wherever a path can."""

    path: Path

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)

    def __truediv__(self, name: PathLike) -> Path:
        return self.path / name


@dataclass(frozen=True)
class PreparedData(Folder):
    """A dataset that `electra.pretrain` reads."""

    manifest: Mapping[str, Any] = field(repr=False)
    """Everything that is known of it: settings, counts, splits, files with their checksums."""

    @property
    def counts(self) -> dict[str, int]:
        """Documents, rows and tokens to train on, and rows held out."""
        train, valid = self.manifest["splits"]["train"], self.manifest["splits"]["valid"]
        found = {key: int(train[key]) for key in ("documents", "rows", "tokens")}
        return {**found, "valid_rows": int(valid["rows"])}

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer that made the rows."""
        from electra.text import tokenizer

        return tokenizer.load_tokenizer(self.path / "tokenizer")


@dataclass(frozen=True)
class Run(Folder):
    """A finished pre-training run."""

    steps: int
    tokens: int
    seconds: float
    best_step: int | None
    """Step with the best held-out result; None if no rows are held out."""
    report: str
    """Where the report is, or why there is none."""

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The last metrics on held-out rows, or of training if none are held out."""
        records = [json.loads(line) for line in (self.path / "metrics.jsonl").read_text().splitlines()]
        last = {record["kind"]: record["metrics"] for record in records if "metrics" in record}
        return dict(last.get("valid") or last.get("train") or {})

    def load(self, *, device: str = "cpu", max_length: int | None = None) -> "Model":
        """The pre-trained model, to detect, fill and embed with."""
        return load(self, device=device, max_length=max_length)


@dataclass(frozen=True)
class Finetuned(Folder):
    """A finished fine-tuning of one task, of several, or of GLUE."""

    results: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Task -> what its scores.json holds: scores of every split and seed, mistakes, history."""
    folders: Mapping[str, Path]
    """Task -> the folder with its scores, predictions, report and model."""
    reports: Mapping[str, str]
    """Task -> where its report is, or why there is none."""

    @property
    def scores(self) -> dict[str, dict[str, dict[str, list[float | None]]]]:
        """Task -> split -> name of a score -> its value for each seed."""
        return {
            task: {
                split: {name: list(score["values"]) for name, score in entry["scores"].items()}
                for split, entry in content["splits"].items()
            }
            for task, content in self.results.items()
        }

    @property
    def medians(self) -> dict[str, float | None]:
        """Task -> median over seeds of its main score, on the first held-out split."""
        from electra.tasks.results import main_median

        return {task: main_median(content) for task, content in self.results.items()}

    @property
    def median(self) -> float | None:
        """The median over seeds of the main score; of several tasks see `medians`."""
        return self.medians[self._task(None)]

    def load(self, task: str | None = None, *, device: str = "cpu", max_length: int | None = None) -> "Model":
        """The model of the median seed."""
        return load(self.folders[self._task(task)], device=device, max_length=max_length)

    def _task(self, task: str | None) -> str:
        from electra.errors import InputError

        if task is None and len(self.results) == 1:
            return next(iter(self.results))
        if task is None or task not in self.results:
            raise InputError(f"task is {task}, expected one of {', '.join(self.results)}")
        return task


@dataclass(frozen=True)
class Evaluation:
    """How good a model is on labelled examples."""

    task: str
    main_score: str
    scores: dict[str, dict[str, float | None]]
    """Split -> name of a score -> its value; None where it is undefined."""
    mistakes: dict[str, list[dict[str, Any]]] = field(repr=False)
    """Split -> the worst mistakes."""
    path: Path | None = None
    """Folder with scores.json and predictions, if one was asked for."""

    @property
    def score(self) -> float | None:
        """The main score on the first split."""
        return next(iter(self.scores.values()))[self.main_score]


@dataclass(frozen=True)
class PlainRows(Sequence[dict[str, Any]]):
    """A list of plain rows, with what else there is to say of them."""

    rows: list[dict[str, Any]] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        return self.rows[place]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)


@dataclass(frozen=True)
class Predictions(PlainRows):
    """What a model says of every example, in order, each with the example's id."""

    path: Path | None = None
    """The file they were written to, if one was asked for."""
    notes: tuple[str, ...] = ()
    """What was left out, and what to know of the file."""


@dataclass(frozen=True)
class Scores(PlainRows):
    """How acceptable a model finds each text, in order; or how often it is right on each phenomenon.

    A row has the scores of a text, or the pairs, ties and accuracies of a phenomenon, by each method.
    """

    accuracies: Mapping[str, float] = field(default_factory=dict)
    """Of minimal pairs: method -> the mean of the accuracies of all phenomena."""
    path: Path | None = None
    """The file they were written to, if any."""

    @property
    def accuracy(self) -> float | None:
        """Of minimal pairs: by detection, or by pseudo-likelihood if the model has no discriminator."""
        return next(iter(self.accuracies.values()), None)


@dataclass(frozen=True)
class ExportedModel(Folder):
    """A model in the layout of another library."""

    engine: "Engine | None"
    facts: Mapping[str, Any]
    """Format, class, or how close the exported graph is to the original."""
    scores: dict[tuple[str, str], tuple[float | None, float | None]]
    """(split, name) -> score before and after the export, if there were labelled examples."""
    neighbours: Mapping[str, Sequence[tuple[str, float]]]
    """Of word vectors: word -> the nearest others with their cosines."""
    address: str | None = None
    """Where on the Hugging Face Hub it was pushed to."""

    def load(self) -> "Model":
        """The exported model."""
        if self.engine is None:
            raise InputError(f"{self} holds word vectors, no model: read them with gensim")
        return load(self, engine=self.engine)


def load(
    path: PathLike,
    *,
    device: str = "cpu",
    engine: "Engine" = "torch",
    max_length: int | None = None,
    precision: "PrecisionName" = "auto",
) -> "Model":
    """Load the model in a folder: a run, a fine-tuned or exported model, or a transformers folder.

        model = electra.load("RUN")
        model.detect(["The chef ate the meal."])

    `device` is cpu, cuda, cuda:1, mps or auto. `engine` is onnx for what `electra.export(to="onnx")` made.
    `max_length`: tokens to read at once; default: as many as in training. `precision` of matrix products is
    fp32, bf16, on CUDA fp16, or auto: the fastest in which the model says the same as in fp32. Which one that
    is says `model.precision`, and why `model.precision_reason`.
    """
    from electra.prediction.load import load as load_model
    from electra.store import cache, remote

    where = os.fspath(path)
    return load_model(
        str(cache.fetch(where)) if remote.is_url(where) else where,
        device=device,
        engine=engine,
        max_length=max_length,
        precision=precision,
    )


def prepare(
    *,
    corpus: PathLike | Sequence[PathLike],
    out: PathLike,
    config: PathLike | None = None,
    seq_length: int | None = None,
    tokenizer: PathLike | None = None,
    vocab_size: int | None = None,
    algorithm: Literal["wordpiece", "bpe", "unigram"] | None = None,
    case: Literal["lower", "keep"] | None = None,
    accents: Literal["auto", "strip", "keep"] | None = None,
    cjk: Literal["split", "keep"] | None = None,
    valid_fraction: float | None = None,
    duplicates: Literal["drop", "keep"] | None = None,
    examples: Literal["full_rows", "as_google"] | None = None,
    encoding: str | None = None,
    text_field: str | None = None,
    delimiter: str | None = None,
    quoting: "Quoting | None" = None,
    seed: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    max_bad_fraction: float | None = None,
) -> PreparedData:
    """Turn a corpus into a tokenizer and rows of tokens, as `electra prepare` does.

        data = electra.prepare(corpus="FOLDER", out="DATA", vocab_size=8192)
        data.counts["tokens"]

    `corpus`: files, folders, globs, "builtin" or "hf:NAME", one or several. See `electra prepare --help`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.text.dataset import PrepareConfig
    from electra.text.dataset import make_dataset as prepare_data

    given = collect(PrepareConfig, keys, prog="electra.prepare", file=config)
    with given.opened(reads=("tokenizer",), writes=("out",)) as given:
        made = prepare_data(given.config())
    return PreparedData(made.path, made.manifest)


def pretrain(
    *,
    data: PathLike | None = None,
    out: PathLike,
    config: PathLike | None = None,
    start: PathLike | None = None,
    objective: "ObjectiveName | None" = None,
    seed: int | None = None,
    model: "ModelConfig | Group | None" = None,
    train: "PretrainTrainConfig | Group | None" = None,
    generator: "GeneratorConfig | Group | None" = None,
    masking: "MaskingConfig | Group | None" = None,
    generator_weight: float | None = None,
    discriminator_weight: float | None = None,
    discriminator_weight_start: float | None = None,
    discriminator_weight_ramp: float | None = None,
    discriminator_head: "DetectionHead | None" = None,
    correction: Literal["none", "proposed"] | None = None,
    recovery_weight: float | None = None,
    output_bias: Literal["zero", "frequencies"] | None = None,
    two_stage: "TwoStageConfig | Group | None" = None,
    adversarial: "AdversarialConfig | Group | None" = None,
    single_pass: "SinglePassConfig | Group | None" = None,
    replaced_span: "ReplacedSpanConfig | Group | None" = None,
    negative_sampling: "NegativeSamplingConfig | Group | None" = None,
    valid_rows: int | None = None,
    checkpoint: "CheckpointConfig | Group | None" = None,
    log: "LogConfig | Group | None" = None,
    health: "HealthConfig | Group | None" = None,
    resume: "ResumeConfig | Group | None" = None,
    cluster: str | None = None,
    cluster_workers: int | None = None,
    max_restarts: int | None = None,
) -> Run:
    """Pre-train encoders on a prepared dataset, as `electra pretrain` does, or resume the run in `out`.

        run = electra.pretrain(data="DATA", out="RUN", model={"size": "small"}, train={"max_time": "2h"})
        run.metrics["discriminator_auc"], run.load().embed(["a text"])

    `start`: the run or model whose weights it begins with, also if its tokenizer is another than the data's.
    `config`: a recipe's name or a YAML file of keys; the other arguments override it. Keys that are not given
    have the paper's values for the size of the model. `cluster`: "auto", "local" or
    "ray://HOST:PORT", where `cluster_workers` processes train, with `max_restarts` when one is lost. See
    `electra pretrain --help`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.pretraining import build, on_nodes
    from electra.pretraining.config import PretrainRunConfig, paper_defaults
    from electra.report import write_report
    from electra.train import engine

    given = collect(PretrainRunConfig, keys, prog="electra.pretrain", file=config)
    if given.values.get("cluster"):
        settings = given.config(paper_defaults(given))
        settings.require_folders()
        _refuse_dry_run(settings.dry_run)
        facts = on_nodes.trained_on_nodes(settings)
        report = write_report(Path(settings.out))
    else:
        with given.opened(reads=("data",), runs=("start",), writes=("out",)) as given:
            settings = given.config(paper_defaults(given))
            settings.require_folders()
            _refuse_dry_run(settings.dry_run)
            if settings.max_restarts:
                raise InputError("max_restarts is for the command line, or with cluster=...: leave it out")
            with engine.joined(settings.train.device) as (world, device):
                facts = build.run_pretraining(settings, world, device).state.facts()
            report = write_report(Path(settings.out)) if world.writes else "written by another process"
    return Run(
        Path(settings.out),
        steps=facts["step"],
        tokens=facts["tokens"],
        seconds=facts["seconds"],
        best_step=None if facts["best_error"] is None else facts["best_step"],
        report=report,
    )


def finetune(
    *,
    model: PathLike | None = None,
    task: PathLike | None = None,
    data: PathLike | None = None,
    out: PathLike,
    config: PathLike | None = None,
    like: PathLike | None = None,
    seeds: int | None = None,
    seed: int | None = None,
    own: "OwnTaskConfig | Group | None" = None,
    squad: "SquadConfig | Group | None" = None,
    conll: "ConllConfig | Group | None" = None,
    contrastive: "ContrastiveConfig | Group | None" = None,
    train: "EpochTrainConfig | Group | None" = None,
    limit_train: int | None = None,
    limit_eval: int | None = None,
    max_length: int | None = None,
    dropout: float | None = None,
    mask_prob: float | None = None,
    decoding: Literal["words", "scheme"] | None = None,
    pooling: Literal["auto", "cls", "mean"] | None = None,
    baseline: PathLike | None = None,
    ensemble: Literal["off", "on"] | None = None,
    sweep: "SweepConfig | Group | None" = None,
    keep_checkpoints: bool | None = None,
    checkpoint: "CheckpointConfig | Group | None" = None,
    log: "EpochLogConfig | Group | None" = None,
    health: "HealthConfig | Group | None" = None,
    resume: "ResumeConfig | Group | None" = None,
    cluster: str | None = None,
    cluster_gpus: float | None = None,
) -> Finetuned:
    """Fine-tune a model on a task with several seeds, as `electra finetune` does, or resume in `out`.

        tuned = electra.finetune(model="RUN", task="csv", data="labelled.csv", out="OUT", seeds=3)
        tuned.median, tuned.load().classify(["a text"])

    `task`: a name such as "sst2" or "csv" (your own table, whose columns `own` names), several names with
    commas between them, "glue", or a YAML file. `cluster`: "auto", "local" or "ray://HOST:PORT", where seeds
    are trained at the same time. See `electra finetune --help`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.report import write_report
    from electra.tasks import finetuning
    from electra.tasks.config import FinetuneConfig
    from electra.tasks.data import catalogue
    from electra.tasks.workers import clustered
    from electra.train import engine

    given = collect(FinetuneConfig, keys, prog="electra.finetune", file=config)
    with given.opened(reads=("model", "like", "data", "baseline"), writes=("out",)) as given:
        draft = given.draft()
        _refuse_dry_run(draft.dry_run)
        results: dict[str, Mapping[str, Any]] = {}
        folders: dict[str, Path] = {}
        with engine.joined(draft.train.device) as (world, device), clustered(draft.cluster) as nodes:
            for job, found in finetuning.run_jobs(finetuning.jobs(given, world, device), nodes):
                results |= found
                folders |= {name: job.study.task_folder(name) for name in found}
        reports = {name: write_report(folder) for name, folder in folders.items()}
        tuned = Finetuned(Path(draft.out), results, folders, reports)
        if results and catalogue.task_names(draft) == [catalogue.GLUE]:
            finetuning.write_glue(draft, tuned.medians)
    return tuned


def evaluate(
    *,
    model: PathLike,
    data: PathLike | None = None,
    task: PathLike | None = None,
    split: str | None = None,
    out: PathLike | None = None,
    limit_eval: int | None = None,
    options: Sequence[str] | None = None,
    own: "OwnTaskConfig | Group | None" = None,
    squad: "SquadConfig | Group | None" = None,
    conll: "ConllConfig | Group | None" = None,
    contrastive: "ContrastiveConfig | Group | None" = None,
    device: "DeviceName | None" = None,
    precision: "PrecisionName | None" = None,
) -> Evaluation:
    """Score a fine-tuned model on labelled examples, as `electra evaluate` does.

        electra.evaluate(model="OUT", data="more.csv").score

    `split`: the part of the data to score; default: all that has labels, except the training examples.
    `options`: words such as "positive=great" that a pre-trained model chooses from without training.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.tasks import evaluation

    given = collect(evaluation.EvaluateConfig, keys, prog="electra.evaluate")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        settings = given.config()
        content = evaluation.EvaluationJob.prepare(settings).run()
    splits = content["splits"]
    return Evaluation(
        task=content["task"],
        main_score=content["main_score"],
        scores={
            split: {name: score["median"] for name, score in entry["scores"].items()}
            for split, entry in splits.items()
        },
        mistakes={split: list(entry["errors"]) for split, entry in splits.items()},
        path=Path(settings.out) if settings.out else None,
    )


def predict(
    *,
    model: PathLike,
    input: PathLike | None = None,
    options: Sequence[str] | None = None,
    data: PathLike | None = None,
    task: PathLike | None = None,
    split: str | None = None,
    out: PathLike | None = None,
    own: "OwnTaskConfig | Group | None" = None,
    squad: "SquadConfig | Group | None" = None,
    conll: "ConllConfig | Group | None" = None,
    contrastive: "ContrastiveConfig | Group | None" = None,
    device: "DeviceName | None" = None,
    precision: "PrecisionName | None" = None,
    cluster: str | None = None,
    cluster_gpus: float | None = None,
) -> Predictions:
    """Predict the examples of a file or of a task, as `electra predict` does.

        for prediction in electra.predict(model="OUT", input="new.csv"):
            print(prediction["id"], prediction["label"])

    `out`: file to write as well: .jsonl, .csv or .tsv, .zip for GLUE, a folder for SQuAD. `options`:
    words such as "positive=great" that a pre-trained model chooses from without training. `cluster`: "auto",
    "local" or "ray://HOST:PORT", where the examples of `input` are predicted. For texts in memory use
    `electra.load("OUT")`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.tasks import evaluation
    from electra.tasks.predictions import write_form

    given = collect(evaluation.PredictConfig, keys, prog="electra.predict")
    notes: list[str] = []
    with given.opened(reads=("model", "data", "input"), writes=("out",)) as given:
        settings = given.config()
        predicted = list(evaluation.predict_splits(settings, note=notes.append))
        path = Path(settings.out) if settings.out else None
        if path is not None:
            notes += write_form(path, predicted)
    rows = [
        {"id": example.id, **prediction}
        for one in predicted
        for example, prediction in zip(one.examples, one.predictions, strict=True)
    ]
    return Predictions(rows, path, tuple(note.strip() for note in notes))


def score(
    *,
    model: PathLike,
    text: str | Sequence[str] | None = None,
    data: PathLike | None = None,
    task: Literal["texts", "minimal_pairs"] | None = None,
    by: "By | None" = None,
    tokens: "TokenDetail | None" = None,
    text_column: str | None = None,
    pair_column: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    quoting: "Quoting | None" = None,
    limit: int | None = None,
    out: PathLike | None = None,
    engine: "Engine | None" = None,
    device: str | None = None,
    precision: "PrecisionName | None" = None,
) -> Scores:
    """Score how acceptable texts look to a pre-trained model, as `electra score` does.

        good, bad = electra.score(model="RUN", text=["He is here.", "He are here."], by="detection")
        good["scores"]["detection"]["sum"] > bad["scores"]["detection"]["sum"]
        electra.score(model="RUN", task="minimal_pairs", data="FOLDER", limit=200).accuracy

    `data`: a file of texts or, with a `pair_column`, of pairs, whose rows say which text is `preferred`; or
    the files of minimal pairs, whose rows are phenomena. For texts in memory use `electra.load("RUN").score`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.prediction.score_data import ScoreConfig, score_pairs, score_rows, write_rows

    given = collect(ScoreConfig, keys, prog="electra.score")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        settings = given.config()
        if settings.task == "minimal_pairs":
            found = score_pairs(settings)
            content = found.scores.content(model=settings.model, data=settings.data)
            phenomena = [{"phenomenon": name, **one} for name, one in content["phenomena"].items()]
            return Scores(phenomena, content["accuracy"], found.path)
        rows = list(score_rows(settings))
        path = Path(settings.out) if settings.out else None
        if path is not None:
            write_rows(path, rows)
    return Scores(rows, path=path)


def export(
    *,
    model: PathLike,
    to: "Form",
    out: PathLike,
    part: "Role | None" = None,
    name: str | None = None,
    license: str | None = None,
    language: str | Sequence[str] | None = None,
    push: str | None = None,
    private: bool | None = None,
    layout: "Layout | None" = None,
    tokens: "Tokens | None" = None,
    words: Sequence[str] | None = None,
    data: PathLike | None = None,
    task: PathLike | None = None,
    own: "OwnTaskConfig | Group | None" = None,
    squad: "SquadConfig | Group | None" = None,
    conll: "ConllConfig | Group | None" = None,
    contrastive: "ContrastiveConfig | Group | None" = None,
) -> ExportedModel:
    """Export a model for transformers, onnxruntime or gensim, with a model card, as `electra export` does.

        small = electra.export(model="OUT", to="onnx-int8", out="SMALL", data="labelled.csv")
        small.scores, small.load().classify(["a text"])

    With `data`, a fine-tuned model is scored before and after the export. `push` uploads the folder to a
    repository on the Hugging Face Hub, such as "your-name/your-model".
    `to="word2vec"` writes the vectors of whole words or of all `tokens`, and tells neighbours of `words`.
    """
    keys = _named(locals())
    from electra.config import collect
    from electra.formats.export import ExportConfig
    from electra.formats.export import export_model as export_model

    given = collect(ExportConfig, keys, prog="electra.export")
    with given.opened(reads=("model", "data"), writes=("out",)) as given:
        made = export_model(given.config())
    scores = {(change.split, change.name): (change.before, change.after) for change in made.changes}
    return ExportedModel(
        made.folder,
        engine=made.engine,
        facts=dict(made.facts),
        scores=scores,
        neighbours=made.neighbours,
        address=made.address,
    )


def doctor(path: PathLike) -> "list[Finding]":
    """What is wrong or fine with a run, a fine-tuning, a dataset or a model, the worst first.

        for finding in electra.doctor("RUN"):
            print(finding.severity, finding.says, finding.cure)

    `severity` is wrong, watch, note or fine; `cure` is a command line, or empty. As `electra doctor` says it.
    """
    from electra.checkup import examine
    from electra.store import cache, remote

    where = os.fspath(path)
    return examine(cache.fetch(where, checkpoints=True) if remote.is_url(where) else Path(where)).findings


def _named(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a function that are keys of its config: all but the file of keys."""
    return {key: value for key, value in arguments.items() if key != "config"}


def _refuse_dry_run(dry_run: bool) -> None:
    """A file of keys may ask for a dry run, which a function could only ignore."""
    if dry_run:
        raise InputError("dry_run is for the command line: leave it out, or run the command")
