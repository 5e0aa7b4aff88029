"""CBOW with negative sampling: draws, scores and what they converge to, by word2vec's formulas."""

import math

import pytest
import torch

from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import GeneratorConfig, NegativeSamplingConfig, PretrainConfig
from electra.pretraining.masking import MaskingConfig, StepRandom, TokenFacts
from electra.pretraining.networks import FixedGenerator
from electra.pretraining.objectives import build_objective
from electra.pretraining.sampling import Unigram, draw_alike

pytestmark = pytest.mark.numeric

RANDOM = StepRandom(seed=3, step=5, num_rows=32)
EVERYWHERE = MaskingConfig(mask_prob=0.99)


def test_the_loss_is_that_of_word2vec(toy):
    """-log σ(u·h) of the true token and -log σ(-u·h) of each drawn one, h the weighted mean of neighbours."""
    objective = toy.objective("negative_sampling", masking=EVERYWHERE)
    with torch.no_grad():
        for weight in objective.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(1))
    inputs = toy.inputs()
    masked = objective.mask(inputs, RANDOM)
    drawn = objective.generator.draw(masked.uniform_PN, masked.original_P, objective.generating)
    ids, lengths = inputs.input_ids_BL.tolist(), inputs.lengths_B.tolist()
    words, outputs = objective.encoder.embeddings.word_embeddings.weight, objective.output_vectors.weight
    losses = []
    for place, true, others in zip(
        masked.positions_P.tolist(), masked.original_P.tolist(), drawn.tolist(), strict=True
    ):
        row, column = divmod(place, inputs.input_ids_BL.shape[1])
        near = {column + step: 1 / abs(step) if abs(step) == 1 else 0.5 for step in (-2, -1, 1, 2)}
        near = {other: weight for other, weight in near.items() if 0 <= other < lengths[row]}
        h = sum(weight * words[ids[row][other]] for other, weight in near.items()) / sum(near.values())
        signs = [1, *(1 if other == true else -1 for other in others)]
        losses.append(
            -sum(
                torch.nn.functional.logsigmoid(sign * outputs[token] @ h).item()
                for sign, token in zip(signs, [true, *others], strict=True)
            )
        )
    # Every word of every row is judged.
    assert len(losses) == (inputs.lengths_B - 2).sum()
    # Means of some hundred numbers in fp32, added in another order.
    assert objective(inputs, RANDOM).loss.item() == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.slow
def test_scores_converge_to_the_shifted_mutual_information(toy):
    """log p(word | context) / (k q(word)), as Levy and Goldberg (2014) have shown of the optimum.

    Of the toy's language: three words of a class, all alike, and 26 tokens are drawn evenly.
    """
    negatives = 2
    objective = toy.objective(
        "negative_sampling", masking=EVERYWHERE, negative_sampling=NegativeSamplingConfig(negatives=negatives)
    )
    for rate in (3e-2, 3e-3):
        list(toy.train(objective, 150, learning_rate=rate))
    inputs = toy.inputs(256, seed=10**6)
    scores_BL = -objective.suspicion(inputs, inputs.input_ids_BL)
    # A draw of the true token counts as true: 1 + k q of the pairs, in place of 1.
    q = 1 / toy.tokens.vocab_size
    expected = math.log((1 / 3 + negatives * q / 3) / (negatives * q * (1 - 1 / 3)))
    inner = scores_BL[:, 3:6]
    # The last words of rows have fewer neighbours; the spread is what 150 steps at a low rate leave.
    assert inner.mean().item() == pytest.approx(expected, abs=0.2)


def test_draws_have_the_power_of_frequencies_that_word2vec_takes():
    counts = torch.tensor([1.0, 16.0, 81.0, 256.0, 0.0])
    generator = FixedGenerator(Unigram(counts))
    uniform = torch.rand(100_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    original = torch.full((100_000,), 3)
    drawn = generator.draw(uniform, original, GeneratorConfig(kind="unigram", temperature=4 / 3))
    share = torch.bincount(drawn.flatten(), minlength=5) / drawn.numel()
    # Counts to the power of 0.75; of 200,000 draws shares are within 0.005, four standard deviations.
    torch.testing.assert_close(share, torch.tensor([1, 8, 27, 64, 0.0]) / 100, rtol=0, atol=0.005)
    forbidding = GeneratorConfig(kind="unigram", temperature=4 / 3, correct_token="forbidden")
    drawn = generator.draw(uniform, original, forbidding)
    share = torch.bincount(drawn.flatten(), minlength=5) / drawn.numel()
    torch.testing.assert_close(share, torch.tensor([1, 8, 27, 0, 0.0]) / 36, rtol=0, atol=0.005)


@pytest.mark.parametrize("forbidden", range(4))
def test_no_number_draws_what_is_forbidden_or_does_not_occur(forbidden):
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25], dtype=torch.float64)
    uniform = torch.cat(
        [
            torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1],
            torch.tensor([1 - 2**-53], dtype=torch.float64),
        ]
    )
    drawn = draw_alike(probs, uniform[None], forbidden_P=torch.tensor([forbidden]))
    assert set(drawn.flatten().tolist()) == {0, 2, 3} - {forbidden}


@pytest.mark.parametrize(
    ("generator", "word"),
    [
        (GeneratorConfig(), "generator.kind is mlm"),
        (GeneratorConfig(kind="ngram"), "generator.kind is ngram"),
        (GeneratorConfig(kind="uniform", sampling="most_probable"), "most_probable"),
    ],
)
def test_generators_that_cannot_draw_are_refused(toy, generator, word):
    with pytest.raises(InputError, match=word):
        toy.objective("negative_sampling", generator=generator)


@pytest.mark.parametrize(("objective", "backbone"), [("negative_sampling", "electra"), ("electra", "bag")])
def test_the_bag_and_its_objective_belong_together(objective, backbone):
    tokens = TokenFacts(vocab_size=40, mask_id=4, special_ids=(0, 2, 3, 4), counts_V=torch.ones(40))
    config = PretrainConfig(objective=objective, generator=GeneratorConfig(kind="unigram"))
    encoder = EncoderConfig.preset("tiny", vocab_size=40, backbone=backbone)
    with pytest.raises(InputError, match=f"backbone is {backbone}"):
        build_objective(config, encoder, tokens, seq_length=16, seed=0)


def test_fewer_than_one_negative_is_refused():
    with pytest.raises(InputError, match=r"negative_sampling.negatives is 0"):
        NegativeSamplingConfig(negatives=0)
