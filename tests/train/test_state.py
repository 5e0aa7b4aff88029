import copy
import json

import pytest
import torch
from torch import nn

from electra import files
from electra.errors import InputError
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.optim import OptimizerConfig, build_optimizer, clip_by_global_norm, set_learning_rate
from electra.train.state import TrainState, copy_weights, pack_optimizer, unpack_optimizer


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
        (lambda: state_of(2, 5), r"1\.weight.*\[4, 3\].*\[5, 3\]"),
        (lambda: state_of(2), r"1\.bias, 1\.weight"),
        (lambda: state_of(2, 4, optimizer="adam_as_google"), "AdamW.*AdamAsGoogle"),
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
    with pytest.raises(InputError, match=rf"step-\d+.*{key}"):
        state.load(checkpoint)
    assert everything(state) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("tokens", "many"), ("step", None), ("health", {"pulse": 60}), ("health", []), ("optimizer", {})],
)
def test_a_fact_of_another_form_changes_nothing(tmp_path, key, value):
    checkpoint, state = saved(state_of(2, seed=1), tmp_path), state_of(2)
    before = everything(state)
    checkpoint.facts[key] = value
    with pytest.raises(InputError, match=rf"step-\d+.*{key}"):
        state.load(checkpoint)
    assert everything(state) == before


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_a_checkpoint_without_weights_or_optimizer_changes_nothing(tmp_path, name):
    checkpoint, state = saved(state_of(2, seed=1), tmp_path), state_of(2)
    before = everything(state)
    del checkpoint.tensors[name]
    with pytest.raises(InputError, match=rf"step-\d+.*{name}"):
        state.load(checkpoint)
    assert everything(state) == before


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_weight_that_is_no_number_is_found(value):
    state = state_of(2, 4)
    assert state.has_finite_weights
    with torch.no_grad():
        state.model[1].bias[2] = value
    assert not state.has_finite_weights


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


def small_model(width: int = 4) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, width), nn.LayerNorm(width), nn.Linear(width, 1), nn.Linear(9, 9))


def optimizer_of(model: nn.Module, kind: str = "adam_as_google", **options) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD([{"params": [*model.named_parameters()], "lr_scale": 1.0}], momentum=0.9)
    config = OptimizerConfig(optimizer=kind, layer_decay=0.9, beta2=0.98, **options)
    return build_optimizer(
        config,
        model.named_parameters(),
        depth=lambda name: int(name[0]) // 2,
        num_layers=1,
        is_matrix=lambda name: name.endswith("weight"),
    )


def train(model, optimizer, steps: range) -> None:
    for step in steps:
        inputs_BD = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        # The last layer takes no part, so it must get no state.
        model[:3](inputs_BD).square().mean().backward()
        clip_by_global_norm(model.parameters(), clip_norm=1.0)
        set_learning_rate(optimizer, 1e-2 / (1 + step))
        optimizer.step()


def through_json(facts):
    return json.loads(files.to_json(facts))


def plain(optimizer) -> list:
    """Everything an optimizer knows, by name, in values that compare exactly."""
    rows = []
    for group in optimizer.param_groups:
        rows.append({key: value for key, value in group.items() if key not in ("params", "param_names")})
        for name, param in sorted(
            zip(group["param_names"], group["params"], strict=True), key=lambda pair: pair[0]
        ):
            state = optimizer.state.get(param)
            rows.append((name, state and {k: (v.dtype, v.tolist()) for k, v in state.items()}))
    return rows


@pytest.mark.parametrize("kind", ["adam_as_google", "adamw", "muon", "sgd"])
def test_training_goes_on_bit_for_bit(kind):
    straight = small_model()
    optimizer = optimizer_of(straight, kind)
    train(straight, optimizer, range(7))

    first = small_model()
    halfway = optimizer_of(first, kind)
    train(first, halfway, range(4))
    tensors, facts = pack_optimizer(halfway)
    second = small_model()
    second.load_state_dict(first.state_dict())
    resumed = optimizer_of(second, kind)
    unpack_optimizer(resumed, tensors, through_json(facts))
    assert plain(resumed) == plain(halfway)
    train(second, resumed, range(4, 7))
    assert plain(resumed) == plain(optimizer)
    for name, weights in straight.state_dict().items():
        assert torch.equal(weights, second.state_dict()[name]), name


def test_the_order_of_parameters_does_not_matter():
    model = small_model()
    optimizer = torch.optim.AdamW([*model.named_parameters()])
    model[:3](torch.ones(2, 5)).sum().backward()
    optimizer.step()
    other = torch.optim.AdamW([*model.named_parameters()][::-1])
    unpack_optimizer(other, *pack_optimizer(optimizer))
    assert plain(other) == plain(optimizer)
    assert other.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()][::-1]


def test_state_is_named_by_parameter_and_options_keep_their_types():
    model = small_model()
    optimizer = optimizer_of(model, "adamw")
    train(model, optimizer, range(2))
    tensors, facts = pack_optimizer(optimizer)
    assert torch.equal(tensors["0.weight.exp_avg"], optimizer.state[model[0].weight]["exp_avg"])
    assert tensors["1.bias.step"] == 2
    assert not [name for name in tensors if name.startswith("3.")]
    other = optimizer_of(model, "adamw")
    unpack_optimizer(other, tensors, through_json(facts))
    assert other.param_groups[0]["betas"] == (0.9, 0.98)
    assert [group["lr_scale"] for group in other.param_groups] == [
        g["lr_scale"] for g in optimizer.param_groups
    ]
    assert other.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"] != 0


def test_the_optimizer_does_not_train_in_the_tensors_it_was_given():
    model = small_model()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    tensors, facts = pack_optimizer(optimizer)
    copies = {name: tensor.clone() for name, tensor in tensors.items()}
    resumed = optimizer_of(model)
    unpack_optimizer(resumed, tensors, facts)
    train(model, resumed, range(2, 4))
    assert all(torch.equal(tensors[name], copies[name]) for name in copies)


def test_going_back_forgets_what_came_after():
    model = small_model()
    optimizer = optimizer_of(model)
    tensors, facts = pack_optimizer(optimizer)
    before = plain(optimizer)
    train(model, optimizer, range(2))
    assert plain(optimizer) != before
    unpack_optimizer(optimizer, tensors, facts)
    assert plain(optimizer) == before


def test_wide_moments_of_narrow_weights_are_not_cast():
    weight = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW([("weight", weight)])
    moment = torch.tensor([1 / 3, 1e-9, 7.0])
    optimizer.state[weight] = {"step": torch.tensor(5.0), "exp_avg": moment, "note": 3}
    tensors, facts = pack_optimizer(optimizer)
    other = torch.optim.AdamW([("weight", weight)])
    unpack_optimizer(other, tensors, through_json(facts))
    assert other.state[weight]["exp_avg"].dtype == torch.float32
    assert torch.equal(other.state[weight]["exp_avg"], moment)
    assert other.state[weight]["note"] == 3


def test_several_optimizers_share_a_file():
    models = {"generator": small_model(), "discriminator": small_model()}
    optimizers = {name: optimizer_of(model) for name, model in models.items()}
    for first_step, name in enumerate(models):
        train(models[name], optimizers[name], range(first_step, 3))
    packed = {name: pack_optimizer(optimizer, prefix=f"{name}/") for name, optimizer in optimizers.items()}
    tensors = {key: value for each, _ in packed.values() for key, value in each.items()}
    assert len(tensors) == sum(len(each) for each, _ in packed.values())
    for name, (_, facts) in packed.items():
        other = optimizer_of(models[name])
        unpack_optimizer(other, tensors, facts)
        assert plain(other) == plain(optimizers[name])


def test_an_optimizer_of_other_parameters_is_refused_by_name_and_unchanged():
    model = small_model()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(2))
    tensors, facts = pack_optimizer(optimizer)
    fewer, more = nn.Sequential(*model[:3]), nn.Sequential(*model, nn.Linear(2, 2))
    cases = [
        (optimizer_of(fewer), r"3\.(bias, 3\.weight|weight, 3\.bias)"),
        (optimizer_of(more), r"4\.weight, 4\.bias"),
        (optimizer_of(small_model(width=6)), r"0\.weight.*\[4, 5\].*\[6, 5\]"),
        (optimizer_of(model, "adamw"), "AdamAsGoogle.*AdamW"),
        (optimizer_of(model, "sgd"), "AdamAsGoogle.*SGD"),
        (optimizer_of(model, weight_decay=0.0), r"groups.*0\.bias"),
    ]
    for other, message in cases:
        before = plain(other)
        with pytest.raises(InputError, match=message):
            unpack_optimizer(other, tensors, facts)
        assert plain(other) == before


def test_a_missing_tensor_is_named():
    model = small_model()
    optimizer = optimizer_of(model)
    train(model, optimizer, range(1))
    tensors, facts = pack_optimizer(optimizer)
    del tensors["1.bias.exp_avg"]
    with pytest.raises(InputError, match=r"1\.bias\.exp_avg"):
        unpack_optimizer(optimizer_of(model), tensors, facts)


def test_parameters_without_names_are_the_programmers_mistake():
    with pytest.raises(AssertionError, match="named parameters"):
        pack_optimizer(torch.optim.SGD(small_model().parameters(), lr=0.1))
