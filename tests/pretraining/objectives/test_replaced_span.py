"""What the generator writes in place of spans, and what the discriminator is told of it."""

import pytest
import torch

from electra.errors import InputError
from electra.pretraining.config import GeneratorConfig, PretrainConfig, ReplacedSpanConfig
from electra.pretraining.masking import Inputs, Masked, MaskingConfig, StepRandom
from electra.pretraining.metrics import summarise
from electra.pretraining.objectives.replaced_span import label_spans
from electra.pretraining.sampling import sample
from electra.pretraining.spans import find_spans

pytestmark = pytest.mark.numeric

CLS, SEP, MASK, FIRST_WORD = 2, 3, 4, 5
RANDOM = StepRandom(seed=4, step=7, num_rows=32)
SPANS = MaskingConfig(strategy="span", mask_token_prob=1.0, mask_prob=0.3)


def copies(tokens: list[int], columns: list[int], number: int) -> tuple[Inputs, Masked]:
    """The same row so many times, masked alike, with other uniform numbers."""
    ids_BL = torch.tensor(tokens).repeat(number, 1)
    width = len(tokens)
    inputs = Inputs.of(ids_BL, torch.zeros_like(ids_BL), torch.full((number,), width))
    positions_P = (torch.arange(number)[:, None] * width + torch.tensor(columns)).flatten()
    random = torch.Generator().manual_seed(0)
    return inputs, Masked(
        masked_ids_BL=ids_BL.flatten().index_fill(0, positions_P, MASK).view_as(ids_BL),
        positions_P=positions_P,
        original_P=ids_BL.flatten()[positions_P],
        uniform_P=torch.rand(len(positions_P), generator=random, dtype=torch.float64),
        chosen_U=positions_P,
        ordinary_M=inputs.text_N,
    )


def read(objective, inputs, masked):
    return objective.generator.read(
        masked.masked_ids_BL, inputs.token_type_ids_BL, masked.layout, masked.original_P
    )


def test_labels_say_which_spans_differ():
    inputs, plain = copies([CLS, 10, 11, 12, 13, 14, 15, 16, SEP], [1, 2, 4, 5, 6, 7], 1)
    masked = find_spans(plain, inputs, longest=3)
    for sampled, rewritten, begins, ends in (
        ([10, 11, 13, 14, 15, 16], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]),
        # One token differs, and the whole span is another; a neighbour that came out as it was is not.
        ([10, 11, 13, 20, 15, 16], [0, 0, 1, 1, 1, 0], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0]),
        ([20, 21, 13, 14, 15, 20], [1, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]),
    ):
        labels = label_spans(masked.layout, masked.original_P, torch.tensor(sampled))
        found = [values.int().tolist() for values in labels]
        assert found == [rewritten, begins, ends]


def test_rows_show_what_was_written_and_whole_spans_are_labelled(toy):
    objective = toy.objective("replaced_span").eval()
    inputs = toy.inputs(512)
    random = StepRandom(seed=4, step=7, num_rows=512)
    masked, views = objective.mask(inputs, random), objective(inputs, random).views
    replaced, ids = views["replaced_BL"].flatten(), views["corrupted_ids_BL"].flatten()
    differs = ids != inputs.input_ids_BL.flatten()
    outside = torch.ones_like(differs).index_fill(0, masked.positions_P, False)
    assert not (differs | replaced)[outside].any()
    expected_P = masked.layout.any_in_span(differs[masked.positions_P])
    assert torch.equal(replaced[masked.positions_P], expected_P)
    # Some tokens of rewritten spans are right by chance, and so are some whole spans.
    assert differs.sum() < replaced.sum() < len(masked.positions_P)


def test_samples_have_the_distribution_that_is_learned(toy):
    """Frequencies of the pairs that are written for two masks, and the product of their probabilities."""
    objective = toy.objective("replaced_span", generator=GeneratorConfig(width=0.5)).eval()
    with torch.no_grad():
        for weight in objective.generator.parameters():
            weight.mul_(8)
    row, columns, number, vocab_size = [CLS, 5, 9, 12, 14, SEP], [2, 3], 20_000, toy.tokens.vocab_size

    def log_probs(inputs, masked):
        hidden_BXD, _ = read(objective, inputs, masked)
        table_VE = objective.generator.embeddings.word_embeddings.weight
        return objective.generator_head(
            hidden_BXD.flatten(0, 1)[masked.layout.state_P], table_VE
        ).log_softmax(-1)

    with torch.no_grad():
        # Each first token once, as the true one.
        inputs, plain = copies(row, columns, vocab_size)
        original_P = plain.original_P.clone()
        original_P[::2] = torch.arange(vocab_size)
        given = find_spans(Masked(**{**vars(plain), "original_P": original_P}), inputs, longest=2)
        first_VV, second_VV = log_probs(inputs, given).view(vocab_size, 2, vocab_size).unbind(1)
        joint_VV = (first_VV[0][:, None] + second_VV).exp()
        inputs, plain = copies(row, columns, number)
        masked = find_spans(plain, inputs, longest=2)
        pairs = objective.propose(inputs, masked).sampled_P.view(number, 2)
    counts = torch.bincount(pairs[:, 0] * vocab_size + pairs[:, 1], minlength=vocab_size**2).double()
    expected = number * joint_VV.flatten().double()
    assert expected.sum() == pytest.approx(number, rel=1e-5)
    # The second token depends on the first: the test could fail.
    assert (second_VV.exp() - second_VV.exp().mean(0)).abs().max() > 0.05
    usual = expected >= 5
    assert usual.sum() > 50
    rest = torch.stack([counts[~usual].sum(), expected[~usual].sum()])
    chi_square = ((counts - expected) ** 2 / expected)[usual].sum() + (rest[0] - rest[1]) ** 2 / rest[1]
    # Its mean is the number of cells, its variance twice as much: four standard deviations.
    cells = int(usual.sum())
    assert chi_square < cells + 4 * (2 * cells) ** 0.5


def test_what_is_written_follows_from_what_was_drawn_before(toy):
    """Each token is the one that `sample` draws when the written tokens are read as if they were true."""
    for generator in (
        GeneratorConfig(),
        GeneratorConfig(temperature=2.0, correct_token="forbidden"),
        GeneratorConfig(sampling="most_probable"),
        GeneratorConfig(sampling_dropout="off"),
    ):
        objective = toy.objective("replaced_span", generator=generator)
        inputs = toy.inputs(32)
        masked = objective.mask(inputs, RANDOM)
        with torch.no_grad():
            sampled_P = objective.propose(inputs, masked).sampled_P
            as_read = find_spans(
                Masked(
                    **{
                        **{name: getattr(masked, name) for name in Masked.__dataclass_fields__},
                        "original_P": sampled_P,
                    }
                ),
                inputs,
                longest=objective.config.replaced_span.max_tokens,
            )
            hidden_BXD, _ = read(objective, inputs, as_read)
            logits_PV = objective.generator_head(
                hidden_BXD.flatten(0, 1)[masked.layout.state_P],
                objective.generator.embeddings.word_embeddings.weight,
            )
        expected_P = sample(
            logits_PV,
            masked.uniform_P,
            method=generator.sampling,
            temperature=generator.temperature,
            forbidden_P=masked.original_P if generator.correct_token == "forbidden" else None,
        )
        assert torch.equal(sampled_P, expected_P)
        assert len(masked.layout.tail_R) > 30


def test_spans_of_one_token_are_electra(toy):
    changes = {"masking": SPANS, "seed": 3}
    ours = toy.objective("replaced_span", replaced_span=ReplacedSpanConfig(max_tokens=1), **changes)
    theirs = toy.objective("electra", **changes)
    outputs = [objective(toy.inputs(), RANDOM) for objective in (ours, theirs)]
    assert outputs[0].loss.item() == pytest.approx(outputs[1].loss.item(), rel=1e-6)
    found, expected = (summarise(output.sums) for output in outputs)
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("sampling_dropout", ["on", "off"])
def test_no_gradient_passes_through_what_is_written(toy, sampling_dropout):
    generator = GeneratorConfig(sharing="none", sampling_dropout=sampling_dropout)
    objective = toy.objective("replaced_span", dropout=0.1, generator=generator, generator_weight=0.0).train()
    objective(toy.inputs(), RANDOM).loss.backward()
    owned = objective.parameters_by_owner()
    assert not any(parameter.grad.any() for _, parameter in owned["generator"])
    assert all(parameter.grad.any() for name, parameter in owned["discriminator"] if "key.bias" not in name)


def test_the_generator_learns_in_slots_too(toy):
    """The gradient of what slots name reaches the row that they see."""
    objective = toy.objective("replaced_span", generator=GeneratorConfig(sharing="none"))
    inputs = toy.inputs()
    masked = objective.mask(inputs, RANDOM)
    objective.propose(inputs, masked).loss_P[masked.layout.tail_R].sum().backward()
    grads = {name: weight.grad for name, weight in objective.generator.named_parameters()}
    assert all(grad.any() for name, grad in grads.items() if "key.bias" not in name)
    # Also that of a word which stands in rows only, and in no slot.
    assert grads["embeddings.word_embeddings.weight"][MASK].any()


def test_boundaries_are_part_of_the_discriminators_loss(toy):
    objective = toy.objective("replaced_span", replaced_span=ReplacedSpanConfig(boundaries="on")).eval()
    output = objective(toy.inputs(), RANDOM)
    found = summarise(output.sums)
    expected = found["mlm_loss"] + 50 * (found["discriminator_loss"] + found["boundary_loss"])
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)
    assert 0 < found["boundary_auc"] < 1
    output.loss.backward()
    assert all(weight.grad.any() for weight in objective.boundary_head.parameters())


@pytest.mark.slow
def test_boundaries_are_learned(toy):
    """Where words at random stand in place of the right ones, they begin and end at some place."""
    config = ReplacedSpanConfig(boundaries="on", max_tokens=4)
    generator = GeneratorConfig(temperature=10.0)
    objective = toy.objective("replaced_span", replaced_span=config, generator=generator)
    list(toy.train(objective, 80, learning_rate=4e-3))
    found = toy.evaluate(objective)
    assert found["discriminator_auc"] > 0.8
    assert found["boundary_auc"] > 0.8


@pytest.mark.parametrize("length", ["original", "own"])
@pytest.mark.parametrize("max_tokens", [1, 3, 16])
def test_rows_without_anything_to_mask_and_rows_all_masked(toy, max_tokens, length):
    ids_BL = torch.tensor([[CLS, SEP], [CLS, SEP]])
    nothing = Inputs.of(ids_BL, torch.zeros_like(ids_BL), torch.tensor([2, 2]))
    config = ReplacedSpanConfig(max_tokens=max_tokens, boundaries="on", length=length)
    masking = MaskingConfig(strategy="span", mask_token_prob=1.0, mask_prob=0.99)
    objective = toy.objective("replaced_span", replaced_span=config, masking=masking).train()
    for inputs in (nothing, toy.inputs(32)):
        objective.zero_grad()
        output = objective(inputs, RANDOM)
        output.loss.backward()
        assert output.loss.isfinite()
        assert all(weight.grad is not None for weight in objective.parameters())


def test_one_encoder_can_do_both(toy):
    generator = GeneratorConfig(sharing="all", width=1.0)
    objective = toy.objective("replaced_span", generator=generator)
    assert objective.generator is objective.discriminator
    losses = [step["loss"] for step in toy.train(objective, 12)]
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda toy: ReplacedSpanConfig(max_tokens=0), r"replaced_span\.max_tokens is 0"),
        (lambda toy: MaskingConfig(mask_prob=0.0), "mask_prob is 0"),
        (
            lambda toy: toy.objective("replaced_span", replaced_span=ReplacedSpanConfig(max_tokens=17)),
            r"replaced_span\.max_tokens is 17.*16",
        ),
        (
            lambda toy: toy.objective("replaced_span", generator=GeneratorConfig(kind="ngram")),
            r"generator\.kind is ngram.*mlm",
        ),
        (
            lambda toy: toy.objective("replaced_span", masking=MaskingConfig(replacement="as_google")),
            r"masking\.replacement is as_google.*without",
        ),
        (
            lambda toy: PretrainConfig(objective="replaced_span", correction="proposed"),
            "correction is proposed.*replaced_span",
        ),
    ],
)
def test_bad_input_is_named(toy, make, message):
    with pytest.raises(InputError, match=message):
        make(toy)
