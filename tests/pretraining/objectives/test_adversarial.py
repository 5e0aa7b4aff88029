import pytest
import torch
from torch.nn import functional

from electra.pretraining.config import AdversarialConfig, GeneratorConfig
from electra.pretraining.masking import Inputs, Masked
from electra.pretraining.objectives.electra import detection_losses

pytestmark = pytest.mark.numeric

MOVING = AdversarialConfig(baseline="moving", baseline_decay=0.5)


def test_the_generators_gradient_is_that_of_the_expected_loss_of_the_discriminator(toy):
    """One masked position in so many copies of a row that each token is drawn its share of times."""
    copies, position = 2000, 5
    objective = toy.objective(
        "adversarial",
        adversarial=MOVING,
        generator=GeneratorConfig(sharing="none"),
        discriminator_weight=0.0,
    )
    with torch.no_grad():
        for parameter in objective.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)) * 0.2)
    row_L = toy.inputs(1).input_ids_BL[0, :8]
    masked_L = row_L.clone()
    masked_L[position] = toy.tokens.mask_id

    def rows(row_L, count):
        segments_BL = torch.zeros(count, 8, dtype=torch.long)
        return Inputs.of(row_L.expand(count, -1), segments_BL, torch.full((count,), 8))

    inputs = rows(row_L, copies)
    positions_P = torch.arange(copies) * 8 + position
    masked = Masked(
        masked_ids_BL=masked_L.expand(copies, -1),
        positions_P=positions_P,
        original_P=row_L[position].expand(copies),
        uniform_P=(torch.arange(copies, dtype=torch.float64) + 0.5) / copies,
        chosen_U=positions_P,
        ordinary_M=positions_P,
    )
    objective.loss(inputs, masked, objective.count(inputs, masked)).loss.backward()

    with torch.no_grad():
        vocab_size = toy.tokens.vocab_size
        every_token = rows(row_L, vocab_size).input_ids_BL.clone()
        every_token[:, position] = torch.arange(vocab_size)
        hidden = objective.discriminator(every_token, token_type_ids_BL=torch.zeros_like(every_token))
        logits_V = objective.discriminator_head(hidden)[:, position]
        reward_V = detection_losses(logits_V, torch.arange(vocab_size) != row_L[position])
        hidden = objective.generator(masked_L[None], token_type_ids_BL=torch.zeros(1, 8, dtype=torch.long))
        table = objective.generator.embeddings.word_embeddings.weight
        probs_V = objective.generator_head(hidden[0, [position]], table)[0].softmax(-1)
        ascent_V = probs_V * (reward_V - (probs_V * reward_V).sum())
    # Descending the loss goes up the expected reward.
    gradient_V = objective.generator_head.bias.grad
    assert functional.cosine_similarity(-gradient_V, ascent_V, dim=0) > 0.9999
    # A token's share is rounded to a whole number of copies.
    torch.testing.assert_close(-gradient_V, ascent_V, rtol=0, atol=reward_V.max().item() / copies)
    assert all(not parameter.grad.any() for parameter in objective.discriminator.parameters())


@pytest.fixture(scope="module")
def skilled_discriminator(toy):
    """The weights of a discriminator that has learned something, with its head."""
    objective = toy.objective("electra", generator=GeneratorConfig(sharing="none"))
    list(toy.train(objective, 30))
    return {name: value for name, value in objective.state_dict().items() if name.startswith("discriminator")}


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["learned", "moving"])
def test_a_discriminator_that_stands_still_is_misled_more_and_more(toy, baseline, skilled_discriminator):
    objective = toy.objective(
        "adversarial",
        adversarial=AdversarialConfig(baseline=baseline, baseline_decay=0.8),
        generator=GeneratorConfig(sharing="none"),
        discriminator_weight=0.0,
    )
    objective.load_state_dict(skilled_discriminator, strict=False)
    before = toy.evaluate(objective)["reward"]
    list(toy.train(objective, 30))
    assert toy.evaluate(objective)["reward"] > 1.2 * before


def test_the_learned_baseline_comes_to_expect_the_reward_and_leaves_the_generator_alone(toy):
    objective = toy.objective("adversarial")
    random = torch.Generator().manual_seed(0)
    hidden_PD = torch.randn(8, objective.generator_baseline.in_features, generator=random).requires_grad_()
    reward_P = torch.linspace(0.1, 3.0, 8)
    optimizer = torch.optim.Adam(objective.generator_baseline.parameters(), lr=0.1)
    for _ in range(200):
        baseline_P, losses_P = objective.baseline(hidden_PD, reward_P)
        optimizer.zero_grad()
        losses_P.sum().backward()
        optimizer.step()
    torch.testing.assert_close(baseline_P, reward_P, rtol=0, atol=0.1)
    assert not baseline_P.requires_grad
    assert hidden_PD.grad is None


def test_the_moving_baseline_is_the_fading_mean_of_all_steps_and_part_of_the_state(toy):
    objective = toy.objective("adversarial", adversarial=MOVING)
    for total, count in ((8.0, 4.0), (3.0, 3.0)):
        objective.end_step({"reward": torch.tensor([total, count], dtype=torch.float64)})
    restored = toy.objective("adversarial", adversarial=MOVING)
    restored.load_state_dict(objective.state_dict())
    baseline_P, losses_P = restored.baseline(torch.zeros(2, 16), torch.ones(2))
    # 2 with weight 1/4 and 1 with weight 1/2.
    torch.testing.assert_close(baseline_P, torch.full((2,), 4 / 3))
    assert not losses_P.any()
