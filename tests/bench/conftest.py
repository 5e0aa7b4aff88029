from typing import Any

import pytest

from electra.bench.quality import summary

PEAK = {"fp32": 100e9, "bf16": 8e9, "copy": 10e9}
MACHINE = {"cpu": "a processor", "flags": ["avx2"], "cores": 2, "threads": 2}


@pytest.fixture
def contest_result() -> dict[str, Any]:
    """What a contest gives, in made-up figures."""
    return {
        "title": "something",
        "contestants": ["ours", "plain"],
        "ours": ["ours"],
        "left_out": {},
        "step": "step",
        "machine": MACHINE,
        "peak": PEAK,
        "flops_per_step": 50e9,
        "unit": "tokens",
        "units_per_step": 4096,
        "seconds": {"ours": [1.0, 1.0, 9.0], "plain": [4.0, 3.0, 2.0]},
        "rounds": {"ours": [1.0, 1.0, 9.0], "plain": [4.0, 3.0, 2.0]},
        "memory": {"ours": 1_200_000_000, "plain": None},
        "precision": {"ours": None, "plain": None},
        "beside": {},
    }


@pytest.fixture
def neighbours_result(contest_result) -> dict[str, Any]:
    """The same in bf16 and fp32, beside a neighbour as well."""
    beside = {"seconds": {"ours": [2.0, 2.0], "plain": [12.0, 12.0]}}
    share = {"value": 0.5, "min": 0.4, "max": 0.6, "rounds": 2}
    left = {"ours": share, "plain": {**share, "value": 0.25}}
    return {
        **contest_result,
        "precision": {"ours": "bf16", "plain": "fp32"},
        "beside": {"1": {**beside, "rounds": beside["seconds"], "left": left}},
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
        "precision": "bf16",
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
        "machine": MACHINE,
        "peak": PEAK,
        "base": base,
        "axes": {"seq_length": [128, 256], "size": ["tiny", "small"]},
        "points": points,
        "start_up": {"tiny": 3.04},
    }


@pytest.fixture
def quality_result() -> dict[str, Any]:
    """What recipes gave at two budgets, in made-up figures; the last one has not come to the second."""
    budgets = {"3m": 180.0, "10m": 600.0}
    columns = {
        "conll2000": "f1 on 2,012 examples of test",
        "sst2": "accuracy on 872 examples of dev",
        "pairs by detection": "accuracy on 400 pairs",
        "pairs by pseudo_likelihood": "accuracy on 400 pairs",
    }
    rows = ["random weights", "linear model", "mlm", "minutes"]
    cells = [
        {"row": "random weights", "budget": None, "seed": 0, "values": {"conll2000": 0.72, "sst2": 0.75}},
        {"row": "random weights", "budget": None, "seed": 1, "values": {"conll2000": 0.74, "sst2": 0.76}},
        {"row": "linear model", "budget": None, "seed": 0, "values": {"conll2000": 0.87, "sst2": 0.774}},
    ]
    for row, gain in (("mlm", 0.0), ("minutes", 0.02)):
        for place, budget in enumerate(budgets):
            for seed in range(3):
                if (row, budget) != ("minutes", "10m"):
                    value = 0.8 + gain + 0.03 * place + 0.005 * seed
                    found = {"conll2000": value, "sst2": value - 0.1, "pairs by pseudo_likelihood": 0.6}
                    found["pairs by detection"] = 0.55 + gain if row == "minutes" else None
                    cells.append({"row": row, "budget": budget, "seed": seed, "values": found})
    speed = {"tokens": 2_000_000, "tokens_per_second": 11_111, "precision": "bf16"}
    result = {
        "title": "quality after equal times of pre-training",
        "machine": MACHINE,
        "unit": "seconds",
        "budgets": budgets,
        "rows": rows,
        "recipes": {"mlm": "mlm model.size=tiny", "minutes": "minutes"},
        "columns": columns,
        "seeds": 3,
        "runs": [{"row": "mlm", "budget": "3m", **speed}],
        "cells": cells,
    }
    return {**result, "summary": summary(result)}
