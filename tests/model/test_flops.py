import json
from pathlib import Path

import pytest

from electra.model.cost import (
    counted_inference_flops,
    counted_pretraining_flops,
    electra_flops,
    inference_flops,
    published_flops,
    shape_of,
)
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, generator_config

# What the paper and its authors' calculator say, for checkouts without the dump.
TRAINING = {
    "electra_small": 1.293743798272e18,
    "bert_small": 1.4187399146496e18,
    "bert_base": 6.428335104e19,
    "electra_400k": 7.117606040895488e20,
}
FORWARD_128 = {"small": 3_677_281_792, "base": 28_616_498_688, "large": 87_465_671_680}


def test_every_published_model_is_reproduced_exactly(shared: Path):
    oracle = json.loads((shared / "oracles/google-electra/flops_google.json").read_text())
    assert published_flops() == oracle["printed"]
    assert oracle["infer_len128"] == FORWARD_128


def test_the_best_known_published_numbers():
    published = published_flops()
    assert {name: published[name] for name in TRAINING} == TRAINING


@pytest.mark.parametrize("name", FORWARD_128)
def test_forward_pass_by_the_papers_count(name):
    config = EncoderConfig.preset(name)
    assert inference_flops(shape_of(config, length=128)) == FORWARD_128[name]


def test_our_small_config_costs_what_the_paper_says():
    config = EncoderConfig.preset("small")
    shapes = [
        shape_of(part, length=128)
        for part in (config, generator_config(config, width=GENERATOR_WIDTH["small"]))
    ]
    assert electra_flops(*shapes, batch=128, steps=1e6) == TRAINING["electra_small"]


@pytest.mark.parametrize("position", ["absolute", "rotary", "alibi"])
def test_true_forward_count_is_that_of_the_matrix_products(position):
    config = EncoderConfig.preset("tiny", vocab_size=100, position_embedding_type=position)
    batch, length, hidden = 3, 20, config.hidden_size
    attention = 4 * hidden * hidden + 2 * length * hidden
    layer = attention + 2 * hidden * config.intermediate_size
    products = config.embedding_size * hidden + config.num_hidden_layers * layer + hidden * hidden + hidden
    assert counted_inference_flops(config, batch=batch, length=length) == 2 * batch * length * products


def test_true_training_count_has_two_backward_products_for_each_forward_product():
    config = EncoderConfig.preset("tiny", vocab_size=100)
    sizes = {"batch": 2, "length": 16}
    step = counted_pretraining_flops(config, config, **sizes, predicted=0.25)
    forward = counted_inference_flops(config, **sizes)
    head = 2 * 32 * (config.hidden_size * config.hidden_size + config.hidden_size)
    vocabulary = 2 * 8 * config.embedding_size * (config.hidden_size + config.vocab_size)
    assert step == 3 * (forward + (forward - head) + vocabulary)
