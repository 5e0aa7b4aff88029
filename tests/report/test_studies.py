"""Fine-tunings with one illness each."""

import json
import shlex

import pytest

from electra import files
from electra.report.finetune import finetune_page
from electra.report.studies import diagnose_study, read_scores


def summary(values):
    known = sorted(value for value in values if value is not None)
    middle = None if len(known) < len(values) / 2 else known[len(known) // 2]
    return {"values": values, "median": middle, "mean": middle, "std": 0.01, "undefined": []}


def history(scores, losses):
    return [
        {"seed": seed, "epoch": epoch, "train_loss": loss, "dev": {"accuracy": score}}
        for seed in (0, 1, 2)
        for epoch, (score, loss) in enumerate(zip(scores, losses, strict=True), 1)
    ]


def write_study(
    folder,
    *,
    values=(0.80, 0.81, 0.82),
    counts=((80, 20), (15, 85)),
    main="accuracy",
    baseline=0.6,
    points=((0.7, 0.8, 0.81), (0.5, 0.3, 0.2)),
    finished=3,
    events=(),
    has_scores=True,
):
    folder.mkdir()
    config = {"task": "csv", "model": "RUN", "out": str(folder), "seeds": 3, "seed": 0}
    (folder / "config.yaml").write_text(json.dumps({**config, "train": {"learning_rate": 1e-4}}))
    for seed in range(3):
        place = folder / f"seed-{seed}"
        place.mkdir()
        lines = [{"kind": "train", "step": 10, "loss": 0.3, "metrics": {}}]
        lines += [{"kind": "event", "step": 10, "event": event, "message": "x"} for event in events]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        if seed < finished:
            (place / "scores.json").write_text("{}")
    if not has_scores:
        return folder
    confusion = {"labels": ["bad", "good"], "counts": [list(row) for row in counts]}
    other = {"splits": {"dev": {"scores": {main: summary([baseline])}}}}
    content = {
        "task": "csv",
        "kind": "classification",
        "main_score": main,
        "main_split": "dev",
        "splits": {"dev": {"scores": {main: summary(list(values))}, "examples": 200, "confusion": confusion}},
        "seeds": [0, 1, 2],
        "baseline": other,
        "history": history(*points),
    }
    (folder / "scores.json").write_text(json.dumps(content))
    (folder / "final").mkdir()
    (folder / "final" / "config.json").write_text("{}")
    files.write_manifest(folder / "final", {"kind": "fine-tuned model"})
    return folder


def ill(folder):
    return {finding.key: finding for finding in diagnose_study(folder) if finding.is_ill}


def test_a_healthy_fine_tuning_has_nothing_ill(tmp_path):
    assert ill(write_study(tmp_path / "out")) == {}


@pytest.mark.parametrize(
    ("key", "severity", "changes"),
    [
        # 100 of 200 are of one class: two standard errors of that share are 0.07.
        ("not_above_chance", "wrong", {"values": (0.53, 0.55, 0.56), "baseline": 0.5}),
        ("not_above_chance", "wrong", {"counts": ((0, 100), (0, 100)), "main": "mcc", "values": (0.1,) * 3}),
        ("not_above_chance", "wrong", {"main": "mcc", "values": (-0.01, 0.0, 0.0), "baseline": -0.1}),
        ("not_above_chance", "wrong", {"values": (None, None, 0.8)}),
        ("failed_seeds", "watch", {"values": (None, 0.8, 0.8)}),
        ("seeds_differ", "watch", {"values": (0.70, 0.80, 0.85)}),
        ("not_above_random_weights", "watch", {"baseline": 0.83}),
        ("learned_by_heart", "watch", {"points": ((0.7, 0.85, 0.8, 0.79, 0.78), (0.5, 0.3, 0.2, 0.1, 0.0))}),
        ("unfinished", "wrong", {"finished": 2, "has_scores": False}),
        ("diverged", "wrong", {"events": ["diverged"]}),
        ("not_learned", "wrong", {"events": ["collapse"]}),
        ("rolled_back", "watch", {"events": ["rolled_back"]}),
    ],
)
def test_an_illness_is_found(tmp_path, key, severity, changes):
    finding = ill(write_study(tmp_path / "out", **changes))[key]
    assert finding.severity == severity
    words = shlex.split(finding.cure)
    assert words[:4] == ["electra", "finetune", "--config", str(tmp_path / "out" / "config.yaml")]


def test_a_score_that_is_no_share_is_not_compared_with_the_largest_class(tmp_path):
    rare = {"counts": ((180, 10), (5, 5)), "main": "f1", "values": (0.4, 0.41, 0.42), "baseline": 0.2}
    assert ill(write_study(tmp_path / "out", **rare)) == {}


def test_damage(tmp_path):
    folder = write_study(tmp_path / "out")
    (folder / "final" / "config.json").write_text("[]")
    assert ill(folder)["damaged_model"].severity == "wrong"
    (folder / "scores.json").write_text("{")
    assert ill(folder)["damaged_file"].severity == "wrong"


def test_the_page_says_the_same(tmp_path, read_html):
    folder = write_study(tmp_path / "out", values=(0.70, 0.80, 0.85))
    read = read_html(finetune_page(read_scores(folder), folder=folder))
    shown = "".join(read.words)
    for finding in diagnose_study(folder):
        assert finding.says in shown
        assert finding.cure in shown
