"""`electra demo`: Python's own documentation -> an encoder, a classifier and their reports.

It runs the commands a person would type, and shows each of them.
"""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from electra import config, files, seeds
from electra.cli import main as electra
from electra.demo import corpus
from electra.demo.corpus import Passage
from electra.errors import InputError, import_extra

FINETUNING = (
    *("--seeds", "3", "--train.epochs", "6", "--train.learning_rate", "1e-3"),
    *("--limit_train", "1000", "--max_length", "64", "--log.evaluate_epochs", "3"),
)

# Passages per package in the classification task: torch alone is nearly half of the corpus.
_LEAST_PASSAGES, _MOST_PASSAGES = 100, 300


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole path on Python's own documentation."""

    out: str = "demo"
    """Folder for everything the demo writes. Steps that are finished there are not repeated."""


def main(arguments: Sequence[str]) -> None:
    """Show and run each command."""
    out = Path(config.parse(DemoConfig, arguments, prog="electra demo").out)
    # Needed only at the end, but better missed now than after seven minutes.
    import_extra("matplotlib", extra="report")
    import_extra("sklearn", extra="tasks")
    data, run, passages = str(out / "data"), str(out / "run"), out / "passages.jsonl"
    call(["prepare", "--corpus", "builtin", "--vocab_size", "8192", "--out", data])
    call(["pretrain", "--config", "demo", "--data", data, "--out", run])
    write_passages(passages)
    task = ["--task", "csv", "--data", str(passages), "--own.label", "package", *FINETUNING]
    call(["finetune", "--model", run, *task, "--out", str(out / "classifier")])
    call(["finetune", "--model", "none", "--like", run, *task, "--out", str(out / "control")])
    print(f"\n{compare_classifiers(out)}")
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


def write_passages(path: Path) -> None:
    """Write passages labelled with the package they come from."""
    if path.is_file():
        return
    by_package: dict[str, list[Passage]] = {}
    for passage in corpus.passages(workers=os.cpu_count() or 1):
        by_package.setdefault(passage.package, []).append(passage)
    chosen = [
        passage
        for package, found in by_package.items()
        if len(found) >= _LEAST_PASSAGES
        for passage in sorted(found, key=lambda passage: seeds.derive(0, passage.text))[:_MOST_PASSAGES]
    ]
    lines = [json.dumps({"package": passage.package, "text": passage.text}) + "\n" for passage in chosen]
    files.write_file(path, lambda file: file.writelines(line.encode() for line in lines))


def compare_classifiers(out: Path) -> str:
    """The scores of both classifiers: from the pre-trained encoder and from random weights."""
    rows, medians = [], []
    for folder, start in (("classifier", "pre-trained"), ("control", "random weights")):
        scores = files.read_json(out / folder / "scores.json")
        (split,) = scores["splits"].values()
        score = split["scores"][scores["main_score"]]
        medians.append(score["median"])
        values = ", ".join(f"{value:.1%}" for value in score["values"])
        rows.append(f"  {start:<15} {score['median']:.1%}   ({values})")
    pre_trained, random_weights = medians
    if pre_trained <= random_weights:
        rows.append(
            "A few minutes of pre-training do not help on this task: single words give a package away, and\n"
            "the encoder has read too little to know more. Tasks that tag every word profit sooner."
        )
    labels = len(scores["labels"])
    return "\n".join(
        [f"Which of {labels} packages does a passage come from? Accuracy, median of seeds:", *rows]
    )
