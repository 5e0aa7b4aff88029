from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from electra.errors import InputError
from electra.pretraining.masking import Masked, Masker, MaskingConfig
from electra.seeds import torch_generator

VOCAB_SIZE = 1000
PAD, CLS, SEP, MASK = 0, 2, 3, 4
# A third of the vocabulary goes on a word.
CONTINUES_WORD_V = torch.arange(VOCAB_SIZE) % 3 == 2
STRATEGIES = ("token", "whole_word", "span")


def make_masker(config: MaskingConfig, *, seq_length: int = 128) -> Masker:
    return Masker(
        config,
        seq_length=seq_length,
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        never_chosen=[PAD, CLS, SEP, MASK],
        continues_word_V=CONTINUES_WORD_V,
    )


def make_rows(lengths: list[int], *, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows [CLS] tokens [SEP] tokens [SEP], padded; a row shorter than three is specials only."""
    ids_BL = torch.randint(5, VOCAB_SIZE, (len(lengths), width), generator=torch_generator(seed, "rows"))
    for row_L, length in zip(ids_BL, lengths, strict=True):
        row_L[0] = CLS
        row_L[length // 2] = row_L[length - 1] = SEP
        row_L[length:] = PAD
    return ids_BL, torch.tensor(lengths)


def run(config: MaskingConfig, ids_BL: Tensor, lengths_B: Tensor, *, seq_length: int = 128) -> Masked:
    masker = make_masker(config, seq_length=seq_length)
    return masker(ids_BL, lengths_B, masker.draw_noise(len(ids_BL), generator=torch_generator(0, "mask")))


def chosen(masked: Masked) -> Tensor:
    flat = torch.zeros(masked.masked_ids_BL.numel(), dtype=torch.bool)
    flat[masked.positions_P] = True
    return flat.view_as(masked.masked_ids_BL)


def units(ids_L: Tensor) -> Iterator[list[int]]:
    """The words of a row, as lists of columns, found one token at a time."""
    word: list[int] = []
    for column, token in enumerate(ids_L.tolist()):
        special = token in (PAD, CLS, SEP, MASK)
        if word and (special or not CONTINUES_WORD_V[token]):
            yield word
            word = []
        if not special:
            word.append(column)
    if word:
        yield word


def test_every_strategy_reaches_its_rate_over_100k_tokens() -> None:
    ids_BL, lengths_B = make_rows([128] * 800, width=128)
    for strategy in STRATEGIES:
        masked = run(MaskingConfig(strategy=strategy), ids_BL, lengths_B)
        # 19 of 128 tokens; whole words and spans fall short where nothing small enough is left.
        assert len(masked.positions_P) / ids_BL.numel() == pytest.approx(19 / 128, rel=1e-3), strategy
    ids_BL, lengths_B = make_rows([512] * 200, width=512)
    large = run(MaskingConfig(mask_prob=0.25), ids_BL, lengths_B, seq_length=512)
    assert len(large.positions_P) / ids_BL.numel() == 0.25


def test_as_google_masks_fewer_tokens_because_it_draws_some_twice() -> None:
    ids_BL, lengths_B = make_rows([128] * 800, width=128)
    masked = run(MaskingConfig(replacement="as_google"), ids_BL, lengths_B)
    assert len(masked.positions_P) == 19 * 800
    expected = 125 * (1 - (1 - 1 / 125) ** 19) / 128
    assert expected == pytest.approx(0.138, abs=1e-3)
    assert chosen(masked).float().mean().item() == pytest.approx(expected, abs=1e-3)
    assert torch.equal(masked.chosen_U, chosen(masked).flatten().nonzero().squeeze(1))
    assert torch.equal(ids_BL.flatten()[masked.positions_P], masked.original_P)


def test_as_google_masks_a_token_that_any_of_its_draws_masks() -> None:
    ids_BL, lengths_B = make_rows([128] * 800, width=128)
    masked = run(MaskingConfig(replacement="as_google", mask_token_prob=0.5), ids_BL, lengths_B)
    draws = torch.bincount(masked.positions_P, minlength=ids_BL.numel())
    is_masked = masked.masked_ids_BL.flatten() == MASK
    assert is_masked[draws == 1].float().mean().item() == pytest.approx(0.5, abs=0.02)
    assert is_masked[draws == 2].float().mean().item() == pytest.approx(0.75, abs=0.04)
    assert not is_masked[draws == 0].any()


def original_count(length: int, mask_prob: float, seq_length: int) -> int:
    most = int((mask_prob + 0.005) * seq_length)
    wanted = int(np.round(np.float32(length) * np.float32(mask_prob)))
    return max(1, min(most, wanted))


@pytest.mark.parametrize("mask_prob", [0.15, 0.25, 0.4])
@pytest.mark.parametrize("replacement", ["without", "as_google"])
def test_counts_per_row_are_exact(mask_prob: float, replacement: str) -> None:
    lengths = list(range(4, 129))
    ids_BL, lengths_B = make_rows(lengths, width=128)
    masked = run(MaskingConfig(mask_prob=mask_prob, replacement=replacement), ids_BL, lengths_B)
    counts = torch.bincount(masked.positions_P // 128, minlength=len(lengths)).tolist()
    expected = [original_count(length, mask_prob, 128) for length in lengths]
    if replacement == "without":
        candidates = [length - 3 for length in lengths]
        expected = [min(pair) for pair in zip(expected, candidates, strict=True)]
    assert counts == expected


@settings(deadline=None, max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    strategy=st.sampled_from([*STRATEGIES, "as_google"]),
    extra=st.integers(0, 30),
    mask_prob=st.sampled_from([0.02, 0.15, 0.5, 0.9]),
    seed=st.integers(0, 1000),
)
def test_rows_of_any_length(
    lengths: list[int], strategy: str, extra: int, mask_prob: float, seed: int
) -> None:
    """Specials and padding stay, units stay whole, and a row comes out the same alone as in a batch."""
    config = MaskingConfig(
        mask_prob=mask_prob,
        strategy="token" if strategy == "as_google" else strategy,
        replacement="as_google" if strategy == "as_google" else "without",
        mask_token_prob=0.6,
        random_token_prob=0.2,
    )
    masker = make_masker(config, seq_length=40)
    noise_BLK = masker.draw_noise(len(lengths), generator=torch_generator(seed, "mask"))
    ids_BL, lengths_B = make_rows(lengths, width=max(lengths) + extra, seed=seed)
    masked = masker(ids_BL, lengths_B, noise_BLK)
    chosen_BL = chosen(masked)
    assert not chosen_BL[torch.isin(ids_BL, torch.tensor([PAD, CLS, SEP, MASK]))].any()
    assert torch.equal(masked.masked_ids_BL[~chosen_BL], ids_BL[~chosen_BL])
    assert torch.equal(masked.chosen_U, chosen_BL.flatten().nonzero().squeeze(1))
    ordinary_BL = ~torch.isin(ids_BL, torch.tensor([PAD, CLS, SEP, MASK]))
    assert torch.equal(masked.ordinary_M, ordinary_BL.flatten().nonzero().squeeze(1))
    assert torch.equal(ids_BL.flatten()[masked.positions_P], masked.original_P)
    for row, length in enumerate(lengths):
        assert chosen_BL[row].sum() <= original_count(length, mask_prob, 40)
        if strategy in ("whole_word", "span"):
            for word in units(ids_BL[row]):
                assert len(set(chosen_BL[row, word].tolist())) == 1
        alone = masker(ids_BL[row : row + 1, :length], lengths_B[row : row + 1], noise_BLK[row : row + 1])
        assert torch.equal(alone.masked_ids_BL[0], masked.masked_ids_BL[row, :length])
        in_row = masked.positions_P // ids_BL.shape[1] == row
        assert torch.equal(alone.positions_P, masked.positions_P[in_row] % ids_BL.shape[1])
        assert torch.equal(alone.uniform_P, masked.uniform_P[in_row])


def test_processes_mask_their_slices_as_one_process_masks_the_batch() -> None:
    ids_BL, lengths_B = make_rows([20, 30, 60, 90, 100, 128, 64, 32], width=128)
    masker = make_masker(MaskingConfig())
    noise_BLK = masker.draw_noise(8, generator=torch_generator(7, "mask", 3))
    whole = masker(ids_BL, lengths_B, noise_BLK)
    parts = []
    for rows in (slice(0, 4), slice(4, 8)):
        width = int(lengths_B[rows].max())
        parts.append(masker(ids_BL[rows, :width], lengths_B[rows], noise_BLK[rows]))
        assert torch.equal(parts[-1].masked_ids_BL, whole.masked_ids_BL[rows, :width])
    assert torch.equal(torch.cat([part.original_P for part in parts]), whole.original_P)
    assert torch.equal(torch.cat([part.uniform_P for part in parts]), whole.uniform_P)


def test_rows_without_candidates_are_left_as_they_are() -> None:
    ids_BL, lengths_B = make_rows([1, 2, 3, 0], width=8)
    for config in (MaskingConfig(replacement="as_google"), *(MaskingConfig(strategy=s) for s in STRATEGIES)):
        specials_BL = torch.where(ids_BL > 4, SEP, ids_BL)
        masked = run(config, specials_BL, lengths_B)
        assert torch.equal(masked.masked_ids_BL, specials_BL)
        assert masked.positions_P.shape == masked.original_P.shape == masked.uniform_P.shape == (0,)


def test_the_same_generator_gives_the_same_masks_and_another_does_not() -> None:
    ids_BL, lengths_B = make_rows([128] * 4, width=128)
    masker = make_masker(MaskingConfig())
    one, same, other = (
        masker(ids_BL, lengths_B, masker.draw_noise(4, generator=torch_generator(0, "mask", step)))
        for step in (1, 1, 2)
    )
    assert torch.equal(one.masked_ids_BL, same.masked_ids_BL)
    assert torch.equal(one.uniform_P, same.uniform_P)
    assert not torch.equal(one.masked_ids_BL, other.masked_ids_BL)


def test_every_candidate_is_chosen_equally_often() -> None:
    """Chi-square over the columns of rows without inner specials."""
    from scipy.stats import chisquare

    ids_BL = torch.full((8_000, 16), 9)
    ids_BL[:, 0], ids_BL[:, -1] = CLS, SEP
    for replacement in ("without", "as_google"):
        masked = run(MaskingConfig(replacement=replacement), ids_BL, torch.full((8_000,), 16), seq_length=16)
        by_column = torch.bincount(masked.positions_P % 16, minlength=16)
        assert by_column[[0, 15]].tolist() == [0, 0]
        assert chisquare(by_column[1:15].numpy()).pvalue > 1e-4


@pytest.mark.parametrize(("mask", "random"), [(0.85, 0.0), (0.8, 0.1), (1.0, 0.0), (0.0, 1.0)])
def test_shares_of_masked_random_and_kept_tokens(mask: float, random: float) -> None:
    ids_BL, lengths_B = make_rows([128] * 1500, width=128)
    config = MaskingConfig(mask_token_prob=mask, random_token_prob=random)
    masked = run(config, ids_BL, lengths_B)
    seen_P = masked.masked_ids_BL.flatten()[masked.positions_P]
    kept = (seen_P == masked.original_P).float().mean().item()
    # A random token is the original one time in a thousand; [MASK] itself can be drawn too.
    assert (seen_P == MASK).float().mean().item() == pytest.approx(mask + random / 1000, abs=0.01)
    assert kept == pytest.approx(1 - mask - random + random / 1000, abs=0.01)
    replaced_P = seen_P[(seen_P != MASK) & (seen_P != masked.original_P)]
    assert len(replaced_P) / len(seen_P) == pytest.approx(random, abs=0.01)
    if random:
        # Random tokens come from the whole vocabulary.
        assert replaced_P.min() < 20
        assert replaced_P.max() > VOCAB_SIZE - 20


def test_whole_words_follow_the_greedy_rule() -> None:
    """The passes over a batch equal a loop that takes words in order of priority if they still fit."""
    ids_BL, lengths_B = make_rows([25, 30, 64, 128, 90], width=128)
    # A piece that goes on no word takes the priority of the special token before it: leave these out.
    ids_BL[torch.isin(ids_BL, torch.tensor([CLS, SEP])).roll(1, 1) & (ids_BL > 4)] = 9
    masker = make_masker(MaskingConfig(strategy="whole_word"))
    noise_BLK = masker.draw_noise(5, generator=torch_generator(3, "mask"))
    chosen_BL = chosen(masker(ids_BL, lengths_B, noise_BLK))
    for row in range(5):
        left = original_count(int(lengths_B[row]), 0.15, 128)
        expected: set[int] = set()
        for word in sorted(units(ids_BL[row]), key=lambda word: float(noise_BLK[row, word[0], 0])):
            if len(word) <= left:
                left -= len(word)
                expected.update(word)
        assert set(chosen_BL[row].nonzero().flatten().tolist()) == expected


@pytest.mark.parametrize("lengths", ["inverse", "geometric"])
def test_spans_have_their_lengths(lengths: str) -> None:
    """In long rows of one-token words, masked rarely, a run of chosen tokens is one span: few spans touch."""
    ids_BL = torch.full((100, 4096), 9)
    config = MaskingConfig(strategy="span", span_lengths=lengths, max_span_words=4, mask_prob=0.02)
    masked = run(config, ids_BL, torch.full((100,), 4096), seq_length=4096)
    chosen_BL = torch.nn.functional.pad(chosen(masked), (1, 1)).int()
    edges_BL = chosen_BL.diff(dim=1)
    starts, ends = (edges_BL == 1).nonzero()[:, 1], (edges_BL == -1).nonzero()[:, 1]
    shares = torch.bincount(ends - starts, minlength=9)[1:9] / len(starts)
    words = torch.arange(1.0, 5.0)
    weights = 1 / words if lengths == "inverse" else 0.8**words
    torch.testing.assert_close(shares[:4], weights / weights.sum(), rtol=0, atol=0.02)
    assert shares[4:].sum() < 0.03


def test_spans_do_not_cross_special_tokens() -> None:
    """Three words apart from each other, two of them chosen: every pair is equally likely."""
    from scipy.stats import chisquare

    ids_BL = torch.tensor([[CLS, 9, SEP, 9, SEP, 9, SEP]]).repeat(6_000, 1)
    masked = run(MaskingConfig(strategy="span", mask_prob=0.3), ids_BL, torch.full((6_000,), 7), seq_length=7)
    chosen_BL = chosen(masked)
    assert (chosen_BL.sum(1) == 2).all()
    assert chisquare((~chosen_BL[:, [1, 3, 5]]).sum(0).numpy()).pvalue > 1e-4


def test_longer_spans_than_tokens() -> None:
    def mean_run(strategy: str) -> float:
        ids_BL, lengths_B = make_rows([128] * 200, width=128)
        chosen_BL = chosen(run(MaskingConfig(strategy=strategy), ids_BL, lengths_B)).int()
        return chosen_BL.sum().item() / (chosen_BL.diff(dim=1) == 1).sum().item()

    assert mean_run("token") < mean_run("whole_word") < mean_run("span")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mask_prob": 0.0}, "mask_prob"),
        ({"mask_prob": 1.0}, "mask_prob"),
        ({"mask_token_prob": -0.1}, "mask_token_prob"),
        ({"random_token_prob": 0.2}, "random_token_prob"),
        ({"strategy": "span", "replacement": "as_google"}, "replacement"),
        ({"max_span_words": 0}, "max_span_words"),
        ({"span_stop_prob": 1.0}, "span_stop_prob"),
    ],
)
def test_a_wrong_value_is_refused_by_its_key(wrong: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        MaskingConfig(**wrong)


def test_words_must_be_known_to_be_masked_whole() -> None:
    with pytest.raises(InputError, match="whole_word"):
        Masker(
            MaskingConfig(strategy="whole_word"),
            seq_length=128,
            vocab_size=VOCAB_SIZE,
            mask_id=MASK,
            never_chosen=[MASK],
        )


def test_the_originals_masks_follow_the_same_rules(shared: Path) -> None:
    """Its recorded batches have our counts, draw from our candidates, and show [MASK] or the token itself."""
    config = MaskingConfig(replacement="as_google")
    with np.load(shared / "oracles" / "google-electra" / "pretrain_mini.npz") as dump:
        for prefix in ("", *(f"step{step}/" for step in range(5))):
            ids_BL = torch.tensor(dump[f"{prefix}in/input_ids"]).long()
            lengths_B = torch.tensor(dump[f"{prefix}in/input_mask"]).sum(1)
            ours = run(config, ids_BL, lengths_B, seq_length=24)
            drawn = torch.tensor(dump[f"{prefix}out/masked_lm_weights"]).bool()
            theirs_BN = torch.tensor(dump[f"{prefix}out/masked_lm_positions"]).long()
            assert torch.bincount(ours.positions_P // 24).tolist() == drawn.sum(1).tolist()
            seen_P = torch.tensor(dump[f"{prefix}out/masked_input_ids"]).long().gather(1, theirs_BN)[drawn]
            original_P = torch.tensor(dump[f"{prefix}out/masked_lm_ids"]).long()[drawn]
            assert torch.equal(ids_BL.gather(1, theirs_BN)[drawn], original_P)
            assert not torch.isin(original_P, torch.tensor([PAD, CLS, SEP, MASK])).any()
            assert ((seen_P == MASK) | (seen_P == original_P)).all()
