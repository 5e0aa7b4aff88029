import json

import pytest

from electra.bench import preparing
from electra.bench.preparing import CONTESTANTS, PrepareBenchConfig, contest, documents, opened, take_turn
from electra.errors import InputError

TEXTS = [f"Document {number} speaks of rivers, mountains and of the sea." for number in range(40)]


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n\n".join(TEXTS), encoding="utf-8")
    return PrepareBenchConfig(corpus=[str(path)])


@pytest.mark.slow
def test_every_contestant_goes_over_the_corpus_once(settings, tmp_path):
    folder = tmp_path / "material"
    folder.mkdir()
    known = contest(settings, folder)
    assert known.units_per_step == pytest.approx(sum(len(text) + 2 for text in TEXTS) / 1e6, rel=0.05)
    for name in known.contestants:
        turn = take_turn(settings, name, folder)
        assert len(turn.seconds) == 1
        assert turn.seconds[0] > 0
        assert (turn.memory is None) == (name == "tokenizers")
        assert not (folder / "data").exists()
    assert known.contestants == CONTESTANTS


@pytest.mark.parametrize("copies", [1, 3])
def test_copies_are_no_duplicates(copies, settings, tmp_path):
    preparing.write_copies(opened(settings.corpus), tmp_path, copies)
    written = (tmp_path / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    assert len({json.loads(line)["text"] for line in written}) == copies * len(TEXTS)
    assert [json.loads(line)["text"] for line in written[: len(TEXTS)]] == TEXTS
    # From now on it stands for the corpus.
    again = opened(preparing.paths(settings, tmp_path))
    assert len(list(documents(again))) == copies * len(TEXTS)


def test_a_corpus_of_files_is_read_where_it_is(settings, tmp_path):
    assert preparing.paths(settings, tmp_path) == settings.corpus


@pytest.mark.parametrize("key", ["copies", "repeats"])
def test_nothing_cannot_be_measured(key):
    with pytest.raises(InputError, match=rf"prepare\.{key}.*\b0\b"):
        PrepareBenchConfig(**{key: 0})
