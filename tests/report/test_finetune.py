import json
import re
import sys
from statistics import fmean, median, stdev

import pytest

from electra.errors import InputError
from electra.report.finetune import finetune_page, read_confusion, read_summary, strip, write_finetune_report

EVIL = "<script>alert(1)</script>\"'&"
LABELS = ["negative", "neutral", "positive", "mixed"]


def summary(*values, undefined=()):
    known = [value for value in values if value is not None]
    return {
        "values": list(values),
        "median": median(known),
        "mean": fmean(known),
        "std": stdev(known),
        "undefined": list(undefined),
    }


@pytest.fixture
def content():
    history = [
        {
            "seed": seed,
            "epoch": epoch,
            "step": 100 * epoch,
            "train_loss": 1.3 / epoch,
            "dev": {"accuracy": 0.8 + 0.02 * epoch + 0.003 * seed, "f1": 0.7},
        }
        for seed in range(3)
        for epoch in (1, 2, 3)
    ]
    dev = {
        "scores": {"f1": summary(0.71, 0.7, 0.75), "accuracy": summary(0.9123, 0.9054, 0.921)},
        "examples": 872,
        "confusion": {
            "labels": LABELS,
            "counts": [[40, 3, 1, 0], [5, 30, 5, 0], [0, 2, 60, 0], [9, 0, 0, 0]],
        },
        "errors": [
            {
                "id": "17",
                "where": "dev.tsv:18",
                "text": "a grey day",
                "text_pair": "a second text",
                "gold": "mixed",
                "predicted": "negative",
                "confidence": 0.98,
            }
        ],
        "ensemble": {"accuracy": 0.93},
    }
    return {
        "task": "sst2",
        "kind": "classification",
        "model": "runs/small",
        "labels": LABELS,
        "main_score": "accuracy",
        "splits": {"dev": dev},
        "seeds": [0, 1, 2],
        "train": {"examples": 67349, "epochs": 3.0, "steps": 300, "seconds": 125.0, "learning_rate": 3e-4},
        "notes": ["train: 67,349 examples"],
        "history": history,
    }


def test_the_page_is_well_formed_and_needs_nothing_else(tmp_path, content, read_html):
    (tmp_path / "scores.json").write_text(json.dumps(content))
    path = write_finetune_report(tmp_path)
    assert path == tmp_path / "report.html"
    html = path.read_text(encoding="utf-8")
    parsed = read_html(html)
    assert len(parsed.ids) == len(set(parsed.ids))
    assert all(link.startswith("#") for link in parsed.links)
    assert not re.search(r"https?:|<script|url\((?!#)|@import", html)
    words = " ".join(parsed.words)
    for shown in (
        "91.23",
        "91.29 ± 0.78",
        "92.10",
        "67,349",
        "2 min 5 s",
        "dev.tsv:18",
        "98.0%",
        "93.00",
        "0.0003",
    ):
        assert shown in words
    assert sorted(file.name for file in tmp_path.iterdir()) == ["report.html", "scores.json"]


def test_the_median_is_the_score_and_the_main_one_comes_first(tmp_path, content):
    html = finetune_page(content, folder=tmp_path)
    assert "<dt>accuracy, dev, median</dt><dd>91.23</dd>" in html
    assert html.index('scope="row">accuracy<') < html.index('scope="row">f1<')
    assert '<tr class="main"><th scope="row">accuracy' in html


def test_every_seed_is_a_dot(tmp_path, content):
    html = finetune_page(content, folder=tmp_path)
    for seed, value in enumerate(("91.23", "90.54", "92.10")):
        assert f"<title>seed {seed}: {value}</title>" in html


def test_dots_lie_on_the_scale():
    drawn = strip("accuracy", read_summary(summary(0.5, 0.6, 0.7)), [0.5, 0.6, 0.7, 0.9], seeds=[1, 2, 3])
    assert [dot.x for dot in drawn.dots] == pytest.approx([12.0, 81.0, 150.0])
    assert (drawn.median, drawn.ends) == (pytest.approx(81.0), ("50.00", "90.00"))
    assert re.fullmatch(r"3 seeds\b.*50\.00.*70\.00.*60\.00", drawn.label)


def test_equal_values_do_not_hide_one_another():
    drawn = strip("accuracy", read_summary(summary(0.5, 0.5, 0.5)), [0.5], seeds=[1, 2, 3])
    assert len({dot.y for dot in drawn.dots}) == 3
    assert drawn.ends is None


def test_what_is_undefined_says_why(tmp_path, content):
    scores = content["splits"]["dev"]["scores"]
    scores["mcc"] = {
        "values": [None, 0.1, None],
        "median": None,
        "mean": None,
        "std": None,
        "undefined": ["all predictions are equal"] * 2,
    }
    html = finetune_page(content, folder=tmp_path)
    assert "undefined: all predictions are equal<" in html
    assert "– · 10.00 · –" in html


def test_random_initialisation_stands_below(tmp_path, content):
    content["baseline"] = {"dev": {"scores": {"accuracy": summary(0.6, 0.62, 0.61)}}}
    html = finetune_page(content, folder=tmp_path)
    row = html[html.index("random initialisation") :]
    assert "61.00" in row[: row.index("</tr>")]
    assert html == finetune_page({**content, "baseline": {"splits": content["baseline"]}}, folder=tmp_path)


def test_curves_have_a_line_for_each_seed(tmp_path, content):
    html = finetune_page(content, folder=tmp_path)
    (curves,) = re.findall(r'<section id="curves">.*?</section>', html, flags=re.DOTALL)
    for words in ("seed 0", "seed 2", "Training loss", "<b>accuracy</b>", "var(--run2)"):
        assert words in curves
    assert curves.index("<b>accuracy</b>") < curves.index("<b>f1</b>")


def test_one_point_is_no_curve(tmp_path, content):
    last = {point["seed"]: point for point in content["history"]}
    assert len(content["history"]) > len(last) > 1
    content["history"] = list(last.values())
    html = finetune_page(content, folder=tmp_path)
    (curves,) = re.findall(r'<section id="curves">.*?</section>', html, flags=re.DOTALL)
    assert "<figure" not in curves
    assert "--log.evaluate_epochs" in curves


def test_a_single_seed_without_spread_and_history(tmp_path, content, read_html):
    content["history"], content["seeds"] = [], [7]
    content["splits"]["dev"]["scores"] = {
        "accuracy": {"values": [0.5], "median": 0.5, "mean": 0.5, "std": None, "undefined": []}
    }
    html = finetune_page(content, folder=tmp_path)
    read_html(html)
    assert "<figure" not in html
    assert "±" not in html[html.index("<tbody>") : html.index("</tbody>")]


def test_without_matplotlib_only_the_curves_are_missing(tmp_path, content, monkeypatch, read_html):
    monkeypatch.setattr("electra.report.page.find_spec", lambda name: None)
    for module in ("electra.report.plots", "matplotlib"):
        monkeypatch.setitem(sys.modules, module, None)
    html = finetune_page(content, folder=tmp_path)
    assert "electra[report]" in " ".join(read_html(html).words)
    assert "<figure" not in html
    assert "91.23" in html


def test_confusion_is_read_with_and_without_colour(content, tmp_path):
    html = finetune_page(content, folder=tmp_path)
    for cell in (
        '<td class="right" style="--share: 64%" title="40 of 44 that are negative were called negative">',
        'style="--share: 70%" title="9 of 9 that are mixed were called negative">9<small>100.0%',
        "mixed taken for negative (9), neutral taken for negative (5)",
        '<th scope="row">mixed</th>',
    ):
        assert cell in html


def test_confusion_that_is_no_square_table_says_so(content, tmp_path):
    given = {"labels": ["a", "b"], "counts": [[1, 2]]}
    assert read_confusion(given) is None
    content["splits"]["dev"]["confusion"] = given
    assert "not a square" in finetune_page(content, folder=tmp_path)


def test_everything_from_outside_is_escaped(tmp_path, content, read_html):
    dev = content["splits"]["dev"]
    dev["errors"] = [dict.fromkeys(("id", "where", "text", "text_pair", "gold", "predicted"), EVIL)]
    dev["confusion"] = {"labels": [EVIL, "b", "c", "d"], "counts": [[1, 2, 3, 4]] * 4}
    dev["scores"][EVIL] = summary(0.1, 0.2, 0.3, undefined=[EVIL])
    content["history"][0]["dev"][EVIL] = 0.5
    content |= {"task": EVIL, "kind": EVIL, "model": EVIL, "notes": [EVIL], "labels": [EVIL]}
    content |= {"splits": {EVIL: dev}, "seeds": [EVIL, 1, 2], "train": {EVIL: EVIL}}
    html = finetune_page(content, folder=tmp_path)
    assert "<script" not in html
    assert EVIL in " ".join(read_html(html).words)


def test_long_texts_are_cut(tmp_path, content):
    content["splits"]["dev"]["errors"][0]["text"] = "word " * 1000
    html = finetune_page(content, folder=tmp_path)
    assert "word word …" in html
    assert html.count("word ") < 200


def test_a_folder_without_scores_says_so(tmp_path):
    with pytest.raises(InputError, match=r"scores\.json.*JSON"):
        write_finetune_report(tmp_path)
    (tmp_path / "scores.json").write_text("{}")
    with pytest.raises(InputError, match=r"scores\.json.*`splits`"):
        write_finetune_report(tmp_path)


def test_the_least_that_scores_can_say(tmp_path, read_html):
    html = finetune_page({"splits": {"dev": {"scores": {}}}}, folder=tmp_path)
    read_html(html)
