"""Every command in docs/paper.md runs, for two steps, with a small model on small data."""

import csv
import itertools
import re
import shlex
from pathlib import Path

import pytest

from electra import cli

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
LINES = re.findall(r"`(electra [a-z]+ --[^`]*)`", PAGE.read_text(encoding="utf-8"))
SMALLER = {
    "pretrain": {
        "model.size": "tiny",
        "model.hidden_size": 64,
        "model.embedding_size": 32,
        "model.intermediate_size": 128,
        "two_stage.first_stage_steps": 1,
        "train.steps": 2,
        "train.batch_size": 4,
        "train.micro_batch": 4,
        "train.learning_rate": 0.001,
        "train.warmup_steps": 0,
        "train.warmup_fraction": 0.1,
        "train.precision": "fp32",
        "log.evaluate_every": 2,
        "valid_rows": 4,
    },
    "finetune": {"seeds": 1, "train.epochs": 1, "train.batch_size": 8, "train.precision": "fp32"},
    "prepare": {"seq_length": 32, "workers": 1},
}
"""Verb -> keys that make its work small, unless a command says otherwise."""


@pytest.fixture(scope="module")
def names(runs, other_vocabulary, tmp_path_factory):
    """What the words in capitals stand for."""
    folder = tmp_path_factory.mktemp("names")
    keys = {**SMALLER["pretrain"], "data": runs.data, "out": folder / "run"}
    of_other = {**keys, "data": other_vocabulary, "out": folder / "other"}
    for given in (keys, of_other):
        assert cli.main(["pretrain", *(f"--{key}={value}" for key, value in given.items())]) == cli.OK
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(f"the {word} river {number}", word) for number in range(12) for word in ("old", "new")]
        csv.writer(file).writerows([("text", "label"), *rows])
    return {
        "DATA": runs.data,
        "RUN": folder / "run",
        "MODEL": folder / "other",
        "TEXT": runs.data.parent / "corpus.txt",
        "TABLE": folder / "table.csv",
    }


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.removeprefix("electra "))
def test_a_command_of_the_page_runs(line, names, tmp_path, capsys):
    _, verb, *words = shlex.split(line)
    given = {word.removeprefix("--") for word in words if word.startswith("--")}
    out = tmp_path / "out"
    words = [
        re.sub(r"^[A-Z]+\b", lambda name: str(names.get(name[0], name[0])), word)
        if before != "--out"
        else str(out)
        for before, word in itertools.pairwise(["", *words])
    ]
    # A bag of vectors has one size only.
    unknown = {"model.intermediate_size", "model.embedding_size"} if "word_vectors" in words else set()
    smaller = {key: value for key, value in SMALLER.get(verb, {}).items() if key not in given | unknown}
    words += [f"--{key}={value}" for key, value in smaller.items()]
    assert cli.main([verb, *words]) == cli.OK, capsys.readouterr().err
    assert (out / "manifest.json").is_file() or (out / "final").is_dir() or "out" not in given


def test_the_page_has_a_command_for_all_that_it_lists():
    """Each row of its tables ends with one, and no option of the lists is missing."""
    rows = re.findall(r"^\| .* \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 30
    for row in rows:
        last = row.split(" | ")[-1]
        assert last.startswith(("`electra ", "command |")), row
    both = " ".join(LINES)
    for words in (
        "train.optimizers separate",
        "--start MODEL",
        "sampling most_probable",
        "kind two_tower",
        "temperature 2",
        "correct_token forbidden",
    ):
        assert words in both
