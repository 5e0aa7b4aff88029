"""`electra demo`: Python's own documentation -> an encoder, two fine-tuned tasks, and what pre-training gave.

It runs the commands a person would type, and shows each of them. Each task is also learned from random
weights and by a linear model of scikit-learn, from the same examples.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from electra import config, files
from electra.cli import main as electra
from electra.demo import tasks
from electra.errors import InputError, import_extra
from electra.show import percent, table
from electra.tasks import baselines
from electra.tasks.config import FinetuneConfig
from electra.tasks.data import catalogue
from electra.tasks.study import limited

RECIPE = "minutes"
PRETRAINING = ("--config", RECIPE, "--train.max_time", "140s")
FINETUNING = ("--seeds", "3", "--train.layer_decay", "1", "--max_length", "128", "--log.evaluate_epochs", "6")
MUCH_TO_LEARN = ("--train.epochs", "6", "--train.learning_rate", "1e-3")
"""Enough for random weights to learn what can be learned from so few examples."""
LITTLE_TO_LEARN = ("--train.epochs", "4", "--train.learning_rate", "5e-4")
"""An encoder that has read learns code words better so, random weights worse (docs/log.md, 2026-11-18)."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole path on Python's own documentation."""

    out: str = "demo"
    """Folder for everything the demo writes. Steps that are finished there are not repeated."""


@dataclass(frozen=True, kw_only=True)
class DemoTask:
    """A task of the demo, as words of `electra finetune`."""

    name: str
    question: str
    score: str
    """What its main score is called in a sentence."""
    words: tuple[str, ...]
    pretrained: tuple[str, ...]
    """How long and how fast the pre-trained encoder learns it; random weights have `MUCH_TO_LEARN`."""
    linear_advantage: str
    """What helps the linear model, to be said where it is ahead."""
    little_to_gain: str
    """Why an encoder gains little by pre-training, to be said where it does not gain."""


def demo_tasks(out: Path) -> tuple[DemoTask, ...]:
    """Both tasks, in files that the demo has written."""
    return (
        DemoTask(
            name=tasks.CODE_WORDS,
            question="Which words of a sentence did its authors mark as code",
            score="F1",
            words=("--task", "conll", "--data", str(out / "tasks" / tasks.CODE_WORDS), *FINETUNING),
            pretrained=LITTLE_TO_LEARN,
            linear_advantage="many code words are known from the training sentences",
            little_to_gain="the encoder has read too little; raise --train.max_time",
        ),
        DemoTask(
            name=tasks.PASSAGES,
            question="Which package does a passage come from",
            score="accuracy",
            words=(
                *("--task", "csv", "--data", str(out / "tasks" / f"{tasks.PASSAGES}.jsonl")),
                # Of the tenth that is usual, 350 passages, the score would vary by five points.
                *("--own.label", "package", "--own.dev_share", "0.3", "--limit_train", "300", *FINETUNING),
            ),
            pretrained=MUCH_TO_LEARN,
            linear_advantage="single words give a package away, and it counts those of the whole passage, "
            "where the encoder reads the first 128 tokens",
            little_to_gain="single words give a package away, and an encoder learns those from the labels "
            "alone; how words go together, which is what it has read for, is hardly asked for",
        ),
    )


def main(arguments: Sequence[str]) -> None:
    """Show and run each command."""
    out = Path(config.parse(DemoConfig, arguments, prog="electra demo").out)
    # Needed only at the end, but better missed now than after seven minutes.
    import_extra("matplotlib", extra="report")
    import_extra("sklearn", extra="tasks")
    data, run = str(out / "data"), str(out / "run")
    text = out / "text"
    print(f"reading the documentation of this Python installation into {text}", flush=True)
    tasks.write_tasks(out / "tasks", text=text / "documentation.jsonl")
    call(["prepare", "--corpus", str(text), "--vocab_size", "8192", "--out", data])
    call(["pretrain", *PRETRAINING, "--data", data, "--out", run])
    results = []
    for task in demo_tasks(out):
        for folder, start in starts(out, task, run):
            call(["finetune", *start, *task.words, "--out", str(folder)])
        results.append(comparison(out, task))
    print("\n" + "\n\n".join(results))
    print(
        "\nThe encoder has read these texts in its pre-training, but no labels: the corpus names no package\n"
        "and has no marks. No file gives sentences both for training and for the test."
    )
    print(
        "\nOpen the reports in a browser. For your own text, run the same commands with --corpus FOLDER.\n"
        "To play against the discriminator and see which words it suspects:\n"
        f"  electra serve --model {run}        then open http://127.0.0.1:8000"
    )


def call(command: Sequence[str]) -> None:
    """Show a command and run it."""
    print(f"\n$ electra {shlex.join(command)}", flush=True)
    if code := electra(command):
        raise InputError(f"the demo stopped at 'electra {command[0]}' (exit code {code})")


def starts(out: Path, task: DemoTask, run: str) -> list[tuple[Path, list[str]]]:
    """Folders and starts of both fine-tunings of a task: the pre-trained encoder, and random weights."""
    return [
        (out / task.name, ["--model", run, *task.pretrained]),
        (out / f"{task.name}_control", ["--model", "none", "--like", run, *MUCH_TO_LEARN]),
    ]


def comparison(out: Path, task: DemoTask) -> str:
    """A task's scores from the pre-trained encoder, from random weights and by the linear model."""
    pretrained, random = (read_values(folder) for folder, _ in starts(out, task, ""))
    name, linear = linear_score(task)
    rows = [
        (task.score, "median", "(lowest - highest)"),
        *(
            (start, percent(median(values)), f"({percent(min(values))} - {percent(max(values))})")
            for start, values in (("pre-trained", pretrained), ("random weights", random))
        ),
        (name, percent(linear), ""),
    ]
    lines = [f"{task.question}?", table(rows, gap=3), verdict(pretrained, random, linear)]
    if min(pretrained) <= max(random):
        lines.append(f"Why there is little to gain here: {task.little_to_gain}.")
    if linear > median(pretrained):
        lines.append(f"What helps the linear model here: {task.linear_advantage}.")
    return "\n".join(lines)


def read_values(folder: Path) -> list[float]:
    """The main score of every seed of a fine-tuning; 0 where it is undefined, such as F1 without a mark."""
    content = files.read_json(folder / "scores.json")
    values = content["splits"][content["main_split"]]["scores"][content["main_score"]]["values"]
    return [value or 0.0 for value in values]


def linear_score(task: DemoTask) -> tuple[str, float]:
    """Name and score of the linear model, which learns from the same examples."""
    asked = config.read(FinetuneConfig, task.words, prog="electra finetune").draft()
    (name,) = catalogue.task_names(asked)
    loaded = limited(catalogue.load_task(name, asked), train=asked.limit_train, held_out=None)
    called = baselines.baseline_name(loaded)
    assert called is not None, name
    score = baselines.baseline_scores(loaded)[loaded.scored_splits[0]][loaded.main_score]
    return called, score.value if score.is_defined else 0.0


def verdict(pretrained: Sequence[float], random: Sequence[float], linear: float) -> str:
    """One sentence that says what the numbers say."""
    ours, apart = median(pretrained), min(pretrained) > max(random) or max(pretrained) < min(random)
    spread = "more than the seeds differ" if apart else "within the spread of the seeds"
    return (
        f"Pre-training {_points(ours - median(random))} random weights, {spread}, "
        f"and {_points(ours - linear)} the linear model."
    )


def _points(difference: float) -> str:
    size = f"{100 * abs(difference):.1f} points"
    return (
        f"is {size} {'above' if difference > 0 else 'below'}"
        if abs(difference) >= 0.0005
        else "is level with"
    )
