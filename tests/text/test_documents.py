import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.text import readers
from electra.text.quarantine import Tally
from electra.text.readers import split_documents, whole_document

LINES = st.lists(st.sampled_from(["a", "bc", " ", "\n", "\n\n", " \n", "\t", "\u3000", "語", "\x0b"])).map(
    "".join
)


def split(pieces: list[str]) -> tuple[list[str], int]:
    tally = Tally()
    return list(split_documents(pieces, tally)), tally.documents_split


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def reference(text: str) -> list[str]:
    """The definition, line by line."""
    found, lines = [], []
    for line in [*text.split("\n"), ""]:
        if line.strip():
            lines.append(line)
        elif lines:
            found.append("\n".join(lines).strip())
            lines = []
    return found


@given(LINES, st.integers(1, 7))
def test_a_blank_line_ends_a_document(text, size):
    assert split([text]) == (reference(text), 0)
    assert split(cut(text, size)) == (reference(text), 0)


@given(LINES, st.integers(1, 7), st.integers(2, 9))
def test_long_documents_are_cut_the_same_whatever_the_pieces(text, size, limit):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "DOCUMENT_LIMIT", limit)
        found, num_split = split([text])
        assert split(cut(text, size)) == (found, num_split)
        whole = reference(text)
        assert num_split == sum(len(document) > limit for document in whole)
        tally = Tally()
        assert found == [part for document in whole for part in whole_document(document, tally)]
        assert tally.documents_split == num_split
    assert all(0 < len(document) <= limit and document == document.strip() for document in found)
    assert "".join("".join(found).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("aaaa bb\ncc dd", ["aaaa bb", "cc dd"]),
        ("aaaa bb cc dd", ["aaaa bb", "cc dd"]),
        ("a\nbbbbbbbbbbbb", ["a\nbbbbbb", "bbbbbb"]),
        ("aaaaaaaa\nbbbb", ["aaaaaaaa", "bbbb"]),
        ("aaaaaaaabbbb", ["aaaaaaaa", "bbbb"]),
    ],
)
def test_a_cut_is_at_a_line_end_or_at_a_space_or_anywhere(monkeypatch, text, parts):
    monkeypatch.setattr(readers, "DOCUMENT_LIMIT", 8)
    assert list(whole_document(text, Tally())) == parts


def test_a_document_at_the_limit_is_whole_whatever_space_follows(monkeypatch):
    monkeypatch.setattr(readers, "DOCUMENT_LIMIT", 8)
    text = "aaa\nbbbb" + " " * 100 + "\n\nc"
    assert split(cut(text, 3)) == (["aaa\nbbbb", "c"], 0)


def test_a_stored_text_keeps_its_blank_lines_and_gets_our_line_ends():
    assert list(whole_document(" a\r\n\r\n b\rc \n", Tally())) == ["a\n\n b\nc"]
    assert list(whole_document(" \n\t", Tally())) == []


def test_much_of_nothing_and_one_endless_line_take_no_memory():
    spaces = [" " * 100_000] * 200
    assert split(["\n" * 100_000] * 100) == ([], 0)
    assert split(["a\n", *spaces, "\nb"]) == (["a", "b"], 0)
    found, num_split = split(["x" * 1_000_000] * 20)
    assert (sum(map(len, found)), num_split) == (20_000_000, 1)
    assert max(map(len, found)) == readers.DOCUMENT_LIMIT
