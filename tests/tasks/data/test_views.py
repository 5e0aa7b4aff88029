"""Text without labels -> passages and their views, pairs, sets of similarity; and what is refused."""

import gzip
import itertools
import json
import random

import numpy as np
import pytest

from electra import cli, files
from electra.errors import InputError
from electra.tasks.data import catalogue
from electra.tasks.data.catalogue import TaskSource
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.data.views import ContrastiveConfig, divided, passages, span, word_start
from electra.text.shards import Dealer, hash_document

SENTENCE = "old river small city new model fast read large mountain water stone bridge"
WORDS = SENTENCE.split()
STSB = (
    'index\tgenre\tsentence1\tsentence2\tscore\n0\tnews\tA man is "here.\tA man.\t3.5\n1\tnews\tA.\tB.\t0\n'
)
KORSTS = (
    "genre\tid\tscore\tsentence1\tsentence2\nmain\t01\t5.000\t한 남자\t남자가 한 명\nmain\t02\t0.5\t개\t말\n"
)
JSTS = (
    '{"sentence1": "牛と男性", "sentence2": "白い牛", "label": 4.2}\n'
    '{"sentence1": "山", "sentence2": "海", "label": 0.0}\n'
)


def prose(number, *, seed=0):
    rng = random.Random(f"{seed} {number}")
    return " ".join(rng.choices(WORDS, k=rng.randint(100, 300)))


DOCUMENTS = [prose(number) for number in range(40)]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "first.txt").write_text("\n\n".join(DOCUMENTS[:20]), encoding="utf-8")
    lines = "".join(json.dumps({"text": document}) + "\n" for document in DOCUMENTS[20:])
    (folder / "second.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def load(data="", *, own=None, **keys):
    source = TaskSource(
        task="contrastive",
        data=str(data),
        own=OwnTaskConfig(**(own or {})),
        contrastive=ContrastiveConfig(**keys),
    )
    return catalogue.load_task("contrastive", source)


@pytest.mark.parametrize("size", [128, 200, 512, 100_000])
def test_passages_are_all_of_a_document_in_whole_words(size):
    document = f"  {DOCUMENTS[0]}\n\t{DOCUMENTS[1]} "
    found = list(passages(document, size=size))
    assert " ".join(found).split() == document.split()
    assert len(found) == max(1, round(len(" ".join(document.split())) / size))


def test_a_script_without_blanks_is_cut_anywhere_and_a_heading_is_left_out():
    text = "草地の上で牛と男性が立っています。" * 50
    found = list(passages(text, size=100))
    assert "".join(found) == text
    assert {len(passage) for passage in found} <= {100, 101, 106, 107}
    assert list(passages("A heading", size=100)) == []


def test_a_span_is_a_stretch_of_whole_words_of_any_passage():
    passage, generator = DOCUMENTS[0][:512].rsplit(" ", 1)[0], np.random.default_rng(0)
    spans = [span(passage, generator) for _ in range(300)]
    assert all(f" {one} " in f" {passage} " for one in spans)
    lengths = [len(one) / len(passage) for one in spans]
    # A word has ten letters at most.
    assert 1 / 8 - 0.03 < min(lengths) < 0.2
    assert 0.4 < max(lengths) < 1 / 2 + 0.03
    starts = [f" {passage} ".find(f" {one} ") for one in spans]
    assert min(starts) == 0
    assert max(starts) + 0.2 * len(passage) > len(passage) / 2
    for hard in ("x" * 64, "y" * 63 + " z", "a " + "b" * 70 + " c" * 5):
        assert all(span(hard, generator) for _ in range(100))
    assert word_start("one two", 1) == 4
    assert word_start("one two", 5) == 7


def test_views_are_of_one_passage_and_held_out_documents_are_not_learned_from(corpus):
    task = load(corpus)
    assert list(task.splits) == ["train", "dev"]
    assert (task.main_score, task.epochs) == ("accuracy", 1.0)
    assert (task.family.loss, task.family.pooling) == ("contrastive", "mean")
    documents = {f"{hash_document(text):016x}": text for text in DOCUMENTS}
    ids = {split: {one.id.partition(".")[0] for one in task.splits[split]} for split in task.splits}
    assert ids["train"] | ids["dev"] == documents.keys()
    assert not ids["train"] & ids["dev"]
    for example in [*task.splits["train"], *task.splits["dev"]]:
        document, number = example.id.split(".")
        passage = list(passages(documents[document], size=512))[int(number)]
        assert example.text in passage
        assert example.text_pair in passage
        assert example.text != example.text_pair
    sizes = {split: len(examples) for split, examples in task.splits.items()}
    assert sizes["dev"] >= 0.1 * sum(sizes.values()) > sizes["dev"] - 5


def test_what_prepare_holds_out_is_held_out(tmp_path):
    dealer = Dealer(valid_fraction=0.05, duplicates="keep", folder=tmp_path)
    texts = sorted((prose(number, seed=1) for number in range(60)), key=hash_document)
    held = divided(texts, ContrastiveConfig(), []).held_out
    unread = {text for text in texts if dealer.is_held_out(hash_document(text))}
    assert unread
    assert unread <= set(held)


def test_dropout_learns_from_a_text_twice_and_is_scored_on_two_spans(corpus):
    spans, dropout = load(corpus), load(corpus, views="dropout")
    assert all(one.text == one.text_pair for one in dropout.splits["train"])
    assert [one.text for one in dropout.splits["train"]] == [one.text for one in spans.splits["train"]]
    assert dropout.splits["dev"] == spans.splits["dev"]


def test_the_order_of_files_and_copies_do_not_matter(corpus, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    again = [*reversed(DOCUMENTS), *DOCUMENTS[:5]]
    (other / "all.txt").write_text("\n\n".join(again), encoding="utf-8")
    assert load(other).splits == load(corpus).splits


def test_of_a_large_corpus_some_documents_are_taken(corpus):
    task = load(corpus, characters=10_000, held_out=3)
    known = {one.id: one for one in load(corpus).splits["train"]}
    assert len(task.splits["dev"]) == 3
    assert 10_000 / 512 - 5 < len(task.splits["train"]) < 25 + 5
    assert all(known[one.id] == one for one in task.splits["train"] if one.id in known)
    assert "40" in task.notes[0]


def test_a_data_set_of_prepare_is_read_and_its_held_out_documents_stay_so(corpus, tmp_path):
    out = tmp_path / "data"
    words = ["--vocab_size=300", "--seq_length=64", "--valid_fraction=0.2", "--workers=1"]
    assert cli.main(["prepare", f"--corpus={corpus}", f"--out={out}", *words]) == cli.OK
    task = load(out)
    everything = " ".join(" ".join(DOCUMENTS).split())
    for split in ("train", "dev"):
        assert len(task.splits[split]) > 10
        assert all(one.text in everything for one in task.splits[split])
    held = [text for text in DOCUMENTS if hash_document(text) < 0.2 * 2**64]
    assert all(any(one.text in text for text in held) for one in task.splits["dev"])
    assert load(out).splits == task.splits


def test_pairs_are_learned_beside_the_views(corpus, tmp_path):
    path = tmp_path / "pairs.csv"
    path.write_text("text_a,text_b,no\na cat,the cat,a car\na dog,the dog,\n", encoding="utf-8")
    own = {"text": "text_a", "text_pair": "text_b", "negative": "no"}
    task = load(corpus, pairs=str(path), own=own)
    *views, cat, dog = task.splits["train"]
    assert views == load(corpus).splits["train"]
    assert (cat.text, cat.text_pair, cat.negative, cat.label) == ("a cat", "the cat", "a car", None)
    assert (dog.text, dog.text_pair, dog.negative) == ("a dog", "the dog", None)
    plain = load(corpus, pairs=str(path), own={"text": "text_a", "text_pair": "text_b"})
    assert not hasattr(plain.splits["train"][-1], "negative")


def test_sets_of_similarity_are_read_in_the_forms_they_are_published_in(corpus, tmp_path):
    written = {"STS-B/dev.tsv": STSB, "korsts/sts-dev.tsv": KORSTS, "jsts/valid-v1.3.json": JSTS}
    for name, content in written.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(content, encoding="utf-8")
    paths = [str(tmp_path / name) for name in written]
    task = load(corpus, similarity=paths, own={"text": "a", "text_pair": "b"})
    assert list(task.splits) == ["train", "dev", "STS-B-dev", "korsts-sts-dev", "jsts-valid-v1"]
    assert [one.label for one in task.splits["STS-B-dev"]] == [3.5, 0]
    assert task.splits["STS-B-dev"][0].text == 'A man is "here.'
    assert task.splits["korsts-sts-dev"][0].text_pair == "남자가 한 명"
    assert task.splits["jsts-valid-v1"][0].text == "牛と男性"
    alone = load(similarity=paths[:1])
    assert (list(alone.splits), alone.main_score) == (["STS-B-dev"], "spearman")


def test_the_published_sets_are_whole(shared):
    names = {"glue/STS-B/dev.tsv": 1500, "ko/korsts/sts-dev.tsv": 1500, "ja/jsts/valid-v1.3.json": 1457}
    task = load(similarity=[str(shared / "data" / name) for name in names])
    assert [len(examples) for examples in task.splits.values()] == list(names.values())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"passage": 10}, r"contrastive\.passage is 10"),
        ({"held_out": 1}, r"contrastive\.held_out is 1"),
        ({"characters": 0}, r"contrastive\.characters is 0"),
        ({"temperature": 0.0}, r"contrastive\.temperature is 0"),
        ({"temperature": float("nan")}, r"contrastive\.temperature is nan"),
        ({"max_bad_fraction": 2.0}, r"contrastive\.max_bad_fraction is 2"),
    ],
)
def test_wrong_settings_are_named(keys, message):
    with pytest.raises(InputError, match=message):
        ContrastiveConfig(**keys)


def test_wrong_text_is_refused(tmp_path):
    with pytest.raises(InputError, match="--data"):
        load()
    with pytest.raises(InputError, match=r"nowhere.*no such file"):
        load(tmp_path / "nowhere")
    for name in ("-", "builtin"):
        with pytest.raises(InputError, match=f"electra prepare --corpus {name}"):
            load(name)
    (tmp_path / "short.txt").write_text("A heading\n\nAnother one", encoding="utf-8")
    with pytest.raises(InputError, match=r"short\.txt: 0 passages.*give more text"):
        load(tmp_path / "short.txt")
    (tmp_path / "single.txt").write_text(DOCUMENTS[0], encoding="utf-8")
    with pytest.raises(InputError, match=r"and 0 to hold out"):
        load(tmp_path / "single.txt")
    (tmp_path / "rows.jsonl").write_text('{"body": "no such field"}\n', encoding="utf-8")
    with pytest.raises(
        InputError, match=r"rows\.jsonl:1: .*max_bad_fraction|rows\.jsonl:1|could not be read"
    ):
        load(tmp_path / "rows.jsonl")
    run = tmp_path / "run"
    run.mkdir()
    files.write_manifest(run, {"kind": "fine-tuned model"})
    with pytest.raises(InputError, match="expected a dataset"):
        load(run)


def test_some_bad_rows_are_told_and_many_are_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"text": document}) for document in DOCUMENTS]
    path.write_text("\n".join([*lines, "{no json"]) + "\n", encoding="utf-8")
    assert any("rows.jsonl:41" in note for note in load(path).notes)
    with pytest.raises(InputError, match=r"rows\.jsonl:41"):
        load(path, max_bad_fraction=0.0)


def test_wrong_tables_are_refused(corpus, tmp_path):
    numbers = itertools.count()

    def table(content):
        path = tmp_path / f"{next(numbers)}-set.csv"
        path.write_text(content, encoding="utf-8")
        return str(path)

    known = table("sentence1,sentence2,score\na,b,1\n")
    for keys, own, message in (
        ({"similarity": [str(corpus)]}, {}, "name the files"),
        ({"similarity": [table("a,b\n1,2\n")]}, {}, r"set\.csv: expected the columns.*'a', 'b'"),
        ({"similarity": [table("sentence1,sentence2,score\na,b,high\n")]}, {}, r"set\.csv:2: 'score'"),
        ({"similarity": [table("sentence1,sentence2,score\na,b,-1\n")]}, {}, r"set\.csv:2: 'score' is -1"),
        ({"similarity": [table("sentence1,sentence2,score\na,,1\n")]}, {}, r"set\.csv:2: 'sentence2'"),
        ({"similarity": [known, known]}, {}, "not the only one"),
        ({"pairs": table("text,other\na,b\n")}, {}, r"no column 'text_pair'"),
        ({"pairs": str(tmp_path / "none.csv")}, {}, r"none\.csv"),
        ({"pairs": table("text,text_pair\na,b\n")}, {"negative": "no"}, r"set\.csv:2: no column 'no'"),
        ({}, {"negative": "no"}, "--contrastive.pairs"),
    ):
        with pytest.raises(InputError, match=message):
            load(corpus, own=own, **keys)
