"""A fine-tuned model and examples -> scores where labels are known, predictions where they are not."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch

from electra import files
from electra.cluster import connected
from electra.errors import InputError
from electra.progress import Progress
from electra.store.cache import with_urls
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import GLUE, TaskSource
from electra.tasks.families.family import Example, Prediction
from electra.tasks.families.options import options_family
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, load_model, state_hash, zero_shot
from electra.tasks.precision import ChosenPrecision, Precision, PrecisionName, choose, computing
from electra.tasks.predictions import (
    TEST,
    Predicted,
    check_family_form,
    check_form,
    form_of,
    input_config,
    input_examples,
    with_unique_ids,
    written,
)
from electra.tasks.seed_results import SeedResult, judge_split
from electra.tasks.stream import (
    PIECE_EXAMPLES,
    Piece,
    Predictions,
    SentModel,
    Unfinished,
    packed,
    pieces_of,
    predict_here,
    predict_on_node,
)
from electra.tasks.task import TRAIN, Task
from electra.tasks.workers import check_workers
from electra.train import devices
from electra.train.devices import DeviceName

NUM_COMPARED = 8
"""Examples on which another precision must say the same as fp32."""


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(TaskSource):
    """A fine-tuned model, and examples whose labels are known."""

    model: str = ""
    """Folder of a fine-tuning, or of its model."""
    options: list[str] = field(default_factory=list)
    """With a pre-trained model in place of a fine-tuned one: the words to choose from, such as
    negative=terrible positive=great, or labels that are their own words. --own.template is the sentence."""
    split: str | None = None
    """Part of the data to score. Default: every part that has labels, except the training examples."""
    out: str = ""
    """Folder for scores.json, predictions and mistakes. Default: the scores are only printed."""
    limit_eval: int | None = None
    """Most examples to score, for a quick look; scores are then marked as partial."""
    device: DeviceName = "auto"
    """Device to compute on; auto chooses cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""


@dataclass(frozen=True, kw_only=True)
class EvaluationJob:
    """A model and what it is to be scored on, checked."""

    settings: EvaluateConfig
    tuned: FineTuned
    task: Task
    splits: Sequence[str]
    place: "Place"

    @classmethod
    def prepare(cls, settings: EvaluateConfig) -> "EvaluationJob":
        """Read the model and the examples."""
        # Imported by evaluation alone: it brings all of training, and `electra predict` needs none of that.
        from electra.tasks.study import limited

        if not settings.model or not (settings.data or settings.task):
            raise InputError(
                "give --model DIR, --task NAME|FILE and --data DIR (see 'electra evaluate --help')"
            )
        tuned = model_of(settings)
        name = catalogue.one_task(settings, default=tuned.task)
        task = catalogue.load_for(tuned, name, settings)
        splits = [settings.split] if settings.split else task.scored_splits
        for split in splits:
            task.examples(split)
            if split in task.unlabelled:
                raise InputError(f"{split} of {name} has no labels to score with: use electra predict")
        if not splits:
            raise InputError(
                f"{name} has no labelled examples except those of train, if any: choose a split with --split"
            )
        on_train = settings.limit_eval if settings.split == TRAIN else None
        task = limited(task, train=on_train, held_out=settings.limit_eval)
        place = Place.choose(settings, tuned, task.examples(splits[0]))
        return cls(settings=settings, tuned=tuned, task=task, splits=splits, place=place)

    def run(self) -> dict[str, Any]:
        """Score every split: the content of scores.json, which is written if `out` is given."""
        from electra.tasks import results

        settings, tuned, task = self.settings, self.tuned, self.task
        with computing(self.place.device, self.place.precision.name):
            judgements = {split: judge_split(tuned, task, split) for split in self.splits}
        result = SeedResult(
            seed=int(tuned.facts.get("seed", 0)), judgements={task.name: judgements}, facts={}
        )
        content = results.scores_content(
            task,
            [result],
            model=with_urls(settings.model),
            train={},
            together={},
            notes=[],
            is_partial=settings.limit_eval is not None,
            chosen=result,
        )
        if settings.out:
            results.write_scores(Path(settings.out), task, content, chosen=result)
        return content


@dataclass(frozen=True, kw_only=True)
class PredictConfig(TaskSource):
    """A fine-tuned model, and examples to predict: a file of your own, or a split of a task."""

    model: str = ""
    """Folder of a fine-tuning, or of its model; with --task glue, the folder with those of all tasks."""
    options: list[str] = field(default_factory=list)
    """With a pre-trained model in place of a fine-tuned one: the words to choose from, such as great
    terrible; positive=great names the label as well. --own.template is the sentence that they stand in."""
    input: str = ""
    """Your own file: CSV, TSV, JSONL or parquet with the columns of --own, or .txt with one text per line."""
    split: str | None = None
    """Part of the task's data to predict. Default: the part that has no labels."""
    out: str = ""
    """File for the predictions: .jsonl, .csv or .tsv; .zip for a submission to GLUE; a folder for the
    official files of SQuAD."""
    device: DeviceName = "auto"
    """Device to compute on; auto chooses cuda, then mps, then cpu."""
    precision: PrecisionName = "auto"
    """Precision of matrix products; auto chooses the fastest in which the model says the same as in fp32."""
    cluster: str | None = None
    """Predict the examples of --input on a Ray cluster: ray://HOST:PORT, auto (the cluster that this machine
    is a node of) or local (one on this machine's cores). The model and the examples are sent to the nodes."""
    cluster_gpus: float = 0.0
    """Share of a GPU for each worker there, such as 0.25; auto then computes in fp32. Default: one core."""

    def __post_init__(self) -> None:
        check_workers(self.cluster, self.cluster_gpus)
        if self.cluster and not self.input:
            raise InputError("--cluster is for the examples of --input: without it leave --cluster out")


def model_of(settings: EvaluateConfig | PredictConfig) -> FineTuned:
    """The fine-tuned model; or a pre-trained one that chooses between words."""
    if not settings.options:
        return load_model(settings.model)
    if settings.own.words:
        raise InputError("--own.words are for `electra finetune`: --options name the words here")
    family = options_family(settings.options, settings.own.template)
    return zero_shot(settings.model, family, task=catalogue.OPTIONS)


def check_sources(settings: PredictConfig) -> None:
    """Refuse what names no examples, or two kinds of them."""
    if not settings.model or bool(settings.input) == bool(settings.task or settings.data):
        raise InputError(
            "give --model DIR, --out FILE, and either --input FILE or --task NAME with --data DIR "
            "(see 'electra predict --help')"
        )


@dataclass(frozen=True, kw_only=True)
class InputStream:
    """A file of one's own, checked, and the model that predicts it piece by piece."""

    settings: PredictConfig
    tuned: FineTuned
    num_examples: int
    place: "Place"
    facts: Mapping[str, Any]
    """All that the predictions depend on."""
    sent: SentModel | None
    """The model for the nodes of a cluster."""

    @classmethod
    def prepare(cls, settings: PredictConfig) -> "InputStream":
        """Read the model, and the whole file once, so that nothing is predicted of one that is damaged."""
        check_sources(settings)
        out, path = Path(settings.out) if settings.out else None, Path(settings.input)
        if out is not None and form_of(out) == "submission":
            raise InputError(
                f"--out {out} is a submission to GLUE, and --input is your own file: give a .csv"
            )
        tuned = model_of(settings)
        own = input_config(tuned, settings.own)
        if out is not None:
            check_family_form(out, tuned.family)
        examples = with_unique_ids(input_examples(tuned, path, settings.own), column=own.id)
        first = list(islice(examples, NUM_COMPARED))
        num_examples = len(first) + sum(1 for _ in examples)
        # Before the weights may be rounded.
        sha256 = state_hash(tuned.model.state_dict())
        content = packed(tuned) if settings.cluster else {}
        place = Place.choose(settings, tuned, first)
        device, precision = "cuda" if settings.cluster_gpus else place.device.type, place.precision.name
        facts = {
            "model": sha256,
            "input": files.sha256(path),
            "columns": asdict(own),
            "device": device,
            "precision": precision,
        }
        sent = SentModel(content=content, sha256=sha256, device=device, precision=precision)
        return cls(
            settings=settings,
            tuned=tuned,
            num_examples=num_examples,
            place=place,
            facts=facts,
            sent=sent if settings.cluster else None,
        )

    def pieces(
        self, *, after: int = 0, on_done: Callable[[Piece, str], None] | None = None
    ) -> Iterator[tuple[Piece, Predictions]]:
        """Pieces with their predictions, in order, but for the first ones; `on_done` hears of nodes."""
        examples = input_examples(self.tuned, Path(self.settings.input), self.settings.own)
        pieces = islice(pieces_of(examples), after, None)
        device, precision = self.place.device, self.place.precision.name
        if self.settings.cluster is None:
            yield from predict_here(self.tuned, pieces, device=device, precision=precision)
            return
        with connected(self.settings.cluster) as cluster:
            gpus = self.settings.cluster_gpus
            yield from cluster.work(predict_on_node, pieces, shared=self.sent, gpus=gpus, on_done=on_done)

    def write(self, path: Path) -> Counter[str]:
        """Write the predictions as lines or as a table: how many examples each node has predicted.

        What an earlier command has written is kept.
        """
        by_node: Counter[str] = Counter()
        family = self.tuned.family

        def count(piece: Piece, node: str) -> None:
            by_node[node] += len(piece)

        with Unfinished(path, {**self.facts, "piece": PIECE_EXAMPLES}) as unfinished:
            done = min(unfinished.num_pieces * PIECE_EXAMPLES, self.num_examples)
            if done:
                print(f"  {done:,} of {self.num_examples:,} examples are there already", flush=True)
            with self._progress() as show:
                for piece, predictions in self.pieces(after=unfinished.num_pieces, on_done=count):
                    is_first = unfinished.num_pieces == 0
                    unfinished.add(written(path, family, piece, predictions, is_first=is_first))
                    done += len(piece)
                    show(done)
        return by_node

    @contextmanager
    def _progress(self) -> Iterator[Callable[[int], None]]:
        """What shows how many examples are done, if that may take a while."""
        if self.num_examples <= PIECE_EXAMPLES:
            yield lambda _done: None
            return
        with Progress("predict", total=self.num_examples, unit="examples") as progress:
            yield progress.update

    def predicted(self) -> Predicted:
        """All of them at once."""
        found = list(self.pieces())
        task = Task(
            name=self.tuned.task,
            family=self.tuned.family,
            splits={TEST: [example for piece, _ in found for example in piece]},
            unlabelled=frozenset({TEST}),
            main_score="",
        )
        return Predicted(task=task, split=TEST, predictions=[one for _, some in found for one in some])


def predict_splits(
    settings: PredictConfig,
    *,
    note: Callable[[str], object] = print,
    on_start: Callable[[str, ChosenPrecision], object] = lambda _task, _precision: None,
) -> Iterator[Predicted]:
    """Predict split after split, without writing anything.

    `note` gets a line for what is left out; `on_start` is called before each model predicts, with its task.
    """
    check_sources(settings)
    out = Path(settings.out) if settings.out else None
    if settings.input:
        stream = InputStream.prepare(settings)
        on_start(stream.tuned.task, stream.place.precision)
        yield stream.predicted()
        return
    for tuned, task, splits in _jobs(settings, note):
        if out is not None:
            check_form(out, task, splits)
        place = Place.choose(settings, tuned, task.examples(splits[0]))
        on_start(task.name, place.precision)
        for split in splits:
            with computing(place.device, place.precision.name):
                predictions = judge_split(tuned, task, split).predictions
            yield Predicted(task=task, split=split, predictions=predictions)


def _jobs(
    settings: PredictConfig, note: Callable[[str], object]
) -> Iterator[tuple[FineTuned, Task, list[str]]]:
    """Models, each with its task and the splits to predict."""
    if settings.task != GLUE:
        tuned = model_of(settings)
        name = catalogue.one_task(settings, default=tuned.task)
        yield _with_task(tuned, name, settings)
    elif settings.options:
        raise InputError(f"--options are for one task at a time, and --task is {GLUE}: name one of its tasks")
    else:
        for name in catalogue.glue_with_tests(settings.data):
            folder = Path(settings.model) / catalogue.trained_as(name)
            if folder.is_dir():
                yield _with_task(load_model(folder), name, settings)
            else:
                note(f"  {name}: there is no model in {folder}, so it is left out")


def _with_task(tuned: FineTuned, name: str, settings: PredictConfig) -> tuple[FineTuned, Task, list[str]]:
    task = catalogue.load_for(tuned, name, settings)
    splits = [settings.split] if settings.split else sorted(task.unlabelled)
    if not splits:
        raise InputError(
            f"all examples of {name} have labels: choose the split to predict with --split, one of "
            f"{', '.join(task.splits)}"
        )
    return tuned, task, splits


class Place(NamedTuple):
    """Where a model computes, and in which precision."""

    device: torch.device
    precision: ChosenPrecision

    @classmethod
    def choose(
        cls, settings: EvaluateConfig | PredictConfig, tuned: FineTuned, examples: Sequence[Example]
    ) -> "Place":
        """Bring the model there; the first examples show whether it says the same in another precision."""
        devices.set_up_allocator()
        device = devices.choose_device(settings.device)
        tuned.model.to(device)

        def say(precision: Precision) -> list[Prediction]:
            with computing(device, precision):
                return predict_examples(
                    tuned.model,
                    tuned.task,
                    examples[:NUM_COMPARED],
                    tuned.tokenizer,
                    max_length=tuned.max_length,
                )

        return cls(device, choose(settings.precision, device, [tuned.model], say))
