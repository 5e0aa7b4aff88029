"""Costs by the paper's count against its authors' calculator; memory against what torch keeps."""

import json
import weakref
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from electra.model import cost
from electra.model.cost import (
    Shape,
    activation_bytes,
    cast_bytes,
    electra_flops,
    logits_bytes,
    shape_of,
    training_flops,
    training_memory,
    vocabulary_flops,
)
from electra.model.encoder import Encoder, initialise
from electra.model.heads import DiscriminatorHead
from electra.model.sizes import GENERATOR_WIDTH, EncoderConfig, generator_config

# From the paper and its authors' calculator, for checkouts without the dump.
TRAINING = {
    "electra_small": 1.293743798272e18,
    "bert_small": 1.4187399146496e18,
    "bert_base": 6.428335104e19,
    "electra_400k": 7.117606040895488e20,
}
FORWARD_128 = {"small": 3_677_281_792, "base": 28_616_498_688, "large": 87_465_671_680}


def mlm(shape, batch, steps):
    return training_flops(shape, vocabulary_flops, batch=batch, steps=steps)


def published_flops():
    """Training FLOPs of the models that the paper compares and that are built like ours."""
    small = Shape(hidden=256, layers=12, length=128, embedding=128)
    base, large = Shape(hidden=768, layers=12), Shape(hidden=1024, layers=24)
    small_generator = Shape(hidden=64, layers=12, length=128, embedding=128)
    base_generator = Shape(hidden=256, layers=12, embedding=768)
    large_generator = Shape(hidden=256, layers=24, embedding=1024)
    return {
        "gpt": mlm(Shape(hidden=768, layers=12, vocab=40000, predicted=1.0), 128, 960800),
        "bert_small": mlm(small, 128, 1.45e6),
        "bert_base": mlm(base, 256, 1e6),
        "bert_large": mlm(large, 256, 1e6),
        "electra_small": electra_flops(small, small_generator, batch=128, steps=1e6),
        "electra_base": electra_flops(base, base_generator, batch=256, steps=766000),
        "electra_400k": electra_flops(large, large_generator, batch=2048, steps=400000),
        "electra_1.75M": electra_flops(large, large_generator, batch=2048, steps=1750000),
        "roberta": mlm(Shape(hidden=1024, layers=24, vocab=50265), 8000, 500000),
        "albert": mlm(Shape(hidden=4096, layers=12, vocab=30000, embedding=128), 4096, 1.5e6),
    }


def test_every_published_model_is_reproduced_exactly(shared: Path):
    oracle = json.loads((shared / "oracles/google-electra/flops_google.json").read_text())
    found = published_flops()
    assert found == {name: oracle["printed"][name] for name in found}
    # The others are counted by TensorFlow, or have a decoder.
    assert oracle["printed"].keys() - found.keys() == {"elmo", "xlnet", "t5_11b"}
    assert oracle["infer_len128"] == FORWARD_128


def test_the_best_known_published_numbers():
    published = published_flops()
    assert {name: published[name] for name in TRAINING} == TRAINING


@pytest.mark.parametrize("name", FORWARD_128)
def test_forward_pass_by_the_papers_count(name):
    shape = shape_of(EncoderConfig.preset(name), length=128)
    layers = shape.layers * cost.layer_flops(shape)
    assert layers + cost.embedding_flops(shape) + cost.detection_flops(shape) == FORWARD_128[name]


def test_our_small_config_costs_what_the_paper_says():
    config = EncoderConfig.preset("small")
    shapes = [
        shape_of(part, length=128)
        for part in (config, generator_config(config, width=GENERATOR_WIDTH["small"]))
    ]
    assert electra_flops(*shapes, batch=128, steps=1e6) == TRAINING["electra_small"]


@pytest.mark.parametrize("position", ["absolute", "rotary", "alibi"])
def test_torch_counts_all_matrix_products_of_a_forward_pass(position):
    config = EncoderConfig.preset("tiny", vocab_size=100, position_embedding_type=position)
    batch, length, hidden = 3, 20, config.hidden_size
    attention = 4 * hidden * hidden + 2 * length * hidden
    layer = attention + 2 * hidden * config.intermediate_size
    products = config.embedding_size * hidden + config.num_hidden_layers * layer + hidden * hidden + hidden
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder, head = Encoder(config).eval(), DiscriminatorHead(config)
        head(encoder(torch.zeros(batch, length, dtype=torch.long)))
    assert counter.get_total_flops() == 2 * batch * length * products


ROWS, LENGTH = 3, 24


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that operations made and that still live."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.count(leaf.untyped_storage())
        return result

    def count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.known:
            return
        self.known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        self.known.discard(key)
        self.now -= size


def kept_bytes(config, dtype):
    """What torch really keeps of a forward pass, without the weights themselves."""
    encoder = Encoder(config).train()
    initialise(encoder, std=0.02)
    weights = {weight.untyped_storage().data_ptr() for weight in encoder.parameters()}
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with (
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        output = encoder(torch.randint(0, config.vocab_size, (ROWS, LENGTH)))
    assert output.requires_grad
    return sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights)


# In float32 without dropout torch's fused attention is taken, which keeps less.
@pytest.mark.parametrize(
    ("dropout", "dtype"), [(0.1, torch.float32), (0.0, torch.bfloat16), (0.1, torch.bfloat16)]
)
@pytest.mark.parametrize("layers", [1, 3])
def test_activations_are_what_torch_keeps_on_a_cpu(dropout, dtype, layers):
    config = EncoderConfig.preset(
        "tiny",
        vocab_size=100,
        num_hidden_layers=layers,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    size = dtype.itemsize
    counted = activation_bytes(config, rows=ROWS, length=LENGTH, number_size=size, attention="plain")
    counted += cast_bytes(config, number_size=size)
    assert counted == pytest.approx(kept_bytes(config, dtype), rel=0.03)


def test_activations_grow_with_the_rows_and_attention_maps_with_the_square_of_the_length():
    config = EncoderConfig.preset("small")

    def count(**changes):
        return activation_bytes(
            config, **{"rows": 8, "length": 128, "number_size": 2, "attention": "plain", **changes}
        )

    assert count(rows=16) == 2 * count()
    assert count(length=256) > 2 * count()
    assert count(length=256, attention="fused") == 2 * count(attention="fused")


def test_logits_are_bounded_by_their_chunk():
    assert logits_bytes(masked=10, vocab_size=1000) == 16 * 10_000
    assert logits_bytes(masked=10**6, vocab_size=30522) == 16 * 2**25


def test_the_whole_is_the_sum_of_its_parts():
    config = EncoderConfig.preset("tiny", vocab_size=100)
    memory = training_memory(
        [config], parameters=1000, rows=4, length=16, mask_prob=0.25, number_size=4, attention="plain"
    )
    assert (memory.weights, memory.gradients, memory.optimizer) == (4000, 4000, 8000)
    assert memory.logits == 16 * 16 * 100
    assert memory.total == 16000 + memory.logits + memory.activations


@pytest.mark.slow
def test_layers_that_are_computed_twice_keep_only_what_enters_them():
    config = EncoderConfig.preset("tiny", vocab_size=100, num_hidden_layers=8)

    def most_alive(*, recomputes_layers):
        """Bytes of tensors at the peak of a step, beside weights and their gradients."""
        encoder = Encoder(config).train()
        initialise(encoder, std=0.02)
        encoder.recomputes_layers = recomputes_layers
        alive = LiveBytes()
        with alive:
            encoder(torch.randint(0, config.vocab_size, (16, 64))).sum().backward()
        return alive.most

    def counted(*, recomputes_layers):
        return activation_bytes(
            config,
            rows=16,
            length=64,
            number_size=4,
            attention="plain",
            recomputes_layers=recomputes_layers,
        )

    saved = most_alive(recomputes_layers=False) - most_alive(recomputes_layers=True)
    assert saved == pytest.approx(counted(recomputes_layers=False) - counted(recomputes_layers=True), rel=0.1)


MODERN = {"backbone": "modern", "vocab_size": 100}


@pytest.mark.parametrize("norm", ["none", "rms"])
@pytest.mark.parametrize("embedding_size", [64, 128])
@pytest.mark.parametrize(
    ("dropout", "dtype"), [(0.1, torch.float32), (0.0, torch.bfloat16), (0.1, torch.bfloat16)]
)
def test_activations_of_a_modern_encoder_are_what_torch_keeps(dropout, dtype, embedding_size, norm):
    config = EncoderConfig.preset(
        "tiny",
        **MODERN,
        num_hidden_layers=3,
        embedding_size=embedding_size,
        query_key_norm=norm,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    size = dtype.itemsize
    counted = activation_bytes(config, rows=ROWS, length=LENGTH, number_size=size, attention="plain")
    counted += cast_bytes(config, number_size=size)
    assert counted == pytest.approx(kept_bytes(config, dtype), rel=0.03)


@pytest.mark.parametrize(("length", "seen"), [(20, 20), (96, 24)])
def test_torch_counts_all_matrix_products_of_a_modern_forward_pass(length, seen):
    """A window of 16 tokens is computed in three blocks of 8, where that is less than the whole row."""
    config = EncoderConfig.preset(
        "tiny", **MODERN, num_hidden_layers=4, global_attention_every=3, local_attention_window=16
    )
    batch, hidden = 3, config.hidden_size
    layer = 4 * hidden * hidden + 3 * hidden * config.intermediate_size
    attention = 2 * hidden * (2 * length + 2 * seen)
    products = config.embedding_size * hidden + 4 * layer + attention + hidden * hidden + hidden
    with torch.device("meta"), torch.no_grad(), FlopCounterMode(display=False) as counter:
        encoder, head = Encoder(config).eval(), DiscriminatorHead(config)
        head(encoder(torch.zeros(batch, length, dtype=torch.long)))
    assert counter.get_total_flops() == 2 * batch * length * products


def test_a_modern_size_has_as_many_weights_in_its_layers():
    counts = {}
    for backbone in ("electra", "modern"):
        with torch.device("meta"):
            layers = Encoder(EncoderConfig.preset("small", backbone=backbone)).layers
        counts[backbone] = sum(weight.numel() for weight in layers.parameters() if weight.dim() == 2)
    # Two thirds of 1024, rounded to a multiple of 8.
    assert counts["modern"] == pytest.approx(counts["electra"], rel=0.01)
