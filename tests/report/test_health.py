import json
import math

import pytest

from electra.report.diagnosis import diagnose_run
from electra.report.findings import in_short
from electra.report.health import judge_metrics, layer_table, noteworthy, now
from electra.report.page import page
from electra.report.runs import metrics_of, read_runs


def verdicts(folder):
    return {verdict.range.key: verdict for verdict in judge_metrics(read_runs([folder])[0])}


def overall(run):
    return in_short(diagnose_run(run))


def test_a_run_that_learned_is_healthy(make_run):
    folder = make_run(events=[])
    assert {verdict.word for verdict in verdicts(folder).values()} == {"healthy"}
    assert overall(read_runs([folder])[0]) == "healthy"


def test_a_discriminator_that_finds_little_is_out_of_range(make_run):
    folder = make_run(skill=0.02, events=[])
    found = verdicts(folder)
    assert found["discriminator_recall"].word == "low"
    assert found["discriminator_auc"].word == "low"
    assert "generator" in found["discriminator_recall"].range.reason
    assert "calls all original" in overall(read_runs([folder])[0])


def test_the_first_steps_are_not_judged(make_run):
    folder = make_run(steps=100, events=[])
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
    assert overall(run) == "rolled back"


def add_metrics(folder, **values):
    """Write more metrics into every evaluation of a run."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if line["kind"] == "valid":
            line["metrics"] |= values
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return folder


def test_a_generator_that_copies_what_it_sees_is_judged_at_masks(make_run):
    found = verdicts(add_metrics(make_run(events=[]), masked_accuracy=0.04, mlm_accuracy=0.18))
    assert found["masked_accuracy"].word == "low"
    assert "mlm_accuracy" not in found


@pytest.mark.slow
def test_hidden_states_are_judged_and_shown_by_layer(make_run):
    below = {"states_rank_layer_1": 40.0, "states_cosine_layer_1": 0.3}
    below |= {"states_rank_layer_10": 7.0, "states_cosine_layer_10": 0.8}
    below |= {"states_rank_layer_2": 20.0, "states_cosine_layer_2": 0.5}
    folder = add_metrics(make_run(events=[]), **below, states_rank=1.4, states_cosine=0.99)
    found = verdicts(folder)
    assert (found["states_rank"].word, found["states_cosine"].word) == ("low", "high")
    runs = read_runs([folder])
    assert layer_table(runs[0]) == [
        ("1", 40.0, 0.3),
        ("2", 20.0, 0.5),
        ("10", 7.0, 0.8),
        ("last", 1.4, 0.99),
    ]
    # Layers have a table; a curve each would fill the page.
    keys = {metric.key for metric in metrics_of(runs)}
    assert "states_rank" in keys
    assert not any("_layer_" in key for key in keys)
    assert "Hidden states by layer" in page(runs)
    assert "Hidden states by layer" not in page(read_runs([make_run("before")]))
