import copy

import pytest
import torch

from electra.pretraining.config import GeneratorConfig, TwoStageConfig

SWITCH = 3


def make(toy, start="generator", **changes):
    two_stage = TwoStageConfig(first_stage_steps=SWITCH, discriminator_start=start)
    return toy.objective("two_stage", two_stage=two_stage, **changes)


def state_of(objective, part):
    return {name: value.clone() for name, value in objective.state_dict().items() if name.startswith(part)}


def same(ours, theirs):
    return all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_each_stage_trains_one_network_and_leaves_the_other_bit_for_bit(toy):
    objective = make(toy)
    start = {part: state_of(objective, part) for part in ("generator", "discriminator")}
    list(toy.train(objective, SWITCH))
    assert same(state_of(objective, "discriminator"), start["discriminator"])
    assert not same(state_of(objective, "generator"), start["generator"])

    middle = state_of(objective, "generator")
    list(toy.train(objective, 3, first=SWITCH))
    assert same(state_of(objective, "generator"), middle)
    assert not same(state_of(objective, "discriminator"), start["discriminator"])


@pytest.mark.parametrize("start", ["generator", "fresh"])
def test_the_second_stage_begins_with_a_copy_or_without(toy, start):
    objective = make(toy, start)
    list(toy.train(objective, SWITCH))
    before = state_of(objective, "discriminator.")
    objective.begin_step(SWITCH)
    copied = {
        name.replace("generator.", "discriminator.", 1): value
        for name, value in state_of(objective, "generator.").items()
    }
    assert same(state_of(objective, "discriminator."), copied if start == "generator" else before)
    # Copied, not shared.
    assert objective.discriminator.layers[0].attention.query.weight is not (
        objective.generator.layers[0].attention.query.weight
    )


def test_a_smaller_generator_will_do_without_the_copy(toy):
    objective = make(toy, "fresh", generator=GeneratorConfig(sharing="none", width=0.5))
    assert len(list(toy.train(objective, SWITCH + 1))) == SWITCH + 1


def test_beginning_a_step_twice_or_after_a_restart_changes_nothing(toy):
    objective = make(toy)
    list(toy.train(objective, SWITCH))
    restarted = make(toy)
    restarted.load_state_dict(objective.state_dict())
    for each in (objective, restarted, restarted):
        each.begin_step(SWITCH)
    assert same(restarted.state_dict(), objective.state_dict())

    list(toy.train(objective, 2, first=SWITCH))
    trained = copy.deepcopy(objective.state_dict())
    objective.begin_step(SWITCH + 2)
    assert same(objective.state_dict(), trained)


def test_the_switch_is_made_even_if_its_step_is_left_out(toy):
    """After a rollback a run leaves out some steps."""
    objective = make(toy)
    list(toy.train(objective, SWITCH - 1))
    objective.begin_step(SWITCH + 5)
    assert torch.equal(
        objective.discriminator.layers[0].attention.query.weight,
        objective.generator.layers[0].attention.query.weight,
    )
