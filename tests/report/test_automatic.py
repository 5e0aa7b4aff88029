"""A finished run has its page, and what is wrong with a page is no error."""

import sys

from electra.report import write_report


def test_a_folder_without_metrics_is_told_and_is_no_error(tmp_path):
    assert "metrics.jsonl" in write_report(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_matplotlib_it_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "electra[report]" in write_report(tmp_path)
