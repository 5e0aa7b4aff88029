"""What scikit-learn's linear models learn of each kind of task."""

from typing import Any

import pytest

from electra.tasks.baselines import baseline_name, baseline_scores, word_features
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.family import TextExample
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import TaggingExample, understand_tags
from electra.tasks.task import Task

GOOD, BAD = ("a fine film", "so good and warm", "good, fine music"), ("dull and long", "a poor film", "dull")


def text(words: str, label: Any, *, pair: str | None = None) -> TextExample:
    return TextExample(id=words, where="here", text=words, text_pair=pair, label=label)


def task(family: Any, train: list[Any], test: list[Any], *, main_score: str) -> Task:
    return Task(name="a task", family=family, splits={"train": train, "test": test}, main_score=main_score)


def test_words_tell_the_class_of_a_text() -> None:
    train = [text(words, number) for number, side in enumerate((BAD, GOOD)) for words in side * 2]
    judged = task(
        Classification(("bad", "good", "unseen")),
        train,
        [text("a good story", 1), text("long and poor", 0)],
        main_score="accuracy",
    )
    assert baseline_name(judged) == "TF-IDF + logistic regression"
    assert baseline_scores(judged)["test"]["accuracy"].value == 1.0


def test_of_two_texts_the_words_that_they_share_count() -> None:
    sides = [(f"{one} is here", f"{other} is here") for one in "abcdef" for other in "abcdef"]
    pairs = [text(one, int(one == other), pair=other) for one, other in sides]
    judged = task(Classification(("no", "yes")), pairs[:30], pairs[30:], main_score="accuracy")
    assert baseline_scores(judged)["test"]["accuracy"].value == 1.0


def test_labels_are_learned_one_by_one() -> None:
    train = [text("red", (0,)), text("round", (1,)), text("red round", (0, 1)), text("none", ())] * 3
    judged = task(
        MultiLabel(("red", "round", "never")), train, [text("red and round", (0, 1))], main_score="micro_f1"
    )
    assert baseline_scores(judged)["test"]["exact_match"].value == 1.0


def test_a_pair_is_as_similar_as_its_words() -> None:
    pairs = [
        text("the old river", 0.0, pair="a new city"),
        text("the old river", 2.5, pair="the new city"),
        text("the old river", 5.0, pair="the old river"),
    ]
    for family in (Regression(low=0.0, high=5.0), Similarity(loss="cosent")):
        judged = task(family, pairs, pairs, main_score="spearman")
        assert baseline_name(judged) == "cosine of TF-IDF vectors"
        assert baseline_scores(judged)["test"]["spearman"].value == pytest.approx(1.0)


def test_a_value_of_a_text_is_a_sum_over_its_words() -> None:
    train = [text("good " * number + "film", float(number)) for number in range(5)]
    judged = task(Regression(low=0.0, high=4.0), train, train, main_score="spearman")
    assert baseline_scores(judged)["test"]["spearman"].value == pytest.approx(1.0)


def sentence(*tagged: str) -> TaggingExample:
    words, tags = zip(*(word.split("/") for word in tagged), strict=True)
    return TaggingExample(id=" ".join(words), where="here", words=words, tags=tags)


def test_neighbours_tell_the_tag_of_an_unknown_word() -> None:
    train = [
        sentence("the/O", f"{name}/B-CODE", "argument/O", "is/O", "an/O", f"{kind}/O")
        for name in ("axis", "mode", "order")
        for kind in ("axis", "number", "object")
    ]
    unknown = sentence("the/O", "zorp/B-CODE", "argument/O", "is/O", "an/O", "order/O")
    family, splits, _ = understand_tags({"train": train, "test": [unknown]})
    judged = task(family, splits["train"], splits["test"], main_score="f1")
    assert baseline_name(judged)
    assert baseline_scores(judged)["test"]["f1"].value == 1.0


def test_tags_of_words_are_scored_as_they_are() -> None:
    sentences = [sentence("the/DET", "city/NOUN"), sentence("a/DET", "river/NOUN")]
    family, splits, _ = understand_tags({"train": sentences, "test": sentences})
    judged = task(family, splits["train"], splits["test"], main_score="accuracy")
    assert baseline_scores(judged)["test"]["accuracy"].value == 1.0


def test_a_word_is_known_by_itself_and_by_its_neighbours() -> None:
    first, second = word_features(["The", "Cities7"])
    assert {"is cities7", "shape Aa0", "ends es7", "begins c", "-1:the", "-1:shape Aa"} <= set(second)
    assert "1:is cities7" in first


def test_there_is_none_for_other_kinds() -> None:
    judged = task(MultipleChoice(), [], [], main_score="accuracy")
    assert baseline_name(judged) is None
