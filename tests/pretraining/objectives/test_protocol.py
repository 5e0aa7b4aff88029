"""What holds for all objectives."""

import dataclasses
from typing import get_args

import pytest
import torch

from electra.model import names
from electra.model.encoder import Encoder, ZeroLinear
from electra.pretraining import metrics
from electra.pretraining.config import (
    CORRECTING,
    AdversarialConfig,
    GeneratorConfig,
    ObjectiveName,
    ReplacedSpanConfig,
)
from electra.pretraining.masking import Inputs, StepRandom
from electra.pretraining.objectives import OBJECTIVES
from electra.pretraining.objectives.protocol import Counts
from electra.train.optim import OptimizerConfig, build_optimizer, clip_by_global_norm

pytestmark = pytest.mark.numeric

EACH = pytest.mark.parametrize("name", OBJECTIVES)
RANDOM = StepRandom(seed=4, step=7, num_rows=32)


@pytest.fixture(params=["electra", "modern"])
def toy(request, toy, modern_toy):
    """What holds for all objectives holds with both backbones."""
    return {"electra": toy, "modern": modern_toy}[request.param]


def part_of(inputs: Inputs, first: int, last: int) -> Inputs:
    """Some rows, padded no further than they need."""
    lengths_B = inputs.lengths_B[first:last]
    width = int(lengths_B.max())
    return Inputs.of(
        inputs.input_ids_BL[first:last, :width], inputs.token_type_ids_BL[first:last, :width], lengths_B
    )


def second_stage(objective):
    """The phase in which most takes part."""
    objective.begin_step(10**9)
    return objective


def test_every_name_has_a_class():
    assert set(OBJECTIVES) == set(get_args(ObjectiveName))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, {}) for name in OBJECTIVES),
        *((name, {"correction": "proposed", "discriminator_head": "with_cls"}) for name in CORRECTING),
        *((name, {"generator": GeneratorConfig(kind="ngram")}) for name in ("electra", "all_tokens_mlm")),
        ("replaced_span", {"replaced_span": ReplacedSpanConfig(boundaries="on", max_tokens=2)}),
        ("replaced_span", {"replaced_span": ReplacedSpanConfig(boundaries="on", max_tokens=3, length="own")}),
    ],
)
def test_parts_of_a_batch_add_up_to_the_whole(toy, name, changes):
    """Loss, gradients, metrics and samples: however many processes and micro-batches share the batch."""
    inputs = toy.inputs()
    whole = second_stage(toy.objective(name, **changes)).train()
    output = whole(inputs, RANDOM)
    output.loss.backward()

    objective = second_stage(toy.objective(name, **changes)).train()
    parts = [
        (part_of(inputs, first, last), dataclasses.replace(RANDOM, first_row=first))
        for first, last in ((0, 5), (5, 20), (20, 32))
    ]
    counts = [objective.count(part[0], objective.mask(*part)) for part in parts]
    totals = Counts(*map(sum, zip(*counts, strict=True)))
    outputs = [objective(*part, totals) for part in parts]
    for part in outputs:
        part.loss.backward()

    assert sum(part.loss.item() for part in outputs) == pytest.approx(output.loss.item(), rel=1e-6)
    for (parameter_name, ours), theirs in zip(objective.named_parameters(), whole.parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), parameter_name
        if ours.grad is not None:
            # Sums in another order: each number is off by a share of the largest.
            largest = theirs.grad.abs().max().item()
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6 * max(1.0, largest))
    together = metrics.summarise(metrics.add(part.sums for part in outputs))
    assert together == pytest.approx(metrics.summarise(output.sums), rel=1e-5, nan_ok=True)
    for view, expected in output.views.items():
        if view != "logits_BL":
            for (part, random), found in zip(parts, outputs, strict=True):
                # Rows that a generator has made longer are wider than their inputs.
                width = found.views[view].shape[1]
                rows = expected[random.first_row :][: len(part.input_ids_BL), :width]
                assert torch.equal(found.views[view], rows), view


@EACH
def test_the_encoder_for_fine_tuning_is_full_size_and_learns(toy, name):
    objective = second_stage(toy.objective(name))
    encoder = toy.encoder_of(name)
    assert objective.encoder.config == dataclasses.replace(
        encoder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    objective(toy.inputs(), RANDOM).loss.backward()
    assert all(parameter.grad is not None for parameter in objective.encoder.parameters())
    # And another program can take it over.
    prefix = f"{objective.encoder_name}."
    state = {
        key.removeprefix(prefix): value
        for key, value in objective.plain_state().items()
        if key.startswith(prefix)
    }
    Encoder(encoder).load_state_dict(state)
    if encoder.backbone == "electra":
        assert len(names.encoder_to_transformers(state)) == len(state)


# mlm corrupts nothing, to electric a sample is noise even if it is the original token, single_pass corrupts
# other positions than it masks, and replaced_span labels whole spans.
OTHER_LABELS = {"mlm", "electric", "single_pass", "replaced_span"}


@pytest.mark.parametrize("name", sorted(OBJECTIVES.keys() - OTHER_LABELS))
def test_labels_say_where_the_corrupted_row_differs(toy, name):
    inputs = toy.inputs(512)
    random = dataclasses.replace(RANDOM, num_rows=512)
    objective = second_stage(toy.objective(name)).eval()
    views, masked = objective(inputs, random).views, objective.mask(inputs, random)
    assert torch.equal(views["replaced_BL"], views["corrupted_ids_BL"] != inputs.input_ids_BL)
    outside = torch.ones_like(inputs.token_mask).flatten()
    outside[masked.positions_P] = False
    assert not views["replaced_BL"].flatten()[outside].any()
    # Some samples are right by chance: they count as original.
    assert 0 < views["replaced_BL"].sum() < len(masked.positions_P)


@torch.no_grad()
def initialise_zeros(objective):
    for part in objective.modules():
        if isinstance(part, ZeroLinear):
            part.weight.normal_(std=0.02, generator=torch.Generator().manual_seed(1))


def test_no_gradient_reaches_the_generator_through_the_samples(toy):
    for name in ("electra", "electra_15", "replace_mlm", "all_tokens_mlm"):
        objective = toy.objective(name, generator=GeneratorConfig(sharing="none"), generator_weight=0.0)
        # What lies before an output projection that is still at zero would have no gradient.
        initialise_zeros(objective)
        objective(toy.inputs(), RANDOM).loss.backward()
        owned = objective.parameters_by_owner()
        assert not any(parameter.grad.any() for _, parameter in owned["generator"]), name
        assert all(
            parameter.grad.any() for label, parameter in owned["discriminator"] if "key.bias" not in label
        ), name


@EACH
def test_weights_that_are_no_numbers_give_a_loss_that_is_none(toy, name):
    """And no error: the training loop sees such a loss and knows what to do."""
    objective = second_stage(toy.objective(name))
    with torch.no_grad():
        next(reversed(list(objective.encoder.parameters()))).fill_(torch.nan)
    assert objective(toy.inputs(), RANDOM).loss.isnan()


@pytest.mark.parametrize(
    ("name", "step", "changes"),
    [
        *((name, 10**9, {}) for name in OBJECTIVES),
        ("two_stage", 0, {}),
        ("adversarial", 0, {"adversarial": AdversarialConfig(baseline="moving")}),
        ("electra", 0, {"generator": GeneratorConfig(kind="uniform")}),
        ("electra", 0, {"generator": GeneratorConfig(kind="ngram")}),
        ("electra", 0, {"correction": "proposed", "discriminator_head": "with_cls"}),
        ("single_pass", 0, {"correction": "proposed", "discriminator_head": "with_cls"}),
        ("electra", 0, {"generator": GeneratorConfig(temperature=2.0, temperature_end=0.5)}),
        ("electra", 0, {"generator": GeneratorConfig(sampling_dropout="off", correct_token="forbidden")}),
        ("replaced_span", 0, {"replaced_span": ReplacedSpanConfig(boundaries="on", max_tokens=1)}),
        ("replaced_span", 0, {"generator": GeneratorConfig(sampling_dropout="off", temperature=2.0)}),
        ("replaced_span", 0, {"replaced_span": ReplacedSpanConfig(boundaries="on", length="own")}),
    ],
)
def test_a_step_looks_at_no_value(toy, name, step, changes):
    """On `meta` there are none: a read, a shape that depends on one or a tensor of the host's fails."""
    objective = toy.objective(name, dropout=0.1, **changes).train()
    objective.begin_step(step)
    inputs = toy.inputs()
    masked = objective.mask(inputs, RANDOM)
    totals = objective.count(inputs, masked)
    objective.to("meta")
    # AdamW of torch refuses `meta` before it begins. It is the same kernel, and its ages stay on the device.
    optimizer = build_optimizer(OptimizerConfig(optimizer="adam_as_google"), objective.named_parameters())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=True)
        objective.begin_step(step)
        output = objective(inputs.to("meta"), RANDOM, totals, masked.to("meta"))
        output.loss.backward()
        norm = clip_by_global_norm(objective.parameters(), clip_norm=1.0)
        optimizer.step()
        objective.end_step(output.sums)
    assert {value.device.type for value in (output.loss, norm, *output.sums.values())} == {"meta"}


@EACH
def test_bfloat16_changes_little(toy, name):
    """Logits are bfloat16, losses are not: they come out finite, in float32 and near the exact ones."""
    objective = second_stage(toy.objective(name)).eval()
    exact = objective(toy.inputs(), RANDOM).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = objective(toy.inputs(), RANDOM).loss
    rough.backward()
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.05)
