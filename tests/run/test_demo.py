import json
import re
from pathlib import Path

import pytest

from electra.cli import main
from electra.run import demo

WORDS = [
    ("If bins is not sorted , it is sorted .", 1),
    ("The mode is used .", 1),
    ("The order of axis is kept .", 3),
]
SCORES = {"code_words": [0.5, 0.75, 0.625], "code_words_control": [0.25, 0.375, 0.3125]}


@pytest.fixture
def commands(monkeypatch):
    """The commands of the demo, recorded in place of being run; a fine-tuning leaves its scores."""
    called, broken = [], set()

    def record(command):
        called.append(command)
        if command[0] == "finetune":
            out = Path(command[command.index("--out") + 1])
            out.mkdir(exist_ok=True)
            values = SCORES.get(out.name, [0.5, 0.5, 0.5])
            scores = {"main_score": "f1", "main_split": "test"}
            scores["splits"] = {"test": {"scores": {"f1": {"values": values}}}}
            (out / "scores.json").write_text(json.dumps(scores))
        return 1 if command[0] in broken else 0

    def write_tasks(folder, *, text):
        text.parent.mkdir(parents=True, exist_ok=True)
        text.write_text('{"text": "one"}\n')
        (folder / "code_words").mkdir(parents=True, exist_ok=True)
        for split in ("train", "test"):
            lines = [
                "\n".join(
                    f"{word}\t{'B-CODE' if place == marked else 'O'}"
                    for place, word in enumerate(sentence.split())
                )
                for sentence, marked in WORDS
            ]
            (folder / "code_words" / f"{split}.conll").write_text("\n\n".join(lines) + "\n")
        rows = [{"package": name, "text": f"{name} {number}"} for name in ("a", "b") for number in range(20)]
        (folder / "passages.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr("electra.run.demo.electra", record)
    monkeypatch.setattr("electra.run.demo.tasks.write_tasks", write_tasks)
    return called, broken


def test_the_demo_is_the_commands_a_person_would_type(commands, capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    called, _ = commands
    assert [command[0] for command in called] == ["prepare", "pretrain", *["finetune"] * 4]
    assert called[1][1:3] == ["--config", demo.RECIPE]
    shown = capsys.readouterr().out
    assert shown.count("$ electra ") == 6
    assert f"electra serve --model {tmp_path / 'run'}" in shown


def test_each_task_has_three_lines_and_a_sentence_made_of_them(commands, capsys, tmp_path):
    main(["demo", "--out", str(tmp_path)])
    shown = capsys.readouterr().out
    tables = shown[shown.index("Which words") :].split("Which package")
    # The linear model knows the sentences of the test, which are those of the training here.
    assert re.findall(r"(\d+\.\d)%", tables[0]) == ["62.5", "50.0", "75.0", "31.2", "25.0", "37.5", "100.0"]
    assert "31.2 points above random weights" in tables[0]
    assert "37.5 points below the linear model" in tables[0]
    assert re.findall(r"(\d+\.\d)%", tables[1])[:6] == ["50.0"] * 6


def test_both_starts_have_the_same_data_and_random_weights_the_longer_training(commands, tmp_path):
    main(["demo", "--out", str(tmp_path)])
    tuned = [command for command in commands[0] if command[0] == "finetune"]
    run = str(tmp_path / "run")
    for first, second in (tuned[:2], tuned[2:]):
        assert first[1:3] == ["--model", run]
        assert second[1:5] == ["--model", "none", "--like", run]
        assert first[7:-1] == second[9:-1]
        assert second[5:9] == [*demo.MUCH_TO_LEARN]
        assert first[3:7] in ([*demo.MUCH_TO_LEARN], [*demo.LITTLE_TO_LEARN])


@pytest.mark.parametrize(
    ("pretrained", "random", "linear", "expected"),
    [
        ([0.7, 0.72, 0.74], [0.5, 0.6, 0.65], 0.71, ("12.0 points above", "more than", "1.0 points above")),
        ([0.6, 0.72, 0.74], [0.5, 0.6, 0.65], 0.80, ("12.0 points above", "within", "8.0 points below")),
        ([0.4, 0.45, 0.48], [0.5, 0.6, 0.65], 0.45, ("15.0 points below", "more than", "level with")),
    ],
)
def test_the_sentence_says_what_the_numbers_say(pretrained, random, linear, expected):
    said = demo.verdict(pretrained, random, linear)
    places = [said.index(words) for words in expected]
    assert places == sorted(places)


@pytest.mark.parametrize("failing", ["prepare", "pretrain", "finetune"])
def test_the_demo_stops_at_what_fails(failing, commands, capsys, tmp_path):
    commands[1].add(failing)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert f"'electra {failing}'" in capsys.readouterr().err
