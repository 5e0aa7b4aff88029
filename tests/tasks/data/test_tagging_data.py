import re

import pytest

from electra.errors import InputError
from electra.tasks.data.conll import understand_tags
from electra.tasks.families.tagging import TaggingExample


def sentences(*tag_lines, file="train.txt"):
    found, line = [], 1
    for tags in tag_lines:
        tags = tuple(tags.split())
        lines = tuple(range(line, line + len(tags)))
        words = tuple(f"w{number}" for number in lines)
        found.append(
            TaggingExample(id=str(line), where=f"{file}:{line}", words=words, tags=tags, lines=lines)
        )
        line += len(tags) + 1
    return found


def test_chunks_of_any_scheme_become_iob2():
    data = understand_tags({"train": sentences("I-NP I-NP O I-VP", "I-NP B-NP")})
    assert data.family.scheme == "entities"
    assert data.family.tags == ("B-NP", "E-NP", "O", "S-NP", "S-VP")
    assert [example.tags for example in data.splits["train"]] == [
        ("B-NP", "I-NP", "O", "B-VP"),
        ("B-NP", "B-NP"),
    ]
    counts, marks = data.notes
    assert "NP 4, O 1, VP 1" in counts
    assert "IOB1" in marks


def test_other_tags_are_left_alone():
    train = sentences("NOUN VERB", "NOUN")
    data = understand_tags({"train": train})
    assert data.family.scheme == "tokens"
    assert data.splits["train"] == train
    (note,) = data.notes
    assert "NOUN 2, VERB 1" in note


def test_what_marks_chunks_may_be_taken_as_single_tags():
    data = understand_tags({"train": sentences("B-NP I-NP O")}, scheme="tokens")
    assert data.family.tags == ("B-NP", "I-NP", "O")


def test_a_misspelt_tag_is_named_and_does_not_change_the_kind():
    with pytest.raises(InputError, match=r"dev\.txt:5 \('w5'\).*'B_NP'.*B-NP"):
        understand_tags(
            {"train": sentences("B-NP I-NP O"), "dev": sentences("B-NP O", "O B_NP", file="dev.txt")}
        )


def test_broken_tags_are_reported_and_read():
    data = understand_tags({"train": sentences("B-NP I-NP O", "O I-NP", "I-NP", "B-NP")})
    assert [example.tags for example in data.splits["train"]][1:3] == [("O", "B-NP"), ("B-NP",)]
    (note,) = [note for note in data.notes if "conlleval" in note]
    assert re.search(r"train: 2\b.*IOB2.*train\.txt:6 \('w6'\).*I-NP.*\bO\b", note)


def test_a_tag_that_training_lacks_is_reported_with_its_place():
    data = understand_tags({"train": sentences("A B"), "dev": sentences("A", "B C", file="dev.txt")})
    assert data.family.tags == ("A", "B")
    assert re.search(r"dev: 1\b.*\bC \(1.*dev\.txt:4 \('w4'\)", data.notes[-1])
    (accuracy,) = data.family.scores(data.splits["dev"], [{"tags": ["A"]}, {"tags": ["B", "A"]}]).values()
    assert accuracy.value == 2 / 3


def test_a_single_tag_cannot_be_learned():
    with pytest.raises(InputError, match=r"train\.txt:1: .*\b2\b.*'O'"):
        understand_tags({"train": sentences("O O", "O")}, scheme="entities")


def test_sentences_without_tags_have_none_afterwards():
    (train,) = sentences("B-NP O")
    (test,) = sentences("O O", file="test.txt")
    untagged = TaggingExample(id=test.id, where=test.where, words=test.words, tags=None)
    data = understand_tags({"train": [train], "test": [untagged]})
    assert data.splits["test"][0].tags is None
    with pytest.raises(InputError, match=r"test\.txt:1: .*tags"):
        understand_tags({"test": [untagged]})
