from pathlib import Path

import pytest

from electra.cli import main
from electra.run.demo import RECIPE
from electra.run.pretrain import read_settings

RECIPE_FILE = Path(__file__).parents[2] / "recipes" / "demo.yaml"


def test_the_demo_trains_what_its_recipe_says():
    where = ["--data", "DATA", "--out", "RUN"]
    assert read_settings([*where, *RECIPE]) == read_settings(["--config", str(RECIPE_FILE), *where])


def test_the_demo_is_the_commands_a_person_would_type(monkeypatch, capsys, tmp_path):
    called = []

    def record(command):
        called.append(command[0])
        return 0

    monkeypatch.setattr("electra.run.demo.electra", record)
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert called == ["prepare", "pretrain", "report"]
    assert capsys.readouterr().out.count("$ electra ") == 3


@pytest.mark.parametrize("broken", ["prepare", "pretrain", "report"])
def test_the_demo_stops_at_what_fails(broken, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("electra.run.demo.electra", lambda command: 1 if command[0] == broken else 0)
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert f"stopped at 'electra {broken}'" in capsys.readouterr().err
