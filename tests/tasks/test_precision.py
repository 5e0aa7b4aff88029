import numpy as np
import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.tasks.precision import Ranking, choose, computing, convert, difference
from electra.train import devices

CPU = torch.device("cpu")


@pytest.fixture
def module():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))


def never(_precision):
    raise AssertionError("asked though there is nothing to compare")


def dtypes_of(module):
    return [weight.dtype for weight in module.parameters()]


def test_what_is_asked_for_is_not_compared(module):
    before = [weight.clone() for weight in module.parameters()]
    assert choose("fp32", CPU, [module], never).name == "fp32"
    assert all(map(torch.equal, before, module.parameters()))
    assert choose("bf16", CPU, [module], never).name == "bf16"
    assert dtypes_of(module) == [torch.float32] * 3 + [torch.bfloat16] * 2
    ids = torch.arange(4)
    with torch.no_grad(), computing(CPU, "bf16"):
        assert module(ids).dtype == torch.bfloat16


@pytest.mark.parametrize(("said", "chosen"), [(["a", 0.501], "bf16"), (["b", 0.5], "fp32")])
def test_auto_takes_what_says_the_same(module, monkeypatch, said, chosen):
    monkeypatch.setenv(devices.AUTO_PRECISION, "bf16")
    before = [weight.clone() for weight in module.parameters()]
    asked = []

    def say(precision):
        asked.append((precision, module[2].weight.dtype))
        return ["a", 0.5] if precision == "fp32" else said

    found = choose("auto", CPU, [module, module], say)
    assert asked == [("fp32", torch.float32), ("bf16", torch.bfloat16)]
    assert found.name == chosen
    assert str(found).startswith(chosen)
    if chosen == "fp32":
        # Bit for bit what it was, and the reason says what differed.
        assert all(map(torch.equal, before, module.parameters()))
        assert "[0] is 'b' and not 'a'" in found.reason
    else:
        assert module[2].weight.dtype == torch.bfloat16


def test_auto_on_this_machine_is_what_was_measured_or_known(module, monkeypatch):
    monkeypatch.delenv(devices.AUTO_PRECISION, raising=False)
    monkeypatch.setattr(devices, "lacks_bf16", lambda: False)
    monkeypatch.setattr(devices, "_fastest_precision", lambda _: "bf16")
    assert choose("auto", CPU, [module], lambda _: "the same").name == "bf16"
    monkeypatch.setattr(devices, "lacks_bf16", lambda: True)
    monkeypatch.setattr(devices, "_fastest_precision", never)
    assert choose("auto", CPU, [module], never).name == "fp32"


@pytest.mark.parametrize(
    ("asked", "variable", "message"),
    [("fp16", "", "precision is fp16.*CUDA"), ("auto", "fp64", "ELECTRA_AUTO_PRECISION is 'fp64'")],
)
def test_what_cannot_be_is_refused(module, monkeypatch, asked, variable, message):
    monkeypatch.setenv(devices.AUTO_PRECISION, variable)
    with pytest.raises(InputError, match=message):
        choose(asked, CPU, [module], never)


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ({"label": "a", "p": 0.50}, {"label": "a", "p": 0.52}, None),
        ({"label": "a", "p": 0.50}, {"label": "a", "p": 0.54}, "p is 0.54"),
        ({"label": "a", "p": 0.50}, {"label": "b", "p": 0.50}, "label is 'b'"),
        # Large numbers may be off by a share of them.
        ([-100.0], [-102.0], None),
        ([-100.0], [-104.0], "[0] is -104"),
        ([1, None], [1, None], None),
        ([0.1, None], [0.1, 0.2], "[1] is 0.2"),
        (["a"], ["a", "b"], "['a', 'b']"),
        ({"tags": [["x"], ["y", "z"]]}, {"tags": [["x"], ["y", "y"]]}, "tags[1][1]"),
        (0.5, float("nan"), "nan"),
        (Ranking(a=0.5, b=0.49), Ranking(a=0.49, b=0.5), None),
        (Ranking(a=0.50, b=0.46), Ranking(a=0.479, b=0.48), "the first is 'b' and not 'a'"),
        (Ranking(a=0.5), Ranking(c=0.5), "'c'"),
        (Ranking(a=0.5, b=0.2), Ranking(a=0.5, b=0.1), "b is 0.1"),
        (Ranking(), Ranking(), None),
        (np.array([0.6, 0.8]), np.array([0.61, 0.79]), None),
        (np.array([0.6, 0.8]), np.array([0.8, 0.6]), "away by"),
        (np.zeros(2), np.zeros(2), None),
    ],
)
def test_the_same_is_equal_words_and_near_numbers(expected, found, where):
    if where is None:
        assert difference(expected, found) is None
    else:
        assert where in difference(expected, found)


def test_conversion_can_be_undone_though_modules_share_layers(module):
    before = [weight.clone() for weight in module.parameters()]
    undo = convert([module, module[2]], "bf16")
    assert module[2].weight.dtype == torch.bfloat16
    undo()
    assert all(map(torch.equal, before, module.parameters()))
