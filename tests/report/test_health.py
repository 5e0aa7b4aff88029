import math
import re

import pytest

from electra.report.health import collapse, judge_metrics, noteworthy, now, overall
from electra.report.page import page
from electra.report.runs import read_runs


def verdicts(folder):
    return {verdict.range.key: verdict for verdict in judge_metrics(read_runs([folder])[0])}


def test_a_run_that_learned_is_healthy(make_run):
    folder = make_run(events=[])
    assert {verdict.word for verdict in verdicts(folder).values()} == {"healthy"}
    assert overall(read_runs([folder])[0]) == "healthy"


def test_a_discriminator_that_finds_little_is_out_of_range(make_run):
    folder = make_run(skill=0.1, events=[])
    found = verdicts(folder)
    assert found["discriminator_recall"].word == "low"
    assert found["discriminator_auc"].word == "low"
    assert "generator" in found["discriminator_recall"].range.reason
    assert "Discriminator recall" in overall(read_runs([folder])[0])


def test_collapse_is_the_verdict_of_the_run_itself_at_its_last_evaluation(make_run):
    past = [("collapse", 0.25, "recall 0.000")]
    (recovered,) = read_runs([make_run("recovered", events=past)])
    assert collapse(recovered) is None
    assert re.fullmatch("healthy.*collapse", overall(recovered))
    (ill,) = read_runs([make_run("ill", skill=0.1, events=[*past, ("collapse", 1.0, "recall 0.001")])])
    assert (collapse(ill).step, collapse(ill).message) == (4000, "recall 0.001")
    assert re.fullmatch("collapsed.*4,000", overall(ill))
    assert "recall 0.001" in page([ill])


def test_the_first_steps_are_not_judged(make_run):
    folder = make_run(steps=100)
    assert {verdict.word for verdict in verdicts(folder).values()} == {"early"}
    assert "early" in overall(read_runs([folder])[0])


def test_the_range_of_replaced_tokens_follows_the_mask_rate(make_run):
    folder = make_run()
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("mask_prob: 0.15", "mask_prob: 0.6"))
    found = verdicts(folder)["replaced_fraction"]
    assert (found.range.low, found.range.high, found.word) == (pytest.approx(0.2), 0.6, "low")


def test_the_discriminator_must_beat_the_base_rate(make_run):
    found = verdicts(make_run())
    share = found["replaced_fraction"].now.value
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert found["discriminator_loss"].range.high == pytest.approx(entropy)


def test_held_out_values_go_before_training_values(make_run):
    (run,) = read_runs([make_run(steps=1000)])
    assert now(run, "mlm_loss").value == run.valid[-1]["mlm_loss"]
    tail = [record["loss"] for record in run.train][-5:]
    assert now(run, "loss").value == pytest.approx(sum(tail) / 5)
    assert now(run, "unknown").value is None


def test_events_of_every_day_are_not_marked(make_run):
    (run,) = read_runs([make_run()])
    assert [event.event for event in noteworthy(run)] == [
        "skipped_update",
        "rolled_back",
        "signal",
        "resumed",
    ]
    assert re.fullmatch("healthy.*rolled back", overall(run))
