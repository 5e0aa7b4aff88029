"""The demo's tasks: what is asked, and that nothing gives the answers away."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from electra.demo import tasks
from electra.demo.corpus import Passage
from electra.demo.documentation import CLOSE, OPEN, prose_of, unmarked
from electra.errors import InputError

OPENING = (
    "This is the description of a function that nobody has ever needed, written at some length so that it is "
    "counted as a passage of its own: it says what it does, when it should be used, and what it is not for."
)


def passage(*marked: str, package: str = "alpha", origin: str = "alpha.shapes:Circle") -> Passage:
    lines = [line.replace("«", OPEN).replace("»", CLOSE) for line in marked]
    text = "\n".join(map(unmarked, lines))
    return Passage(package=package, origin=origin, text=text, marked=tuple(lines))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("If ``bins`` is not sorted, it is sorted by :func:`~alpha.sort` before.", "«bins» «alpha.sort»"),
        ("The mode is one of `full` and :attr:`same`, as in the first of them.", "«full» «same»"),
        ("It is described in :ref:`the guide` and in `the paper <http://x.y>`_ at length.", ""),
        ("It is about :term:`iterables <iterable>` and about the target_ of this and of that.", ""),
        ("The *whole* text of ``bins`` is **not** sorted here, and it is not needed.", "«bins»"),
    ],
)
def test_code_is_found_by_its_marks_which_are_not_in_the_prose(written: str, expected: str) -> None:
    prose = prose_of(f"{OPENING}\n\n{written}")
    lines = prose.text.split("\n")
    assert "`" not in prose.text
    assert OPEN not in prose.text
    assert len(lines) == 2
    if expected:
        (marked,) = prose.marked
        assert unmarked(marked) == lines[1]
        pieces = marked.replace(OPEN, "\0«").replace(CLOSE, "»\0").split("\0")
        assert " ".join(piece for piece in pieces if piece.startswith("«")) == expected
    else:
        assert prose.marked == ()


def tagged(*marked: str) -> list[str]:
    found = tasks.code_sentences(passage(*marked))
    return [
        " ".join(
            f"«{word}»" if tag == "B-CODE" else word for word, tag in zip(one.words, one.tags, strict=True)
        )
        for one in found
    ]


def test_sentences_are_cut_into_words_with_tags() -> None:
    assert tagged("If «bins» isn't sorted, «order» is used. It has no mark at all here.") == [
        "If «bins» isn ' t sorted , «order» is used ."
    ]


@pytest.mark.parametrize(
    "sentence",
    [
        "If «num_bins» is not sorted, it is sorted before.",
        "If «bins» is not sorted, num_bins is sorted before.",
        "If «bins» is not sorted, the TensorDict is sorted before.",
        "If «n» is not sorted, it is sorted before.",
        "If «None» is not sorted, it is sorted before.",
        "If «bins» is not sorted, «sort()» is called before.",
        "If «bins» is.",
        "If «bins» is not sorted, " + "and " * 50 + "nothing else.",
        "If «bins. It» is not sorted, it is sorted before.",
    ],
)
def test_sentences_in_which_form_tells_more_than_context_are_left_out(sentence: str) -> None:
    assert tagged(sentence) == []


def corpus_of(documents: int) -> list[Passage]:
    return [
        passage(
            f"If «bins» of number {number} is not sorted, it is sorted.",
            "The «same» mode is one of the modes of this.",
            package=f"package {number % 3}",
            origin=f"module{number}:place",
        )
        for number in range(documents)
    ]


def test_no_document_and_no_sentence_is_on_both_sides() -> None:
    train, test = tasks.split_sentences(corpus_of(30))
    assert len(train) + len(test) == 31
    for one in ("document", "words"):
        assert not {getattr(x, one) for x in train} & {getattr(x, one) for x in test}
    assert tasks.split_sentences(corpus_of(30)[::-1])[1] == test


def test_documentation_without_marks_is_refused() -> None:
    with pytest.raises(InputError, match="marks no code words"):
        tasks.split_sentences([passage("Nothing is marked in here, not a single word.")])


def test_both_tasks_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readings: list[int] = []

    def passages(*, workers: int) -> Sequence[Passage]:
        readings.append(workers)
        return corpus_of(350)

    monkeypatch.setattr(tasks.corpus, "passages", passages)
    monkeypatch.setattr(tasks, "NUM_TEST", 5)
    for _ in range(2):
        tasks.write_tasks(tmp_path)
    assert len(readings) == 1
    lines = (tmp_path / "passages.jsonl").read_text().splitlines()
    assert {json.loads(line)["package"] for line in lines} == {f"package {number}" for number in range(3)}
    test = (tmp_path / "code_words" / "test.conll").read_text().strip().split("\n\n")
    assert len(test) == 5
    assert {line.split("\t")[1] for line in test[0].splitlines()} == {"O", "B-CODE"}


def test_no_package_outweighs_the_others() -> None:
    sizes = {"few": 99, "some": 100, "many": 400}
    found = [
        Passage(package=name, origin="", text=f"{name} {number}")
        for name, size in sizes.items()
        for number in range(size)
    ]
    packages = [one.package for one in tasks.balanced(found)]
    assert {name: packages.count(name) for name in set(packages)} == {"some": 100, "many": 300}
