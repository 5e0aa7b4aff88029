from typing import Any

import pytest

PEAK = {"fp32": 100e9, "bf16": 8e9, "copy": 10e9}


@pytest.fixture
def contest_result() -> dict[str, Any]:
    """What a contest gives, in made-up figures."""
    return {
        "title": "something",
        "ours": ["ours"],
        "left_out": {},
        "step": "step",
        "peak": PEAK,
        "flops_per_step": 50e9,
        "unit": "tokens",
        "units_per_step": 4096,
        "seconds": {"ours": [1.0, 1.0, 9.0], "plain": [4.0, 3.0, 2.0]},
        "memory": {"ours": 1_200_000_000, "plain": None},
    }


@pytest.fixture
def growth_result() -> dict[str, Any]:
    """What a look at growth gives, in made-up figures."""
    base = {"size": "small", "batch_size": 8, "seq_length": 128, "vocab_size": 100, "processes": 1}
    measured = {
        **base,
        "tokens": 1024,
        "seconds": [0.2, 0.3, 0.4],
        "flops_per_step": 15e9,
        "memory": 1_000_000_000,
        "libraries": 400_000_000,
        "needed": {"total": 500_000_000},
    }
    points = [
        measured,
        {**measured, "seq_length": 256, "tokens": 2048, "memory": 2_000_000_000},
        {**measured, "size": "tiny", "memory": 500_000_000},
    ]
    return {
        "title": "growth",
        "peak": PEAK,
        "base": base,
        "axes": {"seq_length": [128, 256], "size": ["tiny", "small"]},
        "points": points,
        "start_up": {"tiny": 3.04},
    }
