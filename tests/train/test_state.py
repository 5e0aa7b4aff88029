import copy

import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.optim import OptimizerConfig, build_optimizer
from electra.train.state import TrainState, copy_weights


def state_of(*widths, optimizer="adamw", seed=0, **counters):
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(3, width) for width in widths))
    built = build_optimizer(OptimizerConfig(optimizer=optimizer), model.named_parameters())
    sum(layer(torch.ones(2, 3)).square().sum() for layer in model).backward()
    built.step()
    return TrainState(model=model, optimizer=built, **counters)


def saved(state, folder):
    with CheckpointStore(folder, CheckpointConfig()) as store:
        store.save(state.step, state.tensors(), state.facts())
        return store.load(state.step)


def everything(state):
    """All of a state, in a form that can be compared."""
    groups = state.tensors().items()
    tensors = {name: {key: value.tolist() for key, value in group.items()} for name, group in groups}
    return copy.deepcopy((tensors, state.facts()))


def test_a_state_becomes_what_was_saved(tmp_path):
    first = state_of(2, 4, step=7, tokens=70, best_step=5, best_error=0.5, seconds=1.25)
    other = state_of(2, 4, seed=1)
    assert everything(other) != everything(first)
    other.load(saved(first, tmp_path))
    assert everything(other) == everything(first)


@pytest.mark.parametrize(
    ("other", "complaint"),
    [
        (lambda: state_of(2, 5), r"1\.weight has shape \[4, 3\], this model \[5, 3\]"),
        (lambda: state_of(2), r"is of another model: 1\.bias and 1 more differ"),
        (lambda: state_of(2, 4, optimizer="adam_as_google"), "made with the optimizer"),
    ],
    ids=["shape", "names", "optimizer"],
)
def test_what_does_not_fit_is_refused_and_nothing_is_changed(tmp_path, other, complaint):
    checkpoint, state = saved(state_of(2, 4, seed=1, step=7), tmp_path), other()
    before = everything(state)
    with pytest.raises(InputError, match=complaint):
        state.load(checkpoint)
    assert everything(state) == before


@pytest.mark.parametrize("key", ["best_error", "health", "optimizer"])
def test_a_fact_that_is_missing_changes_nothing(tmp_path, key):
    checkpoint, state = saved(state_of(2, seed=1), tmp_path), state_of(2)
    before = everything(state)
    del checkpoint.facts[key]
    with pytest.raises(InputError, match=f"{key}: it was written by another version"):
        state.load(checkpoint)
    assert everything(state) == before


def test_weights_of_which_one_does_not_fit_are_not_copied_in_part():
    source, target = state_of(2, 4).tensors()["model"], state_of(2, 5, seed=1)
    before = everything(target)
    with pytest.raises(InputError, match="here: 1"):
        copy_weights(source, target.model, where="here")
    assert everything(target) == before


def test_a_tensor_that_two_networks_share_is_stored_once():
    model = nn.ModuleDict({"generator": nn.Linear(2, 2), "discriminator": nn.Linear(2, 2)})
    model["discriminator"].weight = model["generator"].weight
    state = TrainState(model=model, optimizer=torch.optim.SGD([*model.named_parameters()]))
    assert sorted(state.tensors()["model"]) == ["discriminator.bias", "generator.bias", "generator.weight"]


def test_tensors_without_elements_are_not_taken_for_one():
    # What a process holds of a small tensor that is spread over more processes than it has rows.
    model = nn.ParameterDict({"a": torch.empty(0, 4), "b": torch.empty(0, 4)})
    state = TrainState(model=model, optimizer=torch.optim.SGD([*model.named_parameters()]))
    assert sorted(state.tensors()["model"]) == ["a", "b"]
