import ctypes
import os
import subprocess
import sys

import pytest
import torch

from electra.errors import InputError
from electra.train import devices
from electra.train.devices import find_hardware, known_hardware, products_speed
from electra.train.distributed import World

CPU = torch.device("cpu")


def test_auto_takes_bf16_only_where_it_is_faster(monkeypatch):
    monkeypatch.delenv(devices.AUTO_PRECISION, raising=False)
    for speed, expected in ((10.0, "fp32"), (1000.0, "bf16")):
        speeds = {"fp32": 100.0, "bf16": speed}
        monkeypatch.setattr(devices, "gemm_speed", lambda device, name, speeds=speeds, **_: speeds[name])
        assert devices.choose_precision("auto", CPU, World()) == expected


@pytest.mark.parametrize("stated", ["fp32", "bf16"])
def test_the_environment_says_what_auto_is_and_nothing_is_measured(monkeypatch, stated):
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", stated)
    monkeypatch.setattr(devices, "gemm_speed", lambda *_, **__: pytest.fail("measured"))
    assert devices.choose_precision("auto", CPU, World()) == stated
    assert devices.choose_precision("fp32", CPU, World()) == "fp32"


def test_a_wrong_precision_in_the_environment_is_refused_by_its_name(monkeypatch):
    monkeypatch.setenv("ELECTRA_AUTO_PRECISION", "fp16")
    with pytest.raises(InputError, match=r"ELECTRA_AUTO_PRECISION.*'fp16'.*fp32.*bf16"):
        devices.choose_precision("auto", CPU, World())


def test_a_named_precision_is_taken_and_an_impossible_one_refused():
    assert devices.choose_precision("bf16", CPU, World()) == "bf16"
    with pytest.raises(InputError, match=r"train\.precision.*fp16.*cpu"):
        devices.choose_precision("fp16", CPU, World())


def test_autocast_computes_in_the_precision():
    weight = torch.ones(4, 4)
    with devices.autocast(CPU, "bf16"):
        assert (weight @ weight).dtype == torch.bfloat16
    with devices.autocast(CPU, "fp32"):
        assert (weight @ weight).dtype == torch.float32


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("model name\t: x\nflags\t\t: fpu avx2 avx512_bf16\n", False),
        ("flags\t\t: fpu amx_bf16\n", False),
        ("Features\t: fp asimd bf16\n", False),
        ("flags\t\t: fpu avx2 avx512f\n", True),
        ("processor\t: 0\n", False),
        (None, False),
    ],
)
def test_a_processor_without_instructions_is_known_by_its_flags(tmp_path, monkeypatch, content, expected):
    if content is not None:
        (tmp_path / "cpuinfo").write_text(content)
    monkeypatch.setattr(devices, "_CPUINFO", tmp_path / "cpuinfo")
    assert devices.lacks_bf16() is expected


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=r"train\.device.*cuda"):
        devices.choose_device("cuda")


def test_the_peak_is_measured():
    assert devices.gemm_speed(CPU, "fp32", seconds=0.01) > 1e6


def test_the_allocator_can_be_set_up_more_than_once():
    for _ in range(2):
        devices.set_up_allocator()
    assert ctypes.CDLL(None)


@pytest.mark.parametrize(
    ("asked", "free", "rows"), [("all", 0, 12), (5, 0, 5), (99, 0, 12), ("auto", 10**9, 12), ("auto", 900, 4)]
)
def test_the_micro_batch_fits_into_memory(monkeypatch, asked, free, rows):
    monkeypatch.setattr(devices, "free_memory", lambda device: free)
    assert devices.choose_micro_batch(asked, share=12, bytes_per_row=lambda: 100.0, device=CPU) == rows


def test_what_a_backward_pass_needs_is_counted_once():
    weight = torch.ones(8, 8, requires_grad=True)
    with devices.saved_bytes() as total:
        (weight.exp() * 2).tanh()
    assert total[0] == 2 * 8 * 8 * 4


def test_running_out_of_memory_names_the_key_and_other_errors_pass():
    with pytest.raises(InputError, match=r"--train\.micro_batch 8"), devices.explained_out_of_memory(rows=16):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
    with pytest.raises(RuntimeError, match="shapes"), devices.explained_out_of_memory(rows=16):
        raise RuntimeError("shapes differ")


def test_free_memory_is_some():
    assert devices.free_memory(CPU) > 1e6


@pytest.mark.slow
def test_rows_of_ever_new_lengths_take_no_more_memory():
    # In a process of its own: how much oneDNN remembers is decided once.
    script = """
from electra.train import devices
import resource, torch
devices.set_up_allocator()

def most_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

def step(length):
    torch.nn.functional.gelu(torch.ones(length, 256, requires_grad=True)).sum().backward()

step(1000)
before = most_bytes()
for length in range(200, 500):
    step(length)
print(most_bytes() - before)
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ONEDNN_")}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment)
    # Without the bound it is 226 MB.
    assert int(done.stdout) < 50e6


def test_every_row_is_plausible():
    table = known_hardware()
    assert {"V100", "A100", "H100", "RTX4090"} <= table.keys()
    for row in table.values():
        assert 1e13 < row.peak < 1e16
        assert 8e9 <= row.memory <= 1e12
        assert 0 < row.achievable < 1
        assert row.price > 0
        for gigabits, microseconds in (row.link, row.network):
            assert 1 <= gigabits <= 10_000
            assert 1 <= microseconds <= 1000
        assert row.format in ("fp16", "bf16")


def test_names_in_any_case_and_an_unknown_one():
    assert find_hardware("v100").name == "V100"
    with pytest.raises(InputError, match=r"'K80'.*V100, A100"):
        find_hardware("K80")


def test_the_speed_of_this_machine_is_that_of_the_mixture():
    cpu = torch.device("cpu")
    speed = products_speed({(64, 32, 32): 4, (64, 32, 128): 1}, cpu, "fp32", seconds=0.02)
    # From the slowest emulator to the fastest server.
    assert 1e6 < speed < 1e15
