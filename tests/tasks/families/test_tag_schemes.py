import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.tasks.families.chunks import (
    Chunk,
    best_tags,
    chunks,
    convert,
    detect_scheme,
    marks_chunks,
    split_tag,
    violations,
    write_tags,
)

SCHEMES = ("iob1", "iob2", "bioes")


@st.composite
def marked_sentences(draw):
    """Any chunks that a sentence can have, side by side or apart."""
    found, length = [], 0
    for gap, size, chunk_type in draw(
        st.lists(
            st.tuples(st.integers(0, 2), st.integers(1, 3), st.sampled_from(["NP", "VP", "A-B"])), max_size=6
        )
    ):
        first = length + gap
        length = first + size
        found.append(Chunk(first, length - 1, chunk_type))
    return found, length + draw(st.integers(0, 2))


# Two noun chunks side by side, then one of another type: what the three schemes differ in.
SIDE_BY_SIDE = [Chunk(0, 1, "NP"), Chunk(2, 2, "NP"), Chunk(3, 5, "VP")]


@pytest.mark.parametrize(
    ("scheme", "tags"),
    [
        ("iob1", "I-NP I-NP B-NP I-VP I-VP I-VP O"),
        ("iob2", "B-NP I-NP B-NP B-VP I-VP I-VP O"),
        ("bioes", "B-NP E-NP S-NP B-VP I-VP E-VP O"),
    ],
)
def test_the_same_chunks_in_each_scheme(scheme, tags):
    assert write_tags(SIDE_BY_SIDE, length=7, scheme=scheme) == tags.split()
    assert chunks(tags.split()) == SIDE_BY_SIDE


@pytest.mark.parametrize("scheme", SCHEMES)
@given(marked=marked_sentences())
def test_reading_undoes_writing_and_nothing_is_violated(scheme, marked):
    found, length = marked
    tags = write_tags(found, length=length, scheme=scheme)
    assert chunks(tags) == found
    assert violations(tags, scheme=scheme) == []
    for other in SCHEMES:
        assert convert(convert(tags, scheme=other), scheme=scheme) == tags


@pytest.mark.parametrize(
    ("tags", "scheme", "words"),
    [
        ("O I-NP I-NP", "iob2", [1]),
        ("B-NP I-VP", "iob2", [1]),
        ("B-NP O B-NP", "iob1", [0, 2]),
        ("B-NP I-NP O", "bioes", [1]),
        ("B-NP O", "bioes", [0]),
        ("I-NP E-NP S-NP", "bioes", [0]),
        ("S-NP O", "iob2", [0]),
        ("", "iob2", []),
    ],
)
def test_violations_are_named_by_word(tags, scheme, words):
    assert violations(tags.split(), scheme=scheme) == words


@pytest.mark.parametrize(
    ("sentences", "scheme"),
    [
        (["I-NP I-NP O", "I-NP B-NP"], "iob1"),
        (["B-NP I-NP O", "B-NP B-NP"], "iob2"),
        (["B-NP E-NP O", "S-NP S-NP"], "bioes"),
        (["O O"], "iob2"),
        # A single slip does not decide.
        (["B-NP I-NP O B-VP", "O I-NP", "B-NP"], "iob2"),
    ],
)
def test_the_scheme_is_found(sentences, scheme):
    assert detect_scheme([tags.split() for tags in sentences]) == scheme


def test_types_may_hold_hyphens():
    assert split_tag("B-work-of-art") == ("B", "work-of-art")
    assert chunks(["B-a-b", "I-a-b", "I-a-c"]) == [Chunk(0, 1, "a-b"), Chunk(2, 2, "a-c")]


@pytest.mark.parametrize(
    ("tag", "verdict"),
    [
        ("O", True),
        ("B-NP", True),
        ("S-x-y", True),
        ("B", False),
        ("B-", False),
        ("NP", False),
        ("-LRB-", False),
    ],
)
def test_which_tags_mark_chunks(tag, verdict):
    assert marks_chunks(tag) is verdict


@pytest.fixture(scope="module")
def oracle(shared):
    return json.loads((shared / "oracles/google-electra/finetune_oracle.json").read_text())


def test_as_the_authors_read_and_write(oracle):
    for case in oracle["span_labels"]:
        found = chunks(case["tags"], reading="google")
        assert [list(chunk) for chunk in found] == case["spans"]
        assert write_tags(found, length=len(case["tags"]), scheme="bioes") == case["bioes"]


def test_the_readings_differ_only_where_a_chunk_changes_its_type(oracle):
    differing = [
        case["tags"]
        for case in oracle["span_labels"]
        if convert(case["tags"], scheme="bioes") != case["bioes"]
    ]
    assert differing == [["B-NP", "I-VP"]]
    assert chunks(["B-NP", "I-VP"]) == [Chunk(0, 0, "NP"), Chunk(1, 1, "VP")]


TAGS = {
    "iob1": ["O", "B-NP", "I-NP", "I-VP"],
    "iob2": ["O", "B-NP", "I-NP", "B-VP"],
    "bioes": ["O", "B-NP", "I-NP", "E-NP", "S-NP", "S-VP"],
}


@given(st.sampled_from(SCHEMES), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_the_best_tags_are_those_of_a_search_through_all(scheme, length, seed):
    tags = TAGS[scheme]
    scores = np.random.default_rng(seed).normal(size=(length, len(tags)))
    proper = [
        numbers
        for numbers in itertools.product(range(len(tags)), repeat=length)
        if not violations([tags[number] for number in numbers], scheme=scheme)
    ]
    best = max(proper, key=lambda numbers: sum(scores[range(length), numbers]))
    assert best_tags(scores, tags, scheme) == list(best)


def test_where_no_tags_keep_to_the_scheme_there_is_an_answer():
    assert best_tags(np.array([[0.0, 1.0]]), ["B-NP", "E-NP"], "bioes") in ([0], [1])
