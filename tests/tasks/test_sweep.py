"""The search, through a stand-in for optuna that offers the same few calls."""

import dataclasses
import random
import re
import sys
from types import SimpleNamespace

import pytest

from electra.errors import InputError
from electra.tasks import sweep
from electra.tasks.sweep import Looks, Outcome, SweepConfig, Trial, TrialStoppedError


class Asked:
    def __init__(self, rng):
        self._rng = rng

    def suggest_float(self, name, low, high, *, log):
        assert name == "learning_rate"
        assert log
        return low * (high / low) ** self._rng.random()

    def suggest_categorical(self, name, choices):
        assert name == "epochs"
        return self._rng.choice(choices)


@pytest.fixture
def told(monkeypatch):
    """What the search was told; stands in for optuna, which is not a dependency of the tests."""
    told = []

    def create_study(*, direction, sampler):
        assert direction == "maximize"
        rng = random.Random(sampler)
        return SimpleNamespace(
            ask=lambda: Asked(rng), tell=lambda asked, value=None, state=None: told.append((value, state))
        )

    fake = SimpleNamespace(
        create_study=create_study,
        samplers=SimpleNamespace(TPESampler=lambda *, seed: seed),
        trial=SimpleNamespace(TrialState=SimpleNamespace(FAIL="fail")),
        logging=SimpleNamespace(WARNING=30, set_verbosity=lambda level: None),
    )
    monkeypatch.setitem(sys.modules, "optuna", fake)
    return told


def run_search(scores, *, known=(), trials=4, **changes):
    asked = []

    def run(proposals):
        for one in proposals:
            asked.append((one.number, one.learning_rate, one.epochs))
            yield Outcome(scores[one.number], [])

    config = SweepConfig(trials=trials, **changes)
    return list(sweep.search(config, run, learning_rate=1e-4, epochs=2.0, seed=3, known=known)), asked


def test_every_trial_is_within_the_space_and_told(told):
    trials, asked = run_search([0.1, 0.4, 0.2, 0.3])
    assert [(trial.number, trial.learning_rate, trial.epochs) for trial in trials] == asked
    assert all(0.25e-4 <= trial.learning_rate <= 4e-4 and trial.epochs in (1, 2, 4) for trial in trials)
    assert told == [(0.1, None), (0.4, None), (0.2, None), (0.3, None)]
    assert sweep.best(trials) is trials[1]


def test_given_epochs_are_those_tried(told):
    trials, _ = run_search([0.1] * 4, epochs=[5.0])
    assert {trial.epochs for trial in trials} == {5.0}


def test_a_continued_search_repeats_nothing_and_finds_the_same(told):
    whole, _ = run_search([0.1, 0.4, 0.2, 0.3])
    continued, asked = run_search([0.1, 0.4, 0.2, 0.3], known=whole[:2])
    assert continued == whole
    assert [number for number, _, _ in asked] == [2, 3]


def test_trials_of_another_search_are_not_taken_for_its_own(told):
    whole, _ = run_search([0.1, 0.4, 0.2, 0.3])
    _, asked = run_search([0.1, 0.4, 0.2, 0.3], known=whole, span=2.0)
    assert len(asked) == 4


def test_an_undefined_score_is_no_number(told):
    trials, _ = run_search([None, 0.4], trials=2)
    assert told[0] == (None, "fail")
    assert sweep.best(trials).number == 1
    with pytest.raises(InputError, match="trial"):
        sweep.best(trials[:1])


def test_the_trials_of_a_round_know_of_earlier_rounds_only():
    optuna = pytest.importorskip("optuna")
    scores = [0.1, 0.9, 0.2, 0.3, 0.5, 0.4, 0.8, 0.7, 0.6, 0.2, 0.3, 0.1, 0.9, 0.5]
    trials, _ = run_search(scores, trials=14, at_once=4)
    # The same by optuna alone.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=3))
    expected = []
    while len(expected) < 14:
        first = len(expected)
        asked = [study.ask() for _ in range(min(4, 14 - first))]
        for one in asked:
            rate = one.suggest_float("learning_rate", 0.25e-4, 4e-4, log=True)
            expected.append((rate, one.suggest_categorical("epochs", [1.0, 2.0, 4.0])))
        for number, one in enumerate(asked, start=first):
            study.tell(one, scores[number])
    assert [(trial.learning_rate, trial.epochs) for trial in trials] == expected
    # In a round of its own, a trial sees all before it: from the eleventh on, that makes a difference.
    alone, _ = run_search(scores, trials=14)
    assert alone[:10] == trials[:10]
    assert alone[11:] != trials[11:]


def finished_trials(seen):
    return [
        Trial(number=number, learning_rate=1e-4, epochs=1.0, score=values[-1], seen=list(values))
        for number, values in enumerate(seen)
    ]


SEEN = [(0.1, 0.5), (0.3, 0.4), (0.2, 0.6), (0.5, 0.7), (0.4, 0.3)]


@pytest.mark.parametrize("values", [(0.1, 0.9), (0.31, 0.45), (0.3, 0.5), (0.6, 0.1), (0.35, 0.52)])
def test_a_trial_is_stopped_where_optunas_median_pruner_stops_it(values):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4)
    study = optuna.create_study(direction="maximize", pruner=pruner)
    for seen in SEEN:
        asked = study.ask()
        for step, value in enumerate(seen):
            asked.report(value, step)
        study.tell(asked, seen[-1])
    asked, expected = study.ask(), None
    for step, value in enumerate(values):
        asked.report(value, step)
        if expected is None and asked.should_prune():
            expected = step
    looks = Looks(every=10, score="f1", bars=sweep.bars(finished_trials(SEEN), looks=2))
    found = None
    for step, value in enumerate(values):
        try:
            looks({"f1": value}, 10 * (step + 1))
        except TrialStoppedError:
            found = step
            break
    assert found == expected


def test_few_or_stopped_trials_stop_no_other():
    trials = finished_trials(SEEN)
    assert sweep.bars(trials[:3], looks=2) == [None, None]
    assert sweep.bars(trials, looks=2) == [0.3, 0.5]
    stopped = [dataclasses.replace(trial, is_stopped=True) for trial in trials[:2]]
    assert sweep.bars([*stopped, *trials[2:]], looks=2) == [None, None]
    assert sweep.best([*stopped, *trials[2:]]) is trials[3]


def test_looks_come_at_their_steps_and_once_each():
    looks = Looks(every=10, score="f1", bars=[None, 0.5], seen=[0.2, 0.9])
    looks({"f1": 0.3}, 7)
    looks({"f1": float("nan")}, 10)
    assert looks.seen == [None]
    looks({"f1": 0.9}, 20)
    looks({"f1": 0.1}, 30)
    assert looks.seen == [None, 0.9]


def test_a_stopped_trial_is_told_as_pruned_and_never_chosen():
    pytest.importorskip("optuna")

    def run(proposals):
        for one in proposals:
            yield Outcome(0.9, [0.9], True) if one.number == 1 else Outcome(0.1 * one.number, [0.1])

    trials = list(sweep.search(SweepConfig(trials=3, looks=1), run, learning_rate=1e-4, epochs=2.0, seed=0))
    assert [trial.is_stopped for trial in trials] == [False, True, False]
    assert sweep.best(trials).number == 2


def test_the_record_says_that_dev_was_used_for_choosing():
    trial = Trial(number=0, learning_rate=1e-4, epochs=3.0, score=0.5)
    record = sweep.as_json([trial], split="dev", main_score="mcc")
    assert record["trials"][0]["score"] == 0.5
    assert re.search(r"\b1 trial\b.*\bdev\b", record["note"])


@pytest.mark.parametrize(
    "bad", [{"trials": -1}, {"span": 1.0}, {"epochs": [0.0]}, {"at_once": 0}, {"looks": -1}]
)
def test_senseless_searches_are_refused(bad):
    with pytest.raises(InputError, match=f"sweep.{next(iter(bad))}"):
        SweepConfig(**bad)


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    config = SweepConfig(trials=1)
    with pytest.raises(InputError, match=r"electra\[sweep\]"):
        list(sweep.search(config, lambda _: [], learning_rate=1e-4, epochs=2.0, seed=0))
