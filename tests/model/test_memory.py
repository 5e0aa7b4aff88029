import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from electra.model.cost import activation_bytes, cast_bytes, logits_bytes, training_memory
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig

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
