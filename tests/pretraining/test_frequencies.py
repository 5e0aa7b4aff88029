import math

import pytest
import torch

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import Inputs, StepRandom, TokenFacts
from electra.pretraining.metrics import summarise
from electra.pretraining.objectives import build_objective
from electra.text.batches import Batch

VOCAB, SPECIAL = 60, (0, 2, 3, 4)
COUNTS = torch.arange(VOCAB) ** 3


@pytest.fixture(scope="module")
def sizes():
    return EncoderConfig.preset("tiny", vocab_size=VOCAB, hidden_size=32, embedding_size=16)


def build(sizes, *, counts=COUNTS, **keys):
    tokens = TokenFacts(vocab_size=VOCAB, mask_id=4, special_ids=SPECIAL, counts_V=counts)
    config = PretrainConfig(output_bias="frequencies", **keys)
    return build_objective(config, sizes, tokens, seq_length=16, seed=0)


def first_metrics(objective):
    draw = torch.multinomial(COUNTS.double(), 64 * 16, replacement=True, generator=torch.manual_seed(0))
    ids = draw.view(64, 16)
    batch = Batch(
        input_ids_BL=ids.numpy(),
        token_type_ids_BL=torch.zeros_like(ids).numpy(),
        lengths_B=torch.full((64,), 16).numpy(),
        row_ids_B=torch.arange(64).numpy(),
    )
    sums = objective(Inputs.from_batch(batch), StepRandom(seed=0, step=0, num_rows=64)).sums
    return summarise(sums)


def test_the_first_loss_is_the_entropy_of_what_needs_no_context(sizes):
    first = first_metrics(build(sizes))
    share = COUNTS.double()[5:] / COUNTS[5:].sum()
    entropy = -(share * share.log()).sum().item()
    replaced = torch.tensor(first["replaced_fraction"])
    constant = -replaced * math.log(0.15) - (1 - replaced) * math.log(0.85)
    assert first["mlm_loss"] == pytest.approx(entropy, abs=0.1)
    assert first["discriminator_loss"] == pytest.approx(constant.item(), abs=0.02)


def test_special_tokens_are_the_least_frequent_of_all(sizes):
    bias = build(sizes).generator_head.bias.detach()
    assert bias[list(SPECIAL)].unique().tolist() == [bias.min().item()]
    assert bias.exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("objective", "generator", "begins_at"),
    [
        ("adversarial", {}, -1.73),
        ("electra_15", {}, 0.0),
        # One of ten is replaced, not 15 %.
        ("single_pass", {"kind": "unigram"}, -2.20),
        ("electric", {"kind": "two_tower"}, 0.0),
        ("replaced_span", {}, -1.73),
    ],
)
def test_a_head_that_judges_something_else_begins_at_zero(objective, generator, begins_at, sizes):
    built = build(sizes, objective=objective, generator=GeneratorConfig(**generator))
    assert built.discriminator_head.output.bias.item() == pytest.approx(begins_at, abs=0.01)


def test_data_without_counts_is_refused(sizes):
    with pytest.raises(InputError, match="token_counts"):
        build(sizes, counts=None)
