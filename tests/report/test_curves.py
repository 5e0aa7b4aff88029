import numpy as np
import pytest

from electra.report.curves import AXES, MOST_BINS, Curve, axes_of, curve, even, place, smoothed, thinned
from electra.report.runs import Event, read_runs

STEP, TOKENS, _, SECONDS = AXES


def line(values):
    return Curve(x=np.arange(len(values), dtype=float), y=np.array(values, dtype=float))


def test_a_curve_skips_what_was_not_measured():
    records = [{"step": 1, "loss": 3.0}, {"step": 2}, {"step": 3, "loss": 1.0}]
    found = curve(records, "loss", STEP)
    assert (found.x.tolist(), found.y.tolist()) == ([1, 3], [3, 1])
    assert not curve(records, "loss", TOKENS)


def test_a_curve_breaks_where_the_run_rolled_back():
    records = [{"step": step, "loss": 1.0} for step in (1, 2, 3, 2, 3, 4)]
    found = curve(records, "loss", STEP)
    assert np.flatnonzero(np.isnan(found.y)).tolist() == [3]
    assert len(found.x) == 7


def test_smoothing_is_the_centred_mean():
    values = np.random.default_rng(0).normal(size=200)
    calm = smoothed(line(values))
    # 200 / 25 = 8 points: four on each side and the middle.
    assert calm.y[100] == pytest.approx(values[96:105].mean())
    assert calm.y[0] == pytest.approx(values[:5].mean())
    assert smoothed(line(range(200))).y[100] == pytest.approx(100), "no lag"


def test_smoothing_leaves_few_points_alone_and_keeps_breaks():
    few = line([1, 5, 2])
    assert smoothed(few) is few
    broken = line([1.0] * 50 + [np.nan] + [2.0] * 50)
    assert np.flatnonzero(np.isnan(smoothed(broken).y)).tolist() == [50]


def test_thinning_keeps_the_spike():
    values = np.ones(50_000)
    values[31_337] = 1000
    thin = thinned(line(values))
    assert len(thin.y) <= 2 * MOST_BINS
    assert thin.x[thin.y.argmax()] == 31_337
    assert len(even(line(values)).y) <= MOST_BINS


def test_an_event_is_placed_on_every_axis(make_run):
    (run,) = read_runs([make_run(steps=100)])
    event = Event(step=55, seconds=None, event="collapse", message="")
    assert place(event, run, STEP) == 55
    assert place(event, run, TOKENS) == pytest.approx(55 * 4096)
    assert place(event, run, SECONDS) == pytest.approx(55 * 4096 / 3100)


def test_axes_are_those_that_were_measured(make_run, tmp_path):
    assert axes_of(read_runs([make_run(steps=20)])) == list(AXES)
    (tmp_path / "metrics.jsonl").write_text('{"kind": "train", "step": 1, "seconds": 2}\n')
    assert axes_of(read_runs([tmp_path])) == [STEP, SECONDS]
