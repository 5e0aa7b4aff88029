"""The search, through a stand-in for optuna that offers the same few calls."""

import random
import re
import sys
from types import SimpleNamespace

import pytest

from electra.errors import InputError
from electra.tasks import sweep
from electra.tasks.sweep import SweepConfig, Trial


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

    def run(number, learning_rate, epochs):
        asked.append((number, learning_rate, epochs))
        return scores[number]

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


def test_the_record_says_that_dev_was_used_for_choosing():
    trial = Trial(number=0, learning_rate=1e-4, epochs=3.0, score=0.5)
    record = sweep.as_json([trial], split="dev", main_score="mcc")
    assert record["trials"][0]["score"] == 0.5
    assert re.search(r"\b1 trial\b.*\bdev\b", record["note"])


@pytest.mark.parametrize("bad", [{"trials": -1}, {"span": 1.0}, {"epochs": [0.0]}])
def test_senseless_searches_are_refused(bad):
    with pytest.raises(InputError, match=f"sweep.{next(iter(bad))}"):
        SweepConfig(**bad)


def test_without_optuna_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    config = SweepConfig(trials=1)
    with pytest.raises(InputError, match=r"electra\[sweep\]"):
        list(sweep.search(config, lambda *_: 0.0, learning_rate=1e-4, epochs=2.0, seed=0))
