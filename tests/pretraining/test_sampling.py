from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from electra.errors import InputError
from electra.pretraining.sampling import Unigram, corrupt, sample
from electra.seeds import torch_generator

pytestmark = pytest.mark.numeric

# Numbers lie below 1, but one in single precision may have been rounded up to it.
SMALLEST, LARGEST, ROUNDED_UP = 0.0, 1 - 2.0**-53, 1.0


def uniform(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, generator=torch_generator(seed, "sample"), dtype=torch.float64)


def logits(vocab_size: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    return torch.randn(vocab_size, generator=torch_generator(seed, "logits")) * spread


def assert_drawn_from(ids_P: Tensor, probs_V: Tensor) -> None:
    """Chi-square test; tokens of small expectation are put together, those of none must not occur."""
    counts_V = torch.bincount(ids_P, minlength=len(probs_V)).double()
    expected_V = probs_V.double() / probs_V.double().sum() * len(ids_P)
    assert counts_V[probs_V == 0].sum() == 0
    rare_V = expected_V < 10
    observed = [*counts_V[~rare_V].tolist(), counts_V[rare_V].sum().item()]
    expected = [*expected_V[~rare_V].tolist(), expected_V[rare_V].sum().item()]
    if expected[-1] == 0:
        observed, expected = observed[:-1], expected[:-1]
    assert chisquare(observed, expected).pvalue > 1e-4


@pytest.mark.parametrize("vocab_size", [5, 255, 256, 257, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_samples_have_the_exact_probabilities(vocab_size: int, temperature: float) -> None:
    logits_V = logits(vocab_size)
    ids_P = sample(logits_V.expand(20_000, -1), uniform(20_000), temperature=temperature)
    assert_drawn_from(ids_P, torch.softmax(logits_V.double() / temperature, -1))


def test_a_large_vocabulary_is_sampled_like_a_double_precision_cdf() -> None:
    """The choice of the one token is right even where single-precision running sums are not."""
    logits_PV = torch.stack([logits(64_000, seed, spread=0.1) for seed in range(64)])
    uniform_P = uniform(64)
    cdf_PV = torch.softmax(logits_PV.double(), -1).cumsum(-1)
    expected_P = torch.searchsorted(cdf_PV, uniform_P[:, None], right=True).squeeze(1)
    # The float32 softmax moves a boundary by about 1e-8; a token is 1.6e-5 wide.
    assert (sample(logits_PV, uniform_P) == expected_P).float().mean() >= 0.98


@pytest.mark.parametrize("inside", [0.02, 0.98])
def test_every_token_of_a_large_flat_vocabulary_has_its_place(inside: float) -> None:
    """Near both ends of its share a token is found: no rounding error has moved it, first or last."""
    vocab_size = 60_000
    tokens_P = torch.cat([torch.arange(0, vocab_size, 512), torch.arange(511, vocab_size, 512)])
    tokens_P = torch.cat([tokens_P, torch.tensor([vocab_size - 1])])
    uniform_P = (tokens_P.double() + inside) / vocab_size
    assert torch.equal(sample(torch.zeros(1, vocab_size).expand(len(tokens_P), -1), uniform_P), tokens_P)


def test_forbidden_tokens_are_never_sampled_and_the_rest_renormalised() -> None:
    logits_V = logits(300)
    best = int(logits_V.argmax())
    forbidden_P = torch.full((20_000,), best)
    ids_P = sample(logits_V.expand(20_000, -1), uniform(20_000), forbidden_P=forbidden_P)
    probs_V = torch.softmax(logits_V.double(), -1)
    probs_V[best] = 0
    assert_drawn_from(ids_P, probs_V)


def test_a_forbidden_token_that_is_all_but_certain_leaves_the_others_their_shares() -> None:
    logits_V = torch.tensor([500.0, 0.0, 1.0, -1.0])
    ids_P = sample(logits_V.expand(10_000, -1), uniform(10_000), forbidden_P=torch.zeros(10_000).long())
    assert_drawn_from(ids_P, torch.tensor([0, 1, np.e, 1 / np.e]))
    most_P = sample(
        logits_V[None], uniform(1), method="most_probable", forbidden_P=torch.zeros(1, dtype=torch.long)
    )
    assert most_P.tolist() == [2]


def test_extreme_logits() -> None:
    inf = torch.inf
    logits_PV = torch.tensor([[-inf, 3.0, -inf], [1e30, 0.0, -1e30], [-inf, -inf, -1e4], [88.0, 88.0, -inf]])
    for place in (SMALLEST, 0.5, LARGEST, ROUNDED_UP):
        ids = sample(logits_PV, torch.full((4,), place, dtype=torch.float64)).tolist()
        assert ids[:3] == [1, 0, 2]
        assert ids[3] in (0, 1)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(
    possible=st.sets(st.integers(0, 699), min_size=1, max_size=5),
    place=st.one_of(st.sampled_from([SMALLEST, LARGEST, ROUNDED_UP]), st.floats(0, LARGEST)),
    vocab_size=st.integers(1, 700),
    spread=st.sampled_from([0.0, 1.0, 50.0]),
)
def test_an_impossible_token_is_never_sampled(
    possible: set[int], place: float, vocab_size: int, spread: float
) -> None:
    possible = {token % vocab_size for token in possible}
    logits_V = torch.full((vocab_size,), -torch.inf)
    logits_V[list(possible)] = logits(len(possible), spread=spread)
    token = sample(logits_V[None], torch.tensor([place], dtype=torch.float64)).item()
    assert token in possible
    # Where the others underflow, the sample must be one that single precision gives any weight.
    assert torch.softmax(logits_V, -1)[token] > 0


def test_a_row_of_nan_gives_some_token_of_the_vocabulary() -> None:
    ids_P = sample(torch.full((2, 300), torch.nan), uniform(2))
    assert ((ids_P >= 0) & (ids_P < 300)).all()


def test_most_probable_takes_the_best() -> None:
    logits_PV = torch.stack([logits(100, seed) for seed in range(8)])
    assert torch.equal(sample(logits_PV, uniform(8), method="most_probable"), logits_PV.argmax(-1))


@pytest.mark.slow
def test_low_precision_logits_are_sampled_in_single_precision() -> None:
    logits_V = logits(1000).bfloat16()
    ids_P = sample(logits_V.expand(20_000, -1), uniform(20_000))
    assert_drawn_from(ids_P, torch.softmax(logits_V.double(), -1))
    # Softmax in bfloat16 itself would put tokens on a coarse grid.
    assert torch.equal(ids_P, sample(logits_V.float().expand(20_000, -1), uniform(20_000)))


def test_samples_follow_from_the_uniform_numbers_alone() -> None:
    logits_PV = torch.stack([logits(500, seed) for seed in range(64)])
    whole_P = sample(logits_PV, uniform(64))
    assert torch.equal(whole_P, sample(logits_PV, uniform(64)))
    parts = [sample(logits_PV[rows], uniform(64)[rows]) for rows in (slice(0, 10), slice(10, 64))]
    assert torch.equal(whole_P, torch.cat(parts))
    assert not torch.equal(whole_P, sample(logits_PV, uniform(64, seed=1)))


def test_no_gradient_passes_through_sampling() -> None:
    logits_PV = logits(50).expand(4, -1).clone().requires_grad_()
    for method in ("categorical", "most_probable"):
        ids_P = sample(logits_PV * 2, uniform(4), method=method, temperature=0.7)
        assert not ids_P.requires_grad
        corrupted = corrupt(torch.zeros(2, 4, dtype=torch.long), torch.tensor([0, 1, 4, 5]), ids_P)
        embedded = torch.nn.functional.embedding(
            corrupted.corrupted_ids_BL, torch.ones(50, 3, requires_grad=True)
        )
        embedded.sum().backward()
    assert logits_PV.grad is None


def test_no_positions_give_no_samples() -> None:
    assert sample(torch.zeros(0, 30), uniform(0)).shape == (0,)
    rows = torch.arange(6).view(2, 3)
    nothing = torch.zeros(0, dtype=torch.long)
    corrupted = corrupt(rows, nothing, nothing)
    assert torch.equal(corrupted.corrupted_ids_BL, rows)
    assert not corrupted.replaced_BL.any()


def test_a_wrong_temperature_is_refused() -> None:
    with pytest.raises(InputError, match=r"temperature.*0\.0"):
        sample(torch.zeros(1, 3), uniform(1), temperature=0.0)


def test_unigram_samples_by_counts_and_never_what_was_not_seen() -> None:
    counts_V = torch.tensor([0, 5, 0, 1, 100, 20, 0])
    generator = Unigram(counts_V)
    assert_drawn_from(generator.sample(uniform(20_000)), counts_V)
    ends = generator.sample(torch.tensor([SMALLEST, LARGEST, ROUNDED_UP], dtype=torch.float64))
    assert ends.tolist() == [1, 5, 5]
    torch.testing.assert_close(generator.logits(3).exp(), (counts_V / 126.0).expand(3, -1))
    forbidden_P = torch.full((20_000,), 4)
    ids_P = sample(generator.logits(20_000), uniform(20_000), forbidden_P=forbidden_P)
    assert_drawn_from(ids_P, torch.tensor([0, 5, 0, 1, 0, 20, 0]))


def test_uniform_samples_every_token_alike() -> None:
    assert_drawn_from(Unigram.uniform(50).sample(uniform(20_000)), torch.ones(50))


@pytest.mark.parametrize("counts", [[0, 0], [-1, 3]])
def test_impossible_counts_are_refused(counts: list[int]) -> None:
    with pytest.raises(InputError, match="counts"):
        Unigram(torch.tensor(counts))


def test_labels_are_what_changed() -> None:
    rows = torch.tensor([[2, 10, 11, 3], [2, 12, 3, 0]])
    # The second sample equals the original, and counts as original.
    corrupted = corrupt(rows, torch.tensor([1, 2, 5]), torch.tensor([99, 11, 0]))
    assert corrupted.corrupted_ids_BL.tolist() == [[2, 99, 11, 3], [2, 0, 3, 0]]
    assert corrupted.replaced_BL.tolist() == [[False, True, False, False], [False, True, False, False]]
    assert rows.tolist() == [[2, 10, 11, 3], [2, 12, 3, 0]]


def test_a_position_chosen_twice_gets_the_mean_of_its_samples_as_in_the_original() -> None:
    rows = torch.tensor([[2, 10, 11, 3]])
    corrupted = corrupt(rows, torch.tensor([1, 1, 2, 2, 2]), torch.tensor([20, 25, 7, 7, 7]))
    assert corrupted.corrupted_ids_BL.tolist() == [[2, 22, 7, 3]]


def test_the_originals_corrupted_rows_and_labels(shared: Path) -> None:
    with np.load(shared / "oracles" / "google-electra" / "pretrain_mini.npz") as dump:
        for prefix in ("", *(f"step{step}/" for step in range(5))):
            rows = torch.tensor(dump[f"{prefix}in/input_ids"]).long()
            theirs = torch.tensor(dump[f"{prefix}out/fake_input_ids"]).long()
            columns_BN = torch.tensor(dump[f"{prefix}out/masked_lm_positions"]).long()
            drawn = torch.tensor(dump[f"{prefix}out/masked_lm_weights"]).bool()
            positions_P = (columns_BN + torch.arange(4)[:, None] * 24)[drawn]
            ours = corrupt(rows, positions_P, theirs.flatten()[positions_P])
            assert torch.equal(ours.corrupted_ids_BL, theirs)
            assert torch.equal(ours.replaced_BL, torch.tensor(dump[f"{prefix}out/is_fake"]).bool())
