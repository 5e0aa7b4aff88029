import json
import re
from pathlib import Path

import pytest

from electra.cli import main
from electra.demo.corpus import Passage
from electra.run import demo


@pytest.fixture
def commands(monkeypatch):
    """The commands of the demo, recorded in place of being run; a fine-tuning leaves its scores."""
    called, broken = [], set()

    def record(command):
        called.append(command)
        if command[0] == "finetune":
            out = Path(command[command.index("--out") + 1])
            out.mkdir()
            accuracy = {"values": [0.5, 0.75, 0.625], "median": 0.625}
            scores = {"main_score": "accuracy", "labels": ["a", "b"]}
            scores["splits"] = {"dev": {"scores": {"accuracy": accuracy}}}
            (out / "scores.json").write_text(json.dumps(scores))
        return 1 if command[0] in broken else 0

    def passages(*, workers):
        assert workers >= 1
        sizes = {"few": 99, "some": 100, "many": 400}
        return [
            Passage(package=name, origin="", text=f"{name} {number}")
            for name, size in sizes.items()
            for number in range(size)
        ]

    monkeypatch.setattr("electra.run.demo.electra", record)
    monkeypatch.setattr("electra.run.demo.corpus.passages", passages)
    return called, broken


def test_the_demo_is_the_commands_a_person_would_type(commands, capsys, tmp_path):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    called, _ = commands
    assert [command[0] for command in called] == ["prepare", "pretrain", "finetune", "finetune"]
    assert called[1][1:3] == ["--config", "demo"]
    shown = capsys.readouterr().out
    assert shown.count("$ electra ") == 4
    # Both scores are the same here, so nothing was gained and the demo says so.
    assert re.findall(r"(\d+\.\d)%", shown) == ["62.5", "50.0", "75.0", "62.5"] * 2
    assert "do not help" in shown
    assert f"electra serve --model {tmp_path / 'run'}" in shown


def test_both_classifiers_differ_in_nothing_but_their_start(commands, tmp_path):
    main(["demo", "--out", str(tmp_path)])
    first, second = (command for command in commands[0] if command[0] == "finetune")
    run = str(tmp_path / "run")
    assert first[1:3] == ["--model", run]
    assert second[1:5] == ["--model", "none", "--like", run]
    assert first[3:-1] == second[5:-1]


def test_no_package_outweighs_the_others(commands, tmp_path):
    path = tmp_path / "passages.jsonl"
    demo.write_passages(path)
    packages = [json.loads(line)["package"] for line in path.read_text().splitlines()]
    assert {name: packages.count(name) for name in set(packages)} == {"some": 100, "many": 300}


@pytest.mark.parametrize("failing", ["prepare", "pretrain", "finetune"])
def test_the_demo_stops_at_what_fails(failing, commands, capsys, tmp_path):
    commands[1].add(failing)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert f"'electra {failing}'" in capsys.readouterr().err
