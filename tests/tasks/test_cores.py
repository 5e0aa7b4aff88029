import os
import threading

import numpy as np
import pytest
import torch

from electra.tasks import cores
from electra.tasks.classification import Classification
from electra.tasks.inference import outputs_of
from electra.tasks.model import TaskModel

CPU = torch.device("cpu")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize(
    ("total", "cores_there", "expected"),
    [(100_000, 1, 4096), (100_000, 2, 2048), (3000, 2, 1500), (300, 2, 256), (6000, 4, 1500)],
)
def test_each_core_gets_a_batch_if_there_is_enough(total, cores_there, expected):
    assert cores.batch_tokens(total, cores=cores_there, max_tokens=4096) == expected
    assert cores.batch_tokens(total, cores=cores_there, max_tokens=50) == 50


def test_processes_that_share_a_model_call_it_one_by_one(two_threads, monkeypatch):
    assert cores.num_cores(CPU) == 2
    assert cores.num_cores(torch.device("meta")) == 1
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    assert cores.num_cores(CPU) == 1


def test_a_model_says_the_same_on_all_cores(two_threads, monkeypatch, tiny_encoder, tokenizer, make_opinions):
    family = Classification(("bad", "good"))
    model = TaskModel(tiny_encoder, {"mood": family})
    rows = family.rows(make_opinions(60), tokenizer, max_length=32)
    monkeypatch.setattr("electra.tasks.cores.LEAST_TOKENS", 8)
    monkeypatch.setattr("electra.tasks.cores.CORE_TOKENS", 40)
    spread = outputs_of(model, "mood", rows, pad_id=tokenizer.pad_id)
    monkeypatch.setattr("electra.tasks.cores.num_cores", lambda _: 1)
    np.testing.assert_allclose(
        np.stack(spread), np.stack(outputs_of(model, "mood", rows, pad_id=tokenizer.pad_id)), atol=2e-6
    )


def test_a_child_process_starts_threads_of_its_own(two_threads):
    assert list(cores.spread(abs, [-1, -2, -3], cores=2)) == [1, 2, 3]
    child = os.fork()
    if child == 0:
        # No operation of torch: its own threads do not live on in a child.
        os._exit(0 if cores._pool.cache_info().currsize == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
