"""A short selection of the campaign; `make chaos` runs all of it."""

import random

import pytest

import campaign
import faults
import flips
import kills
import shim
from jobs import Workshop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    return Workshop(tmp_path_factory.mktemp("chaos") / "workshop")


def assert_good(outcome):
    assert outcome.is_good, f"{outcome.attack} of {outcome.target}: {outcome.verdict}"


@pytest.mark.parametrize("name", ["prepare", "pretrain"])
def test_killed_at_random_it_makes_the_same_bits(workshop, name):
    outcome = kills.kill(workshop, name, random.Random(name), times=2)
    assert_good(outcome)
    assert outcome.count


@pytest.mark.parametrize("attack", [kills.interrupt, kills.pause])
def test_interrupted_or_paused_it_makes_the_same_bits(workshop, attack):
    assert_good(attack(workshop, "prepare", random.Random(1)))


@pytest.mark.parametrize("kind", ["full", "broken", "clock"])
def test_a_bad_disk_or_clock_costs_nothing_but_time(workshop, kind):
    outcome = faults.strike(workshop, "prepare", kind, random.Random(2))
    assert_good(outcome)
    assert outcome.count == 1


@pytest.mark.parametrize("artefact", ["dataset", "encoder"])
@pytest.mark.parametrize("seed", range(3))
def test_a_wrong_bit_is_found_or_harmless(workshop, artefact, seed):
    assert_good(flips.flip(workshop, artefact, random.Random(seed)))


def test_a_corpus_that_changes_is_read_before_or_after(workshop):
    assert_good(kills.change_corpus(workshop, random.Random(3)))


def test_the_campaign_sees_what_is_lost(workshop, tmp_path):
    """An attack on the campaign: it would be worth nothing if it called everything good."""
    job = workshop.job("prepare")
    assert job.difference(tmp_path / "nothing") == "nothing is not there"
    assert job.finish(tmp_path / "out").code == 0
    assert job.difference(tmp_path / "out") == ""
    shard = tmp_path / "out" / "train-00000.ids.npy"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert job.difference(tmp_path / "out") == "train-00000.ids.npy differs"
    shard.unlink()
    assert job.difference(tmp_path / "out") == "train-00000.ids.npy is missing"
    outcomes = [
        (0, kills.Outcome("kill -9", "prepare", 4, "same")),
        (1, kills.Outcome("kill -9", "prepare", 4, "it differs")),
    ]
    assert "| kill -9 | prepare | 8 | 1 | 0 | 0 | 1 |" in campaign.table(outcomes)


def test_the_shim_fails_at_the_operation_it_names(tmp_path):
    fault = shim.Fault("broken", tmp_path, tmp_path / "noted", at=2)
    fault.operation()
    with pytest.raises(OSError, match="Input/output"):
        fault.operation()
    fault.operation()
    full = shim.Fault("full", tmp_path, tmp_path / "noted", at=1)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            full.operation()


def test_what_there_is_no_time_for_is_counted(monkeypatch, tmp_path):
    done = kills.Outcome("kill -9", "prepare", 1, "same")

    def slow(_rng):
        clock.append(1)
        return done

    clock: list[int] = []
    monkeypatch.setattr(campaign, "VICTIMS", {})
    monkeypatch.setattr(campaign, "attacks", lambda *_, **__: [slow] * 5)
    monkeypatch.setattr(campaign.time, "monotonic", lambda: len(clock))
    options = {"seed": 0, "scale": 1, "at_once": 1}
    outcomes, left_out = campaign.campaign(tmp_path / "short", **options, seconds=2)
    assert ([outcome for _, outcome in outcomes], left_out) == ([done, done], 3)
    outcomes, left_out = campaign.campaign(tmp_path / "whole", **options)
    assert ([number for number, _ in outcomes], left_out) == ([0, 1, 2, 3, 4], 0)
