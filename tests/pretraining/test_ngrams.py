"""Proposals of the n-gram index are those of ten lines of plain Python, for any division of the work."""

import json
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from electra import cli, files
from electra.errors import InputError
from electra.pretraining import ngrams
from electra.pretraining.config import GeneratorConfig
from electra.pretraining.masking import StepRandom
from electra.pretraining.ngrams import LEAST_PLACES, index_ids, index_rows, open_index, sample_of
from electra.seeds import numpy_generator
from electra.text.rows import Row, Rows

PAD, CLS, SEP, MASK = SPECIAL = (0, 1, 2, 3)
VOCAB, UNSEEN = 25, 24


def random_rows(count, *, seed=0):
    """Rows in which few words are frequent, so that some pairs have many places and some have none."""
    random = numpy_generator(seed, "rows")
    for _ in range(count):
        words = 4 + (random.random(random.integers(3, 30)) ** 3 * (UNSEEN - 4)).astype(int)
        yield np.array([CLS, *words, SEP], np.uint16)


def index_of(rows):
    chunk = np.concatenate(rows)
    return index_ids([chunk], vocab_size=VOCAB, special_ids=SPECIAL, most=len(chunk))


def places_by_hand(rows, left, right, original, leaving):
    """The sorted tokens among which a proposal is drawn, by the rule, and which part of it decides."""
    found = [
        (row[i - 1], row[i], row[i + 1]) for row in rows for i in range(1, len(row) - 1) if row[i] > MASK
    ]
    levels = (
        ([m for a, m, b in found if (a, b) == (left, right)], LEAST_PLACES),
        ([m for a, m, b in found if a == left], 1),
        ([m for a, m, b in found], 1),
    )
    for level, (tokens, least) in enumerate(levels):
        count = {"nothing": 0, "one": 1, "all": len(tokens)}[leaving]
        for _ in range(min(count, tokens.count(original))):
            tokens.remove(original)
        if len(tokens) >= least:
            return sorted(tokens), level
    raise AssertionError("nothing to draw from")


@pytest.mark.parametrize("leaving", ["one", "all", "nothing"])
def test_each_proposal_is_a_place_of_the_corpus(leaving):
    rows = list(random_rows(60))
    index = index_of(rows)
    levels = set()
    for row in (*rows[:8], *random_rows(4, seed=1), np.array([CLS, UNSEEN, 5, UNSEEN, SEP])):
        plain = [[int(token) for token in one] for one in rows]
        for column in range(1, len(row) - 1):
            left, original, right = (int(token) for token in row[column - 1 : column + 2])
            places, level = places_by_hand(plain, left, right, original, leaving)
            levels.add(level)
            # The middle of the share that each place has of the numbers from 0 to 1.
            uniform = (np.arange(len(places)) + 0.5) / len(places)
            found = index.propose(
                row[None].astype(np.int64),
                np.full(len(places), column),
                uniform,
                nothing=MASK,
                leaving=leaving,
            )
            # One place of the original token is the first or another of them: their order does not matter.
            assert sorted(found.tolist()) == places, (left, original, right)
    assert levels == {0, 1, 2}


def test_tokens_are_drawn_in_proportion_to_their_counts():
    # Between 4 and 5 there stands 6 in six of ten places, 7 in three, and 8 in one; the tenth is our own.
    rows = [np.array([CLS, 4, middle, 5, SEP]) for middle in (*[6] * 6, *[7] * 3, 8, 9)]
    index = index_of(rows)
    uniform = numpy_generator(0, "test").random(20_000)
    asked = np.array([[CLS, 4, 9, 5, SEP]])
    found = Counter(index.propose(asked, np.full(20_000, 2), uniform, nothing=MASK).tolist())
    assert found.keys() == {6, 7, 8}
    # Three standard deviations of a share of one half among 20,000 draws are 0.011.
    assert [found[token] / 20_000 for token in (6, 7, 8)] == pytest.approx([0.6, 0.3, 0.1], abs=0.011)


def test_a_token_that_never_stood_there_and_one_at_the_edge():
    rows = [np.array([CLS, 4, 5, SEP]), np.array([CLS, 4, 6, SEP])]
    index, uniform = index_of(rows), np.array([0.0, 0.99])
    # After 7 nothing is known: all tokens but the special ones, by frequency.
    assert index.propose(np.array([[7, 8]]), np.array([1, 1]), uniform, nothing=MASK).tolist() == [4, 6]
    assert index.propose(np.array([[4, 8]]), np.array([1, 1]), uniform, nothing=MASK).tolist() == [5, 6]


def test_too_little_text_is_refused():
    with pytest.raises(InputError, match="1 different"):
        index_of([np.array([CLS, 4, 4, SEP])])
    with pytest.raises(InputError, match="0 different"):
        index_of([np.array([CLS, SEP])])


@pytest.fixture
def data(tmp_path):
    text = "\n\n".join(" ".join(f"w{token}" for token in row[1:-1]) for row in random_rows(80))
    (tmp_path / "corpus.txt").write_text(text)
    keys = {"corpus": tmp_path / "corpus.txt", "out": tmp_path / "data", "vocab_size": 300, "seq_length": 16}
    assert (
        cli.main(["prepare", *(f"--{key}={value}" for key, value in keys.items()), "--workers=1"]) == cli.OK
    )
    return tmp_path / "data"


def opened(data, tokens=10**6):
    return open_index(Rows(data), special_ids=SPECIAL, vocab_size=300, tokens=tokens)


def equal(one, other):
    return all(
        np.array_equal(left, right)
        for table in ("pairs", "lefts", "all")
        for left, right in zip(getattr(one, table), getattr(other, table), strict=True)
    )


def test_the_index_is_kept_beside_the_data_and_mapped(data, capsys):
    made, again = opened(data), opened(data)
    assert equal(made, again)
    assert isinstance(again.lefts.keys_N, np.memmap)
    (folder,) = (data / files.CACHE).iterdir()
    assert files.read_manifest(folder, kind=ngrams.KIND)["tokens"] == 10**6
    assert not list(files.damaged_files(folder, files.read_manifest(folder, kind=ngrams.KIND)))
    # Other settings are another index, and the data set is as whole as before.
    opened(data, tokens=160)
    assert len(list((data / files.CACHE).iterdir())) == 2
    assert cli.main(["prepare", "--verify", str(data)]) == cli.OK
    (data / "stray.txt").write_text("")
    assert cli.main(["prepare", "--verify", str(data)]) == cli.BAD_INPUT
    assert "stray.txt" in capsys.readouterr().err


def test_a_damaged_index_is_made_anew(data):
    made = opened(data)
    (folder,) = (data / files.CACHE).iterdir()
    before = [np.array(part) for part in made.lefts]
    for damage in (
        lambda: (folder / "lefts.keys.npy").unlink(),
        lambda: (folder / "lefts.keys.npy").write_bytes(b"nothing"),
        lambda: (folder / files.MANIFEST).write_text(json.dumps({})),
    ):
        damage()
        assert all(np.array_equal(*pair) for pair in zip(before, opened(data).lefts, strict=True))


def test_data_that_cannot_be_written_to(data, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    kept = opened(data)
    (data / files.CACHE).rename(data.parent / "elsewhere")
    monkeypatch.setattr(files, "write_manifest", refuse)
    assert equal(opened(data), kept)
    assert "warning" in capsys.readouterr().err


def test_a_sample_is_bounded_and_always_the_same():
    rows = SimpleNamespace(
        seq_length=32, manifest={"splits": {"train": {"tokens": 32 * 500}}}, stored=list(random_rows(500))
    )
    numbers = sample_of(FakeRows(rows), tokens=1000)
    assert len(numbers) == 1000 // 32
    assert numbers.tolist() == sorted(set(numbers.tolist()))
    assert sample_of(FakeRows(rows), tokens=10**6).tolist() == list(range(500))
    index = index_rows(FakeRows(rows), special_ids=SPECIAL, vocab_size=VOCAB, tokens=1000)
    assert equal(index, index_of([rows.stored[number] for number in numbers]))


class FakeRows:
    """As much of `Rows` as an index reads."""

    def __init__(self, rows):
        self.seq_length, self.manifest, self._stored = rows.seq_length, rows.manifest, rows.stored

    def __len__(self):
        return len(self._stored)

    def __getitem__(self, number):
        return Row(ids=self._stored[number], first_segment=2)


@pytest.mark.parametrize("name", ["electra", "electra_15", "replace_mlm", "all_tokens_mlm"])
@pytest.mark.parametrize("correct", ["allowed", "forbidden"])
def test_objectives_corrupt_with_what_fits_between_the_neighbours(toy, name, correct):
    generator = GeneratorConfig(kind="ngram", correct_token=correct)
    objective = toy.objective(name, generator=generator).eval()
    inputs, random = toy.inputs(256), StepRandom(seed=0, step=0, num_rows=256)
    masked, output = objective.mask(inputs, random), objective(inputs, random)
    corrupted = output.views["corrupted_ids_BL"]
    assert torch.equal(corrupted.flatten()[masked.positions_P], masked.sampled_P)
    # In the toy language neighbours tell the class: n-grams propose one of its three words.
    same_class = (masked.sampled_P - 5) // 3 == (masked.original_P - 5) // 3
    assert same_class.all()
    right = (masked.sampled_P == masked.original_P).double().mean().item()
    assert right == pytest.approx(1 / 3 if correct == "allowed" else 0, abs=0.05)
    assert output.sums["sampled_accuracy"].tolist() == [
        (masked.sampled_P == masked.original_P).sum(),
        len(masked.sampled_P),
    ]
    assert not {"mlm_loss", "mlm_accuracy", "generator_entropy"} & output.sums.keys()
    assert not [name for name, _ in objective.named_parameters() if name.startswith("generator")]
