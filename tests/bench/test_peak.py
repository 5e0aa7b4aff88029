from functools import partial

import pytest

from electra.bench import turns
from electra.bench.turns import best_flops, best_of, copy_speed, describe_peak, encoder_products, measure_peak
from electra.model.sizes import EncoderConfig


def test_the_best_of_the_model_s_products_and_of_a_square_one_counts(monkeypatch):
    rates = {turns.SQUARE: 3.0, (8, 4, 4): 5.0, (8, 4, 16): 4.0}
    asked = []

    def products_speed(counts, device, precision, *, seconds):
        (product,) = counts
        asked.append((precision, product))
        return rates[product] * (10 if precision == "bf16" else 1)

    monkeypatch.setattr(turns, "products_speed", products_speed)
    monkeypatch.setattr(turns, "copy_speed", lambda seconds: 9e9)
    found = measure_peak([(8, 4, 4), (8, 4, 16)])
    assert found == {"fp32": 5.0, "bf16": 50.0, "copy": 9e9}
    assert len(asked) == 2 * len(rates)
    assert best_flops(found) == 50.0


def test_the_products_are_those_of_a_layer():
    config = EncoderConfig.preset("tiny")
    assert encoder_products(config, tokens=7) == ((7, 128, 384), (7, 128, 128), (7, 128, 512), (7, 512, 128))


def test_what_is_measured_here_is_a_rate(monkeypatch):
    monkeypatch.setattr(turns, "copy_speed", partial(copy_speed, size=1 << 20))
    found = measure_peak([], seconds=0.0)
    assert found.keys() == {"fp32", "bf16", "copy"}
    assert all(value > 1e6 for value in found.values())


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert copy_speed(seconds=1.0, size=1 << 20) == pytest.approx(2 * (1 << 20) / 2)


def test_each_kind_of_peak_has_its_own_best_moment():
    assert best_of([{"fp32": 1.0, "copy": 5.0}, {"fp32": 2.0, "copy": 4.0}]) == {"fp32": 2.0, "copy": 5.0}


def test_it_is_told_in_words():
    assert describe_peak({"fp32": 180e9, "bf16": 8e9, "copy": 12.4e9}) == (
        "peak here: 180 GFLOP/s in fp32, 8 GFLOP/s in bf16; 12 GB/s copied"
    )
