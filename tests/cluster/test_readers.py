"""Readers that die where the node that goes on sees other files: every document comes, and comes once."""

import pickle
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from electra.cluster import Node
from electra.text import on_nodes
from electra.text.corpus import open_corpus
from electra.text.quarantine import Tally
from electra.text.shards import hashed_groups

FILES, DOCUMENTS = 5, 40


class DyingReaders:
    """Two nodes as far as `groups` knows them: the first dies after some parts, and the second goes on.

    As `_Stream` does, the second leaves out as many parts as came before.
    """

    def __init__(self, monkeypatch, seen_by, dies_after):
        self.nodes = [Node(id=name, name=name, address="", cpus=1, gpus=0) for name in "ab"]
        self._monkeypatch, self._seen_by, self._dies_after = monkeypatch, seen_by, dies_after

    def streams(self, function, items, *, shared, at_once):
        for item in items:
            yield item, self._results(function, item, shared)

    def _results(self, function, item, shared):
        for node, (first, last) in enumerate([(0, self._dies_after), (self._dies_after, None)]):
            parts = islice(function(*pickle.loads(pickle.dumps((item, shared)))), first, last)
            while True:
                with self._monkeypatch.context() as patch:
                    seen = self._seen_by[node]
                    patch.setattr(
                        on_nodes, "_is_here", lambda source, seen=seen: Path(source.path).stem in seen
                    )
                    part = next(parts, None)
                if part is None:
                    break
                yield pickle.loads(pickle.dumps(part))


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """Files in about ten parts each, some of it no characters and some no rows."""
    monkeypatch.setattr(on_nodes, "_GROUP_CHARACTERS", 100)
    for name in range(FILES):
        texts = [f"Document {number} of file {name}.".encode() for number in range(DOCUMENTS)]
        (tmp_path / f"{name}.txt").write_bytes(b"\n\n".join([*texts, b"bad \xff\xfe byte " + b"x " * 200]))
    rows = [f'{{"text": "row {number}"}}\n' if number % 3 else "no JSON\n" for number in range(DOCUMENTS)]
    (tmp_path / "5.jsonl").write_text("".join(rows))
    return open_corpus([str(tmp_path)])


def read(groups):
    return [pair for documents, hashes in groups for pair in zip(documents, hashes, strict=True)]


@pytest.mark.parametrize("dies_after", [0, 1, 2, 3, 11, 12, 13, 25, 40, 1000])
@pytest.mark.parametrize(
    "seen_by", [("012345", ""), ("", "012345"), ("024", "135"), ("135", "0234"), ("345", "012345")]
)
def test_every_document_problem_and_count_comes_once(corpus, monkeypatch, seen_by, dies_after):
    expected_tally, expected_problems = Tally(), []
    expected = read(hashed_groups(corpus.documents(expected_tally, expected_problems.append)))
    tally, problems = Tally(), []
    nodes = on_nodes.Nodes(DyingReaders(monkeypatch, seen_by, dies_after))
    assert read(nodes.groups(corpus, tally, problems.append)) == expected
    assert len(expected) > FILES * DOCUMENTS
    assert problems == expected_problems
    assert len(problems) > 10
    assert tally == expected_tally


def test_what_is_read_here_because_it_did_not_come_is_not_filtered_wrongly(corpus, monkeypatch):
    """A node leaves out documents with large hashes, but their parts count all the same."""
    everything = read(hashed_groups(corpus.documents(Tally(), lambda _: None)))
    bound = sorted(hashed for _, hashed in everything)[len(everything) // 2]
    nodes = on_nodes.Nodes(DyingReaders(monkeypatch, ("012345", ""), 5))
    found = read(nodes.groups(corpus, Tally(), lambda _: None, lambda: bound))
    assert [pair for pair in found if pair[1] <= bound] == [pair for pair in everything if pair[1] <= bound]
    assert not Counter(found) - Counter(everything)
