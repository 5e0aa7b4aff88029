import importlib
import json
import re

import pytest

from electra.errors import InputError
from electra.run.report import main


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    lines = [
        {
            "kind": "train",
            "step": step,
            "tokens": step * 100,
            "seconds": step,
            "loss": 9 / step,
            "metrics": {},
        }
        for step in (1, 2, 3)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.yaml").write_text("objective: electra\n")
    return folder


def test_one_run_gets_its_page_in_its_own_folder(run, capsys):
    main([str(run)])
    assert (run / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    out = capsys.readouterr().out
    assert "objective  electra" in out
    assert re.search(r"note: run: samples\.jsonl", out)
    assert out.endswith(f"{run / 'report.html'}\n")


def test_several_runs_and_a_named_file(run, tmp_path):
    main([str(run), str(run), "--out", str(tmp_path / "both.html")])
    assert "2 runs" in (tmp_path / "both.html").read_text(encoding="utf-8")
    assert not (run / "report.html").exists()


def test_runs_may_be_named_in_a_config_file(run, tmp_path):
    recipe = tmp_path / "report.yaml"
    recipe.write_text(json.dumps({"runs": [str(run)], "out": str(tmp_path / "page.html")}))
    main(["--config", str(recipe)])
    assert (tmp_path / "page.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "run folders"),
        (["absent"], "absent.*electra pretrain"),
        (["{run}", "--out", "absent/page.html"], "absent"),
        (["{run}", "--ouf", "x"], "'out'"),
    ],
)
def test_bad_usage_says_the_way_out(run, arguments, message):
    with pytest.raises(InputError, match=message):
        main([argument.format(run=run) for argument in arguments])


def test_without_matplotlib_the_extra_is_named(run, monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(InputError, match=r"electra\[report\]"):
        main([str(run)])
