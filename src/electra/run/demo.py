"""`electra demo`: the whole path, by the commands a person would type, on Python's own documentation."""

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

# What recipes/demo.yaml says, for an installation that has no recipes; a test keeps the two equal.
RECIPE = (
    *("--model.size", "tiny", "--model.num_hidden_layers", "4", "--model.num_attention_heads", "8"),
    *("--model.embedding_size", "128", "--model.position_embedding_type", "alibi", "--model.dropout", "0"),
    *("--generator.depth", "0.5", "--train.max_time", "3m", "--train.batch_size", "16"),
    *("--train.optimizer", "adamw", "--train.beta2", "0.98", "--train.learning_rate", "1.2e-3"),
    *("--train.warmup_fraction", "0.1", "--train.schedule", "trapezoid", "--train.decay_fraction", "0.4"),
    *("--log.log_every", "20", "--log.evaluate_every", "250", "--checkpoint.save_every", "500"),
)


FINETUNING = (
    *("--seeds", "3", "--train.epochs", "6", "--train.learning_rate", "1e-3"),
    *("--limit_train", "1000", "--max_length", "64", "--log.evaluate_epochs", "3"),
)

_LEAST_PASSAGES, _MOST_PASSAGES = 100, 300
"""Of a package in the classification task: torch alone is nearly half of the corpus."""


@dataclass(frozen=True, kw_only=True)
class DemoConfig:
    """The whole path on Python's own documentation."""

    out: str = "demo"
    """Folder for everything the demo makes; what is there already is not made again."""


def main(arguments: Sequence[str]) -> None:
    """Run and show each command of the path."""
    out = Path(config.parse(DemoConfig, arguments, prog="electra demo").out)
    # Missed at the end, they would cost the whole path.
    import_extra("matplotlib", extra="report")
    import_extra("sklearn", extra="tasks")
    data, run, passages = str(out / "data"), str(out / "run"), out / "passages.jsonl"
    call(["prepare", "--corpus", "builtin", "--vocab_size", "8192", "--out", data])
    call(["pretrain", "--data", data, "--out", run, *RECIPE])
    call(["report", run])
    write_passages(passages)
    task = ["--task", "csv", "--data", str(passages), "--own.label", "package", *FINETUNING]
    call(["finetune", "--model", run, *task, "--out", str(out / "classifier")])
    call(["finetune", "--model", "none", "--like", run, *task, "--out", str(out / "control")])
    print(f"\n{comparison(out)}")
    print(
        "\nOpen the reports in a browser. On your own text, the same commands with --corpus FOLDER.\n"
        "Play against the discriminator, and see what it suspects, on a page of its own:\n"
        f"  electra serve --model {run}        then open http://127.0.0.1:8000"
    )


def call(command: Sequence[str]) -> None:
    """Show a command and run it."""
    print(f"\n$ electra {shlex.join(command)}", flush=True)
    if code := electra(command):
        raise InputError(f"the demo stopped at 'electra {command[0]}' (exit code {code})")


def write_passages(path: Path) -> None:
    """Write the labelled passages: which package does each come from?"""
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


def comparison(out: Path) -> str:
    """The classifier from the pre-trained encoder beside the one that began with random weights."""
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
            "Minutes of pre-training do not pay on this task: single words give the packages away, and the\n"
            "encoder has read too little to know more. Where every word gets a tag, they pay sooner."
        )
    labels = len(scores["labels"])
    return "\n".join(
        [f"Which of {labels} packages does a passage come from? Accuracy, median of seeds:", *rows]
    )
