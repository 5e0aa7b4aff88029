import pytest
import torch

from electra.errors import InputError
from electra.train.devices import find_hardware, known_hardware, products_speed


def test_every_row_is_plausible():
    table = known_hardware()
    assert {"V100", "A100", "H100", "RTX4090"} <= table.keys()
    for row in table.values():
        assert 1e13 < row.peak < 1e16
        assert 8e9 <= row.memory <= 1e12
        assert 0 < row.achievable < 1
        assert row.price > 0
        assert row.format in ("fp16", "bf16")


def test_names_in_any_case_and_an_unknown_one():
    assert find_hardware("v100").name == "V100"
    with pytest.raises(InputError, match="expected this or one of V100, A100"):
        find_hardware("K80")


def test_the_speed_of_this_machine_is_that_of_the_mixture():
    cpu = torch.device("cpu")
    speed = products_speed({(64, 32, 32): 4, (64, 32, 128): 1}, cpu, "fp32", seconds=0.02)
    # From the slowest emulator to the fastest server.
    assert 1e6 < speed < 1e15
