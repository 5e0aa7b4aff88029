import re

import pytest

from electra.bench.plots import draw_picture, ratios


def test_ours_beside_each_of_the_others(contest_result):
    several = {
        **contest_result,
        "ours": ["predict", "server"],
        "seconds": {"predict": [1.0], "server": [2.0], "pipeline": [3.0, 5.0]},
    }
    found = {(bar.label, bar.ratio) for bar in ratios("serve", several)}
    assert found == {("predict against pipeline", 4.0), ("server against pipeline", 2.0)}
    assert [bar.label for bar in ratios("pretrain", contest_result)] == ["against plain"]


@pytest.mark.slow
def test_the_picture_has_bars_and_curves(contest_result, growth_result, tmp_path):
    path = tmp_path / "bench.svg"
    draw_picture({"pretrain": contest_result, "growth": growth_result}, path)
    content = path.read_text(encoding="utf-8")
    written = re.findall(r"<!-- (.*?) -->", content)
    assert {"pretrain: against plain", "3.00 x", "tokens of a row", "seconds a step", "needed"} <= {*written}
    draw_picture({"pretrain": contest_result, "growth": growth_result}, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == content


@pytest.mark.parametrize("kind", ["pretrain", "growth"])
def test_each_half_can_stand_alone(kind, contest_result, growth_result, tmp_path):
    draw_picture({kind: {"pretrain": contest_result, "growth": growth_result}[kind]}, tmp_path / "bench.png")
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")


def test_memory_that_is_not_known_is_not_drawn(growth_result, tmp_path):
    for point in growth_result["points"]:
        point |= {"memory": None, "libraries": None}
    draw_picture({"growth": growth_result}, tmp_path / "bench.svg")
    written = re.findall(r"<!-- (.*?) -->", (tmp_path / "bench.svg").read_text(encoding="utf-8"))
    assert "needed" in written
    assert "held" not in written


def test_quality_has_a_panel_for_each_column_and_a_line_for_each_row(quality_result, tmp_path):
    path = tmp_path / "quality.svg"
    draw_picture({"quality": quality_result}, path)
    written = re.findall(r"<!-- (.*?) -->", path.read_text(encoding="utf-8"))
    assert {*quality_result["columns"], *quality_result["rows"]} <= {*written}
    assert written.count("minutes of pre-training") == len(quality_result["columns"])
    # Once, in a legend for all panels.
    assert written.count("random weights") == 1


@pytest.mark.slow
def test_quality_before_its_first_cell_is_drawn_empty(quality_result, tmp_path):
    begun = {**quality_result, "cells": [], "runs": [], "summary": {}}
    draw_picture({"quality": begun}, tmp_path / "quality.png")
    assert (tmp_path / "quality.png").read_bytes().startswith(b"\x89PNG")
