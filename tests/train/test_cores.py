"""Work of their own for cores: results in order, and gradients that are those of the whole batch."""

import os
import threading

import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.model.dropout import Dropout, drop, own_dropout, seed_dropout
from electra.train import cores
from electra.train.distributed import World
from electra.train.engine import Engine
from electra.train.schedule import TrainConfig

pytestmark = pytest.mark.numeric

CPU = torch.device("cpu")


def test_results_come_in_order_from_threads_with_one_core_each(two_threads):
    seen = []

    def compute(item):
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return item * item

    assert list(cores.spread(compute, range(20), cores=2)) == [item * item for item in range(20)]
    names, threads = zip(*seen, strict=True)
    assert all(name.startswith("core") for name in names)
    assert set(threads) == {1}
    assert torch.get_num_threads() == 2
    fresh = []
    thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert fresh == [2]


def test_one_core_is_for_the_thread_that_asks_alone(two_threads):
    found = {}

    def look(name, begin):
        begin()
        found[name] = torch.get_num_threads()

    for name, begin in (("asked", cores.use_one_core), ("started later", lambda: None)):
        thread = threading.Thread(target=look, args=(name, begin))
        thread.start()
        thread.join()
    assert found == {"asked": 1, "started later": 2}
    assert torch.get_num_threads() == 2


def test_a_single_batch_has_all_cores_to_itself(two_threads):
    (thread,) = cores.spread(lambda _: threading.current_thread(), ["batch"], cores=2)
    assert thread is threading.current_thread()


def test_little_is_computed_ahead(two_threads):
    begun = []
    results = cores.spread(lambda item: begun.append(item), range(100), cores=2)
    next(results)
    assert len(begun) <= 3
    results.close()
    assert len(begun) <= 3


def test_an_error_reaches_who_asked(two_threads):
    def compute(item):
        if item == 3:
            raise ValueError("three")
        return item

    results = cores.spread(compute, range(10), cores=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(results)


def test_the_precision_of_the_caller_holds_in_all_threads(two_threads):
    matrix = torch.ones(2, 2)
    for enabled, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            assert {result.dtype for result in cores.spread(matrix.mm, [matrix] * 6, cores=2)} == {dtype}


def test_processes_that_share_a_model_call_it_one_by_one(two_threads, monkeypatch):
    assert cores.num_cores(CPU) == 2
    assert cores.num_cores(torch.device("meta")) == 1
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert cores.num_cores(CPU) == 1


def test_a_child_process_starts_threads_of_its_own(two_threads):
    assert list(cores.spread(abs, [-1, -2, -3], cores=2)) == [1, 2, 3]
    child = os.fork()
    if child == 0:
        # No operation of torch: its own threads do not live on in a child.
        os._exit(0 if cores._pool.cache_info().currsize == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Shared(nn.Module):
    """Two networks that share a table, one of them frozen, and a counter."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.first = nn.Sequential(self.table, nn.Linear(4, 3), Dropout(0.5))
        self.second = nn.Sequential(self.table, nn.Linear(4, 3))
        self.second[1].weight.requires_grad_(False)
        self.idle = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.factor = 1.0

    def forward(self, ids):
        return self.factor * (self.first(ids) * self.second(ids)).sum()


def backward(ids, module):
    seed_dropout(int(ids[0]))
    loss = module(ids)
    loss.backward()
    return loss.item()


def gradients_of(module):
    found = {name: weight.grad for name, weight in module.named_parameters()}
    module.zero_grad(set_to_none=True)
    return found


PARTS = [torch.tensor(ids) for ids in ([1, 2, 3], [4, 5], [6], [0, 1], [2, 3, 3])]


@pytest.mark.parametrize("number", [2, 3, 8])
def test_gradients_are_those_of_one_core(number):
    torch.manual_seed(0)
    module = Shared()
    module.factor = 3.0
    losses = [backward(part, module) for part in PARTS]
    expected = gradients_of(module)
    assert cores.gradients(module, PARTS, backward, cores=number) == losses
    found = gradients_of(module)
    assert found.keys() == expected.keys()
    assert {name for name, value in found.items() if value is None} == {
        *("idle.weight", "idle.bias", "second.1.weight"),
    }
    for name, value in expected.items():
        if value is not None:
            # Sums of a few terms of order 1 in another order.
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
    again = cores.gradients(module, PARTS, backward, cores=number)
    assert again == losses
    for name, value in gradients_of(module).items():
        assert value is None or torch.equal(value, found[name]), name


def test_a_replica_has_the_weights_and_gradients_of_its_own():
    module = Shared()
    other = cores.replica(module)
    assert other.first[0] is other.second[0] is other.table
    assert other.table.weight is not module.table.weight
    for mine, its in zip(module.parameters(), other.parameters(), strict=True):
        assert mine.data_ptr() == its.data_ptr()
        assert mine.requires_grad == its.requires_grad
    assert other.seen is module.seen
    other(PARTS[0]).backward()
    assert module.table.weight.grad is None
    assert other.table.weight.grad is not None
    with torch.no_grad():
        module.table.weight.add_(1)
    assert torch.equal(other.table.weight, module.table.weight)


def test_an_error_in_a_part_reaches_the_caller():
    def refuse(part, module):
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        cores.gradients(Shared(), PARTS, refuse, cores=2)


def test_threads_draw_masks_by_their_own_seeds():
    value = torch.ones(4000)

    def mask(seed):
        with own_dropout():
            seed_dropout(seed)
            return drop(value, 0.5)

    alone = [mask(seed) for seed in range(20)]
    together = list(cores.spread(mask, range(20), cores=3))
    assert all(map(torch.equal, alone, together))
    assert not torch.equal(alone[0], alone[1])
    # The same numbers as without threads.
    seed_dropout(7)
    assert torch.equal(drop(value, 0.5), alone[7])


@pytest.mark.parametrize(("together", "apart", "expected"), [(0.5, 0.3, 4), (0.3, 0.5, 1), (10.0, 1.0, 1)])
def test_the_faster_way_is_chosen_by_later_steps(together, apart, expected):
    steps = []

    def seconds(number):
        steps.append(number)
        cold = 1.0 if steps.count(number) == 1 else 0.0
        return cold + (together if number == 1 else apart)

    assert cores.fastest_way(seconds, cores=4) == expected
    assert set(steps) <= {1, 4}
    if together > 5:
        assert steps == [1]


def test_small_steps_are_repeated_until_a_disturbance_is_over():
    steps = []

    def seconds(number):
        steps.append(number)
        is_disturbed = number == 4 and steps.count(4) < 8
        return 0.05 if is_disturbed else 0.04 if number == 1 else 0.03

    assert cores.fastest_way(seconds, cores=4) == 4
    assert len(steps) < 40


ALONE = World()


def engine(world=ALONE, **keys):
    return Engine(train=TrainConfig(steps=1, **keys), world=world)


@pytest.mark.parametrize(
    ("obstacle", "keys", "world"),
    [
        ("train.compile", {"compile": "default"}, World()),
        ("train.checkpoint_activations", {"checkpoint_activations": True}, World()),
        ("processes", {}, World(size=2)),
        ("pairs", {}, World()),
    ],
)
def test_what_stands_in_the_way_of_cores(obstacle, keys, world, two_threads):
    def never(number):
        raise AssertionError("measured")

    reason = "pairs" if obstacle == "pairs" else ""
    assert engine(world, **keys).num_cores(never, obstacle=reason) == 1
    assert engine(world, cores=1, **keys).num_cores(never, obstacle=reason) == 1
    with pytest.raises(InputError, match=rf"train\.cores is 2.*{obstacle}"):
        engine(world, cores=2, **keys).num_cores(never, obstacle=reason)


def test_the_number_of_cores_is_measured_once_or_given(two_threads):
    asked = []

    def seconds(number):
        asked.append(number)
        return 1 / number

    assert engine().num_cores(seconds) == 2
    assert set(asked) == {1, 2}
    asked.clear()
    assert engine(cores=3).num_cores(seconds) == 3
    assert engine(threads=1).num_cores(seconds) == 1
    kept = Engine(train=TrainConfig(steps=1), kept={"cores": 5})
    assert kept.num_cores(seconds) == 5
    # Resumed by several processes, say.
    assert kept.num_cores(seconds, obstacle="processes") == 1
    assert not asked


def test_the_environment_may_say_how_many_cores(two_threads, monkeypatch):
    def never(number):
        raise AssertionError("measured")

    monkeypatch.setenv("ELECTRA_AUTO_CORES", "3")
    assert engine().num_cores(never) == 3
    assert engine(cores=2).num_cores(never) == 2
    for wrong in ("0", "many", "-1"):
        monkeypatch.setenv("ELECTRA_AUTO_CORES", wrong)
        with pytest.raises(InputError, match=rf"ELECTRA_AUTO_CORES is '{wrong}'"):
            engine().num_cores(never)


def test_no_core_at_all_is_refused():
    with pytest.raises(InputError, match=r"train\.cores is 0"):
        TrainConfig(steps=1, cores=0)
