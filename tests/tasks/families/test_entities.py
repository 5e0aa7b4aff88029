import math
from collections import namedtuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.families.chunks import ChunkCounts, chunk_scores, convert, count_chunks, tag_accuracy

TYPES = ("", "NP", "VP", "A-B")


# The rules of conlleval.pl (version 2004-01-26), as they stand there: the reference of this file.
def end_of_chunk(previous, tag, previous_type, chunk_type):
    pairs = {("B", "B"), ("B", "O"), ("I", "B"), ("I", "O"), ("E", "E"), ("E", "I"), ("E", "O")}
    return (previous, tag) in pairs or (previous not in ("O", ".") and previous_type != chunk_type)


def start_of_chunk(previous, tag, previous_type, chunk_type):
    pairs = {("B", "B"), ("I", "B"), ("O", "B"), ("O", "I"), ("E", "E"), ("E", "I"), ("O", "E")}
    return (previous, tag) in pairs or (tag not in ("O", ".") and previous_type != chunk_type)


Side = namedtuple("Side", "prefix type")


def parse(tag):
    prefix, hyphen, chunk_type = tag.partition("-")
    return Side(prefix, chunk_type if hyphen else "")


def conlleval(true, predicted):
    """Its main loop: (true chunks, predicted chunks, right ones)."""
    found_correct = found_guessed = correct_chunk = 0
    in_correct = False
    last_correct = last_guessed = Side("O", "")
    lines = []
    for true_tags, predicted_tags in zip(true, predicted, strict=True):
        lines += [
            *zip(map(parse, true_tags), map(parse, predicted_tags), strict=True),
            (Side("O", ""), Side("O", "")),
        ]
    for correct, guessed in lines:
        between_correct = (last_correct.prefix, correct.prefix, last_correct.type, correct.type)
        between_guessed = (last_guessed.prefix, guessed.prefix, last_guessed.type, guessed.type)
        if in_correct:
            ends = end_of_chunk(*between_correct), end_of_chunk(*between_guessed)
            if all(ends) and last_guessed.type == last_correct.type:
                in_correct = False
                correct_chunk += 1
            elif ends[0] != ends[1] or guessed.type != correct.type:
                in_correct = False
        starts = start_of_chunk(*between_correct), start_of_chunk(*between_guessed)
        if all(starts) and guessed.type == correct.type:
            in_correct = True
        found_correct += starts[0]
        found_guessed += starts[1]
        last_correct, last_guessed = correct, guessed
    return found_correct, found_guessed, correct_chunk + in_correct


def sentences_of(prefixes):
    tags = st.sampled_from(
        ["O", *(f"{prefix}-{name}" for prefix in prefixes for name in ("NP", "VP", "A-B"))]
    )
    pair = st.lists(st.tuples(tags, tags), min_size=1, max_size=12)
    # Half of the words agree, so that there are right chunks of several words.
    same = st.lists(st.tuples(tags, st.booleans()), min_size=1, max_size=12).map(
        lambda words: [(tag, tag if agrees else "O") for tag, agrees in words]
    )
    return st.lists(pair | same, min_size=1, max_size=4).map(
        lambda found: tuple([[words[side] for words in sentence] for sentence in found] for side in (0, 1))
    )


@given(sides=sentences_of("BI"))
def test_counts_are_those_of_conlleval_for_any_iob_tags(sides):
    assert tuple(count_chunks(*sides)) == conlleval(*sides)


@given(sides=sentences_of("IE"))
def test_counts_are_those_of_conlleval_for_ends_marked_by_e(sides):
    assert tuple(count_chunks(*sides)) == conlleval(*sides)


@given(sides=sentences_of("BIES"))
def test_any_bioes_tags_count_as_conlleval_counts_them_in_iob2(sides):
    # conlleval knows no S, and no E before B.
    written = [[convert(tags, scheme="iob2") for tags in side] for side in sides]
    assert tuple(count_chunks(*sides)) == conlleval(*written)


@pytest.mark.parametrize(
    ("true", "predicted", "counts"),
    [
        ("B-NP I-NP O B-VP", "B-NP I-NP O B-VP", (2, 2, 2)),
        # One word too short is wrong, though its start and type are right.
        ("B-NP I-NP O B-VP", "B-NP O O B-VP", (2, 2, 1)),
        # Right words, wrong type.
        ("B-NP I-NP", "B-VP I-VP", (1, 1, 0)),
        # Two chunks where there is one.
        ("B-NP I-NP", "B-NP B-NP", (1, 2, 0)),
        # I- opens a chunk after O and after another type.
        ("O B-NP I-NP", "O I-NP I-NP", (1, 1, 1)),
        ("B-NP B-VP", "I-NP I-VP", (2, 2, 2)),
        # The three schemes mean the same.
        ("B-NP I-NP B-NP", "I-NP I-NP B-NP", (2, 2, 2)),
        ("B-NP I-NP B-NP", "B-NP E-NP S-NP", (2, 2, 2)),
        # Of broken BIOES: an end without a beginning, a beginning without an end, S before I.
        ("B-NP I-NP O", "I-NP E-NP O", (1, 1, 1)),
        ("B-NP I-NP O", "B-NP I-NP O", (1, 1, 1)),
        ("B-NP B-NP I-NP", "S-NP I-NP E-NP", (2, 2, 2)),
        ("O O", "O O", (0, 0, 0)),
    ],
)
def test_counted_by_hand(true, predicted, counts):
    assert tuple(count_chunks([true.split()], [predicted.split()])) == counts


def test_no_chunk_reaches_into_the_next_sentence():
    assert count_chunks([["B-NP"], ["I-NP"]], [["B-NP"], ["I-NP"]]) == ChunkCounts(2, 2, 2)


def test_scores_from_counts():
    scores = chunk_scores(ChunkCounts(true=4, predicted=5, right=3))
    assert list(scores) == ["f1", "precision", "recall"]
    assert scores["precision"].value == 3 / 5
    assert scores["recall"].value == 3 / 4
    assert scores["f1"].value == pytest.approx(2 * 0.6 * 0.75 / (0.6 + 0.75))


def test_what_cannot_be_divided_says_why():
    none_predicted = chunk_scores(ChunkCounts(true=2, predicted=0, right=0))
    assert none_predicted["f1"].value == 0.0
    assert none_predicted["recall"].value == 0.0
    assert math.isnan(none_predicted["precision"].value)
    assert "predicted" in none_predicted["precision"].undefined
    nothing = chunk_scores(ChunkCounts(0, 0, 0))
    assert not any(score.is_defined for score in nothing.values())
    assert all(score.undefined for score in nothing.values())


def test_accuracy_is_over_words():
    assert tag_accuracy([["A", "B"], ["C"]], [["A", "C"], ["C"]]).value == 2 / 3
    assert "word" in tag_accuracy([], []).undefined
