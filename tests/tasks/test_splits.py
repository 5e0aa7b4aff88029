from collections import Counter
from itertools import pairwise

import pytest

from electra.errors import InputError
from electra.seeds import python_random
from electra.tasks.families.family import TextExample
from electra.tasks.task import class_of, content_key, held_out, limit


def example(number, text, label=None):
    return TextExample(id=str(number), where=f"line {number}", text=text, label=label)


def key(example):
    return content_key(example.text)


def split(examples, *, seed=0, **options):
    return held_out(examples, content=key, seed=seed, **options)


MANY = [example(number, f"text {number}", label=number % 10 // 7) for number in range(1000)]


def test_nothing_is_lost_and_nothing_is_on_both_sides():
    train, validation = split(MANY)
    assert sorted(map(key, train + validation)) == sorted(map(key, MANY))
    assert len(validation) == 100
    assert train == [example for example in MANY if example not in validation]


def test_the_split_does_not_depend_on_the_order():
    shuffled = python_random(0, "order").sample(MANY, len(MANY))
    for stratify in (None, class_of):
        first, second = (split(examples, stratify=stratify)[1] for examples in (MANY, shuffled))
        assert {item.id for item in first} == {item.id for item in second}


def test_another_seed_holds_out_others():
    first, second = ({item.id for item in split(MANY, seed=seed)[1]} for seed in (0, 1))
    assert len(first & second) < 30


def test_copies_of_a_text_stay_together_whatever_their_label_case_and_blanks():
    copies = [
        example(f"{number}/{form}", text, label=(number + form) % 2)
        for number in range(200)
        for form, text in enumerate([f"Text  {number}", f"text {number} ", f"TEXT\t{number}"])
    ]
    train, validation = split(copies, stratify=class_of)
    assert {key(item) for item in train}.isdisjoint(key(item) for item in validation)
    assert len(validation) == 60


def test_every_class_gives_its_share():
    train, validation = split(MANY, stratify=class_of)
    assert Counter(item.label for item in validation) == {0: 70, 1: 30}
    rare = [*MANY, example("r1", "rare one", label=2), example("r2", "rare two", label=2)]
    train, validation = split(rare, stratify=class_of)
    assert [item.label for item in train].count(2) == [item.label for item in validation].count(2) == 1


def test_the_only_text_of_a_class_is_trained_on():
    train, validation = split([*MANY, example("only", "only", label=2)], stratify=class_of)
    assert 2 in {item.label for item in train}
    assert 2 not in {item.label for item in validation}


def test_neither_side_is_ever_empty():
    for count in range(2, 12):
        for share in (0.01, 0.5, 0.99):
            train, validation = split(MANY[:count], share=share)
            assert train
            assert validation
    with pytest.raises(InputError, match="too few"):
        split([example(number, "the same") for number in range(50)])


def test_values_and_several_classes_are_no_strata():
    assert class_of(example(1, "a", label=3)) == 3
    assert class_of(example(1, "a", label=0.5)) is None
    assert class_of(example(1, "a", label=(1, 2))) is None


def test_texts_and_pairs_that_differ_have_different_keys():
    assert content_key("a", "b") != content_key("a b")
    assert content_key("a", "b") != content_key("b", "a")


def test_a_limit_keeps_order_and_a_larger_one_adds_to_it():
    kept = [limit(MANY, n, seed=0) for n in (1, 10, 100, 999)]
    assert [len(part) for part in kept] == [1, 10, 100, 999]
    for smaller, larger in pairwise(kept):
        assert {item.id for item in smaller} <= {item.id for item in larger}
    assert all(part == [item for item in MANY if item in part] for part in kept[:3])
    assert limit(MANY, 5000, seed=0) == MANY
    assert kept[2] != MANY[:100]


def test_a_limit_keeps_the_shares_of_classes_and_loses_none():
    examples = [*MANY, example("rare", "rare", label=2)]
    for n in (3, 4, 10, 57, 500, 1000):
        counts = Counter(item.label for item in limit(examples, n, seed=0, stratify=class_of))
        assert counts.total() == n
        assert counts[2] == 1
        assert counts[0] == pytest.approx(0.7 * n, abs=1.1)
    assert len(limit(examples, 2, seed=0, stratify=class_of)) == 2


def test_a_limit_of_none_is_refused():
    with pytest.raises(InputError, match=r"limit.*\b0\b"):
        limit(MANY, 0, seed=0)
