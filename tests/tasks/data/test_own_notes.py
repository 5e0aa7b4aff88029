from electra.tasks.data.table import label_notes, repeated_notes
from electra.tasks.families.family import TextExample


def test_labels_are_shown_with_their_counts():
    assert label_notes({"bad": 1200, "good": 1300}) == ["2 labels: bad (1,200), good (1,300)"]


def test_many_labels_are_cut():
    (note,) = label_notes({f"c{number}": 10 for number in range(20)})
    assert note.startswith("20 labels: c0 (10), c1 (10)")
    assert note.endswith("and 8 more")


def test_classes_out_of_balance_are_named():
    assert len(label_notes({"a": 100, "b": 10})) == 1
    assert "out of balance: a has 101 examples and b has 10" in label_notes({"a": 101, "b": 10})[1]


def test_classes_with_few_examples_are_named():
    assert label_notes({"a": 20, "b": 9, "c": 10})[1:] == ["fewer than 10 examples to learn from: b"]


def test_decimal_classes_are_doubted():
    assert "regression" in label_notes({"0.5": 10, "1": 10})[1]
    assert len(label_notes({"1": 10, "2": 10})) == 1


def test_texts_on_both_sides_and_contradicting_labels_are_counted():
    def examples(*pairs):
        return [TextExample(id=text, where="", text=text, label=label) for text, label in pairs]

    splits = {
        "train": examples(("a", 0), ("b", 0), ("b", 1), ("a", 0)),
        "dev": examples(("a", 0), ("c", 1)),
        "test": examples(("d", 1)),
    }
    assert repeated_notes(splits, lambda example: example.text) == [
        "dev: the texts of 1 examples (50.0%) are in train too, which flatters the scores",
        "train: 1 texts are there more than once with different labels",
    ]
