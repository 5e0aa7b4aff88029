import csv
import gzip
import json
import lzma
import re
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from electra.errors import InputError
from electra.seeds import python_random
from electra.tasks.data.table import OwnTaskConfig, load_own, load_own_file, read_task_file
from electra.tasks.families.answering import QuestionAnswering
from electra.tasks.families.choice import MultipleChoice
from electra.tasks.families.classification import Classification, MultiLabel, Regression
from electra.tasks.families.similarity import Similarity
from electra.tasks.families.tagging import Tagging
from electra.tasks.inference import predict_examples
from electra.tasks.model import TaskModel

REVIEWS = [
    {"text": f"film {n} was {'fine' if n % 3 else 'dull'}", "label": "pn"[not n % 3]} for n in range(90)
]


def write(path, rows):
    """Rows in the format that the name promises; what CSV cannot hold is joined as a person would."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return path


def load(path, *, seed=0, **keys):
    return load_own(OwnTaskConfig(**keys), path, name="mine", seed=seed)


def sizes(task):
    return {split: len(examples) for split, examples in task.splits.items()}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_one_file_gives_train_and_a_part_held_out(tmp_path, suffix):
    task = load(write(tmp_path / f"reviews{suffix}", REVIEWS))
    assert sizes(task) == {"train": 81, "dev": 9}
    assert task.scored_splits == ["dev"]
    assert task.family.labels() == ("n", "p")
    assert Counter(example.label for example in task.examples("dev")) == {0: 3, 1: 6}
    labels, made_dev = task.notes
    assert "n (30), p (60)" in labels
    assert "9 of 90" in made_dev
    known = {row["text"]: row["label"] for row in REVIEWS}
    for example in (*task.examples("train"), *task.examples("dev")):
        assert task.family.labels()[example.label] == known[example.text]


def test_what_is_held_out_does_not_depend_on_format_and_order(tmp_path):
    shuffled = python_random(0, "order").sample(REVIEWS, len(REVIEWS))
    paths = [write(tmp_path / "a.csv", REVIEWS), write(tmp_path / "b.jsonl", shuffled)]
    first, second = ({example.text for example in load(path).examples("dev")} for path in paths)
    assert first == second


def test_a_folder_has_splits_and_a_test_file_without_labels_is_only_predicted(tmp_path):
    write(tmp_path / "train.csv", REVIEWS)
    write(tmp_path / "dev.jsonl", REVIEWS[:5])
    write(tmp_path / "test.csv", [{"text": row["text"] + "!"} for row in REVIEWS[:7]])
    task = load(tmp_path)
    assert sizes(task) == {"train": 90, "dev": 5, "test": 7}
    assert task.unlabelled == {"test"}
    assert task.scored_splits == ["dev"]
    assert {example.label for example in task.examples("test")} == {None}
    assert any(note.startswith(f"{tmp_path}/test.csv ") for note in task.notes)
    assert any(note.startswith("dev: ") and "5 examples (100.0%)" in note for note in task.notes)


@pytest.mark.parametrize("hidden", ["", "-1", -1])
def test_hidden_labels_are_no_labels(tmp_path, hidden):
    write(tmp_path / "train.csv", REVIEWS)
    write(tmp_path / "test.csv", [{**row, "label": hidden} for row in REVIEWS])
    assert load(tmp_path).unlabelled == {"test"}


def test_a_test_file_with_labels_is_scored(tmp_path):
    write(tmp_path / "train.csv", REVIEWS)
    write(tmp_path / "test.csv", REVIEWS)
    assert load(tmp_path).scored_splits == ["dev", "test"]


def test_minus_one_is_a_class_like_any_other_if_it_is_one_in_train(tmp_path):
    rows = [{"text": row["text"], "label": 1 if row["label"] == "p" else -1} for row in REVIEWS]
    write(tmp_path / "train.jsonl", rows)
    write(tmp_path / "test.jsonl", [{"text": "only bad ones", "label": -1}])
    task = load(tmp_path)
    assert task.family.labels() == ("-1", "1")
    assert task.unlabelled == frozenset()


def test_lines_without_text_are_refused_or_skipped_and_counted(tmp_path):
    rows = [*REVIEWS[:4], {"text": " ", "label": "p"}, *REVIEWS[4:]]
    path = write(tmp_path / "a.csv", rows)
    with pytest.raises(InputError, match=r"a\.csv:6: 'text' .*skip"):
        load(path)
    task = load(path, empty="skip")
    assert sum(sizes(task).values()) == 90
    assert any(note.startswith(f"{path}: 1 ") and note.endswith(" 6") for note in task.notes)


COMPRESS = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
def test_a_table_may_be_compressed_and_in_any_encoding(tmp_path, suffix, compression, encoding):
    rows = [("très réussi, déjà vu", "ça"), ("raté, à éviter", "là")] * 10
    separator = "\t" if suffix == ".tsv" else ";"
    lines = [
        "text" + separator + "label",
        *(f"{n} {text}{separator}{label}" for n, (text, label) in enumerate(rows)),
    ]
    (tmp_path / f"train{suffix}{compression}").write_bytes(
        COMPRESS[compression]("\n".join(lines).encode(encoding))
    )
    task = load(tmp_path)
    assert task.family.labels() == ("là", "ça")
    texts = {example.text for split in ("train", "dev") for example in task.examples(split)}
    assert texts == {f"{n} {text}" for n, (text, _) in enumerate(rows)}
    # A guess is worth a word: with another encoding the text would be another.
    assert any("encoding" in note for note in task.notes) == (not encoding.startswith("utf-8"))
    again = load(tmp_path, encoding=encoding)
    assert again.splits == task.splits
    assert not any("encoding" in note for note in again.notes)


def test_ids_are_the_given_ones_or_line_numbers(tmp_path):
    rows = [{"key": f"k{n}", **row} for n, row in enumerate(REVIEWS)]
    path = write(tmp_path / "train.csv", rows)
    examples = [*load(path).examples("train"), *load(path).examples("dev")]
    assert {example.id for example in examples} == {str(line) for line in range(2, 92)}
    assert all(example.where == f"{path}:{example.id}" for example in examples)
    assert {example.id for example in load(path, id="key").examples("dev")} < {f"k{n}" for n in range(90)}


LONG_SENTENCES = [
    {"tokens": ["the", f"day{n}", "was", "fine"], "tags": ["O", "I-DAY", "I-DAY", "I-MOOD"]}
    for n in range(30)
]
KINDS = {
    "classification": (Classification, "accuracy", {}, REVIEWS),
    "pair": (
        Classification,
        "accuracy",
        {"text": "a", "text_pair": "b"},
        [{"a": f"day {n}", "b": "was fine", "label": n % 3} for n in range(30)],
    ),
    "multi_label": (
        MultiLabel,
        "micro_f1",
        {},
        [{"text": f"day {n}", "label": [["x", "y"], [], ["z"]][n % 3]} for n in range(30)],
    ),
    "regression": (Regression, "pearson", {}, [{"text": f"day {n}", "label": n / 7 - 1} for n in range(30)]),
    "similarity": (
        Similarity,
        "spearman",
        {"text_pair": "other"},
        [{"text": f"day {n}", "other": "fine", "label": n % 5} for n in range(30)],
    ),
    "contrastive": (
        Similarity,
        "mrr",
        {"kind": "similarity", "text_pair": "other", "similarity_loss": "contrastive"},
        [{"text": f"day {n}", "other": f"fine {n}"} for n in range(30)],
    ),
    "tagging": (Tagging, "f1", {}, LONG_SENTENCES),
    "parts_of_speech": (
        Tagging,
        "accuracy",
        {"kind": "tagging", "tags": "pos"},
        [{"tokens": row["tokens"], "pos": ["DET", "NOUN", "VERB", "ADJ"]} for row in LONG_SENTENCES],
    ),
    "answering": (
        QuestionAnswering,
        "f1",
        {},
        [{"question": "what", "context": f"day {n // 2} was warm", "answers": "warm"} for n in range(40)],
    ),
    "no_answers": (
        QuestionAnswering,
        "best_f1",
        {"kind": "answering"},
        [
            {"question": "what", "context": f"day {n} was warm", "answers": {"text": ["warm"] * (n % 2)}}
            for n in range(40)
        ],
    ),
    "multiple_choice": (
        MultipleChoice,
        "accuracy",
        {},
        [{"prompt": f"day {n}", "choices": ["was fine", "dull"], "label": n % 2} for n in range(30)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_read_learned_and_scored(tmp_path, kind, tiny_encoder, tokenizer):
    family, main_score, keys, rows = KINDS[kind]
    keys = {"kind": "classification" if kind == "pair" else kind, **keys}
    task = load(write(tmp_path / "train.jsonl", rows), **keys)
    assert type(task.family) is family
    assert task.main_score == main_score
    assert sum(sizes(task).values()) == len(rows)
    model = TaskModel(tiny_encoder, {"mine": task.family})
    dev = task.examples("dev")
    predictions = predict_examples(model, "mine", dev, tokenizer, max_length=32)
    assert next(iter(task.family.scores(dev, predictions))) == main_score
    targets = [row.targets for row in task.family.rows(task.examples("train"), tokenizer, max_length=32)]
    assert all(targets) or kind == "contrastive"

    unlabelled = [
        {key: value for key, value in row.items() if key not in ("label", "tags", "pos", "answers")}
        for row in rows
    ]
    later = load_own_file(
        OwnTaskConfig(**keys),
        write(tmp_path / "new.jsonl", unlabelled),
        name="mine",
        family=task.family,
        main_score=main_score,
    )
    assert len(predict_examples(model, "mine", later.examples("test"), tokenizer, max_length=32)) == len(rows)
    assert later.unlabelled == (frozenset() if kind == "contrastive" else {"test"})


def test_labels_of_several_kinds_in_csv(tmp_path):
    rows = [{"text": f"a {n}", "label": ("x | y", "", "z")[n % 3]} for n in range(30)]
    task = load(write(tmp_path / "a.csv", rows), kind="multi_label")
    assert task.family.labels() == ("x", "y", "z")
    assert {example.label for example in task.examples("train")} == {(0, 1), (), (2,)}
    rows = [{"text": f"a {n}", "label": n % 12} for n in range(60)]
    labels = load(write(tmp_path / "b.csv", rows)).family.labels()
    assert labels == tuple(str(number) for number in range(12))


def test_chunks_are_read_in_any_scheme_and_kept_in_iob2(tmp_path):
    rows = [
        {"tokens": "EU rejects call", "tags": "S-ORG O S-MISC"},
        {"tokens": "Peter B", "tags": "B-PER E-PER"},
    ]
    path = write(tmp_path / "a.csv", rows * 5 + [{"tokens": "x y", "tags": "O O"}])
    task = load(path, kind="tagging")
    tags = {example.words: example.tags for example in (*task.examples("train"), *task.examples("dev"))}
    assert tags[("Peter", "B")] == ("B-PER", "I-PER")
    assert tags[("EU", "rejects", "call")] == ("B-ORG", "O", "B-MISC")
    later = load_own_file(
        OwnTaskConfig(kind="tagging"), path, name="mine", family=task.family, main_score="f1", split="dev"
    )
    assert later.scored_splits == ["dev"]
    assert later.examples("dev")[1].tags == ("B-PER", "I-PER")


def test_all_questions_about_a_text_stay_together(tmp_path):
    rows = [{"question": f"q{n}", "context": f"text {n // 5}", "answers": "text"} for n in range(200)]
    task = load(write(tmp_path / "a.csv", rows), kind="answering")
    train, dev = ({example.context for example in task.examples(split)} for split in ("train", "dev"))
    assert not train & dev
    assert sizes(task) == {"train": 180, "dev": 20}
    assert (task.max_length, task.epochs) == (512, 2.0)


def test_the_scale_of_similarity_is_that_of_the_data_or_given(tmp_path):
    rows = [{"text": f"a {n}", "b": "c", "label": n % 4} for n in range(30)]
    path = write(tmp_path / "a.csv", rows)
    assert load(path, kind="similarity", text_pair="b").family.max_score == 3
    assert load(path, kind="similarity", text_pair="b", max_score=5).family.max_score == 5
    with pytest.raises(InputError, match=r"a\.csv:4: 'label'.*\b2\b.*1\.5.*max_score"):
        load(path, kind="similarity", text_pair="b", max_score=1.5)


BAD_TRAIN = [
    ({}, [{"body": "a", "label": 1}], r"a\.jsonl:1: .*'text'.*'body', 'label'"),
    ({}, [{"Text": "a", "label": 1}], r"'text'.*'Text'"),
    ({}, [{"text": "a", "labels": 1}], r"a\.jsonl:1: .*'label'.*'labels'"),
    ({}, [{"text": "a", "label": 1}, {"text": "b"}], r"a\.jsonl:2: .*'label'"),
    ({}, [{"text": "a", "label": 1}, {"text": "b", "label": ""}], r"a\.jsonl:2: .*'label'.*empty"),
    ({}, [{"text": "a", "label": ""}], r"a\.jsonl: .*'label'"),
    ({}, [{"text": f"{n}", "label": 1} for n in range(9)], r"a\.jsonl: '1' .* 9 "),
    ({}, [{"text": f"{n}", "label": n / 8} for n in range(60)], "'label' .*60 .*regression"),
    ({}, [], r"a\.jsonl: "),
    ({"empty": "skip"}, [{"text": "", "label": 1}], r"a\.jsonl: "),
    (
        {"id": "n"},
        [{"text": "a", "label": 0, "n": 1}, {"text": "b", "label": 1, "n": 1}],
        r"a\.jsonl:2: 'n'.*'1'.*a\.jsonl:1",
    ),
    (
        {"kind": "regression"},
        [{"text": "a", "label": "NaN"}],
        r"a\.jsonl:1: 'label'.*'NaN'",
    ),
    ({"kind": "regression"}, [{"text": "a", "label": "good"}], "kind.*classification"),
    ({"kind": "regression"}, [{"text": f"{n}", "label": 2} for n in range(9)], r"a\.jsonl.*\b2\b"),
    ({"kind": "multi_label"}, [{"text": "a", "label": ["x"]}], "'x'"),
    ({"kind": "multi_label"}, [{"text": "a", "label": []}], r"a\.jsonl: .*label"),
    (
        {"kind": "similarity", "text_pair": "b"},
        [{"text": "a", "b": "c", "label": -1}],
        r"a\.jsonl:1: 'label'.*-1\b.*\b0\b",
    ),
    ({"kind": "similarity", "text_pair": "b"}, [{"text": "a", "b": "c", "label": 0}], r"a\.jsonl.*\b0\b"),
    ({"kind": "similarity", "text_pair": "b"}, [{"text": "a", "b": ""}], r"a\.jsonl:1: 'b'"),
    (
        {"kind": "tagging"},
        [{"tokens": ["a", "b"], "tags": ["X"]}],
        r"a\.jsonl:1: .*\b2\b.*'tokens'.*\b1\b.*'tags'",
    ),
    ({"kind": "tagging"}, [{"tokens": ["a", ""], "tags": ["X", "Y"]}], "'tokens'"),
    (
        {"kind": "tagging"},
        [{"tokens": "a b", "tags": "O O"}] * 3,
        "'O'",
    ),
    (
        {"kind": "answering"},
        [{"question": "q", "context": "c", "answers": "elsewhere"}],
        r"a\.jsonl:1: .*'elsewhere'",
    ),
    (
        {"kind": "multiple_choice"},
        [{"prompt": "p", "choices": ["a", "b"], "label": 2}],
        r"a\.jsonl:1: 'label'.*'2'",
    ),
]


@pytest.mark.parametrize(("keys", "rows", "message"), BAD_TRAIN)
def test_what_cannot_be_learned_is_named_with_file_and_line(tmp_path, keys, rows, message):
    with pytest.raises(InputError, match=message):
        load(write(tmp_path / "a.jsonl", rows), **keys)


@pytest.mark.parametrize(
    ("dev", "message"),
    [
        (
            [{"text": "a", "label": "P"}],
            r"dev\.csv:2: 'label'.*'P'.*'n', 'p'.*'p'",
        ),
        ([{"text": "a"}], r"dev\.csv:2: .*'label'.*'text'"),
        ([{"text": "a", "label": ""}], r"dev\.csv: .*'label'"),
        (
            [{"text": "a", "label": "p"}, {"text": "b", "label": ""}],
            r"dev\.csv:3: .*'label'",
        ),
    ],
)
def test_what_cannot_be_scored_is_named_with_file_and_line(tmp_path, dev, message):
    write(tmp_path / "train.csv", REVIEWS)
    write(tmp_path / "dev.csv", dev)
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_a_file_for_a_model_must_have_its_labels_and_kind(tmp_path):
    family = Classification(("n", "q"))
    path = write(tmp_path / "a.csv", REVIEWS)
    with pytest.raises(InputError, match=r"a\.csv:3: 'label'.*'p'.*'n', 'q'"):
        load_own_file(OwnTaskConfig(), path, name="mine", family=family, main_score="accuracy")
    with pytest.raises(InputError, match=r"kind.*regression.*classification"):
        load_own_file(OwnTaskConfig(kind="regression"), path, name="mine", family=family, main_score="x")
    family = QuestionAnswering(answerability="off")
    with pytest.raises(InputError, match="answering"):
        load_own_file(OwnTaskConfig(), path, name="mine", family=family, main_score="f1")


def test_a_task_file_leads_to_the_task(tmp_path):
    (tmp_path / "data").mkdir()
    write(tmp_path / "data" / "reviews.csv", [{"body": row["text"], "mood": row["label"]} for row in REVIEWS])
    (tmp_path / "mood.yaml").write_text("text: body\nlabel: mood\ndata: data/reviews.csv\ndev_share: 0.2\n")
    config, path = read_task_file(tmp_path / "mood.yaml")
    assert sizes(load_own(config, path, name="mood", seed=0)) == {"train": 72, "dev": 18}


@pytest.mark.slow
def test_korean_reviews_with_empty_ones(shared):
    path = shared / "data" / "ko" / "nsmc" / "ratings_test.txt"
    with pytest.raises(InputError, match=r"ratings_test\.txt:5748: 'document' "):
        load(path, text="document", id="id")
    task = load(path, text="document", id="id", empty="skip")
    train, dev = (task.examples(split) for split in ("train", "dev"))
    assert len(train) + len(dev) == 49_997
    assert len(dev) == pytest.approx(5000, abs=100)
    assert {example.text for example in train}.isdisjoint(example.text for example in dev)
    assert "0 (24,826), 1 (25,171)" in task.notes[0]
    assert any(note.endswith(" 5748, 7901, 27099") for note in task.notes)


@pytest.mark.parametrize(
    ("folder", "keys", "expected"),
    [
        ("ko/korsts", {"kind": "regression", "label": "score"}, {"train": 5749, "dev": 1500, "test": 1379}),
        ("ja/jsts", {"kind": "similarity"}, {"train": 12451, "dev": 1457, "test": 1589}),
    ],
)
def test_korean_and_japanese_pairs(shared, folder, keys, expected):
    task = load(shared / "data" / folder, text="sentence1", text_pair="sentence2", **keys)
    assert sizes(task) == expected
    assert task.unlabelled == frozenset()
    assert re.search(r"\b0\b.*\b5\b.*\b2", task.notes[0])
