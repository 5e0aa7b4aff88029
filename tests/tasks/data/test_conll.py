import gzip
import lzma
import re

import pytest

from electra.errors import InputError
from electra.tasks.data.conll import load_conll, load_conllu

TRAIN = "Confidence NN B-NP\nin IN B-PP\nthe DT B-NP\npound NN I-NP\n\nit PRP B-NP\n. . O\n"
TEST = "it PRP B-NP\nfell VBD B-VP\n. . O\n"


@pytest.fixture
def folder(tmp_path):
    def write(**files):
        for name, text in files.items():
            data = text if isinstance(text, bytes) else text.encode()
            (tmp_path / name.replace("__", "-").replace("_", ".")).write_bytes(data)
        return tmp_path

    return write


def test_chunking_has_no_dev_and_scores_its_test(folder):
    task = load_conll("conll2000", folder(train_txt=TRAIN, test_txt=TEST))
    assert (task.name, task.main_score, task.scored_splits) == ("conll2000", "f1", ["test"])
    first, second = task.splits["train"]
    assert first.words == ("Confidence", "in", "the", "pound")
    assert first.tags == ("B-NP", "B-PP", "B-NP", "I-NP")
    assert (second.id, second.lines) == ("6", (6, 7))
    assert second.where.endswith("train.txt:6")
    for note, numbers in zip(task.notes, (r"train: 2\b.*\b6\b", r"test: 1\b.*\b3\b"), strict=False):
        assert re.match(numbers, note)
    assert any(re.search(r"S-VP \(1.*test\.txt:2 \('fell'\)", note) for note in task.notes)


NER = """\
-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC
-DOCSTART- -X- O O
Peter NNP I-NP I-PER
"""


def test_entities_with_document_starts_in_iob1(folder):
    task = load_conll("conll2003", folder(eng_train=NER, eng_testa=NER, eng_testb=NER))
    assert list(task.splits) == ["train", "dev", "test"]
    assert task.scored_splits == ["dev", "test"]
    assert [example.words for example in task.splits["dev"]] == [("EU", "rejects", "German"), ("Peter",)]
    assert [example.tags for example in task.splits["dev"]] == [("B-ORG", "O", "B-MISC"), ("B-PER",)]
    assert any("IOB1" in note for note in task.notes)


def test_compressed_files_and_other_encodings(tmp_path):
    lines = "élève B-PER\nréussi O\n\noù O\n"
    (tmp_path / "train.txt.xz").write_bytes(lzma.compress(lines.encode("cp1252")))
    (tmp_path / "eng.testa.gz").write_bytes(gzip.compress(lines.encode("utf-16")))
    task = load_conll("own", tmp_path)
    words = [("élève", "réussi"), ("où",)]
    assert {split: [example.words for example in task.splits[split]] for split in task.splits} == {
        "train": words,
        "dev": words,
    }


def test_any_columns(folder):
    text = "1\tNew York\tB-LOC\tNNP\r\n2\tis\tO\tVBZ\r\n\r\n"
    files = folder(train_tsv=text)
    task = load_conll("own", files, word_column=1, tag_column=2)
    assert task.splits["train"][0].words == ("New York", "is")
    assert task.family.scheme == "entities"
    tags = load_conll("own", files, word_column=1).splits["train"][0].tags
    assert tags == ("NNP", "VBZ")
    with pytest.raises(InputError, match=r"tag_column.*\b4\b.*\b4\b"):
        load_conll("own", files, tag_column=4)


def test_only_line_feeds_end_lines_and_only_blanks_part_columns(folder):
    words = ["a\u2028b", "c\x85", "10\u00a0000", "\u3000"]
    text = "\ufeff" + "".join(f"{word}  {tag} \n" for word, tag in zip(words, "ABAB", strict=True))
    task = load_conll("own", folder(train_txt=text))
    assert list(task.splits["train"][0].words) == words


def test_a_file_without_tags_is_predicted_only(folder):
    task = load_conll("ner", folder(train_txt="a B-X\nb O\n", dev_txt="b O\n", test_txt="a\nb\n\nc\n"))
    assert task.unlabelled == {"test"}
    assert task.scored_splits == ["dev"]
    assert [example.tags for example in task.splits["test"]] == [None, None]
    assert any(re.match(r"test: 2\b.*\b3\b.*tags", note) for note in task.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a X B-NP\nb I-NP\n", r"train\.txt:2: 2\b.*'b I-NP'.*\b3\b"),
        ("a X B-NP\n\nb X Y O\n", r"train\.txt:3: 4\b.*'b X Y O'.*\b3\b"),
        ("a\tB-NP\n\tO\n", r"train\.txt:2: .*word"),
        ("a\tB-NP\nb\t\n", r"train\.txt:2: .*tag"),
        ("\n\n", r"train\.txt.*words"),
        ("é O\né O\n".encode() + b"b\xe9 O\n", r"train\.txt:3: .*utf-8"),
        ("a O\nb O\n", r"train\.txt:1: .*\b1\b.*'O'"),
    ],
)
def test_bad_files_are_named_with_the_line(folder, text, message):
    with pytest.raises(InputError, match=message):
        load_conll("own", folder(train_txt=text))


def test_which_file_is_which_must_be_clear(folder, tmp_path):
    with pytest.raises(InputError, match=r"\*\.txt.*train, dev"):
        load_conll("own", folder(README_md="x"))
    with pytest.raises(InputError, match="/none"):
        load_conll("own", tmp_path / "none")
    with pytest.raises(InputError, match=r"dev\.txt, valid\.txt"):
        load_conll("own", folder(train_txt=TRAIN, dev_txt=TEST, valid_txt=TEST))


def line(identity, form, upos, xpos="_"):
    return f"{identity}\t{form}\t_\t{upos}\t{xpos}" + "\t_" * 5 + "\n"


TREEBANK = (
    "# newdoc\n# sent_id = s-1\n# text = don't go\n"
    + line("1-2", "don't", "_")
    + line(1, "do", "AUX", "VBP")
    + line(2, "n't", "PART", "RB")
    + line("2.1", "you", "PRON", "PRP")
    + line(3, "_", "PUNCT", "NFP")
    + "\n# sent_id = s-2\n"
    + line(1, "10 000", "NUM", "CD")
)


def test_treebank_words_are_the_syntactic_ones(folder):
    files = folder(xx__ud__train_conllu=TREEBANK, xx__ud__dev_conllu=TREEBANK + "\n")
    task = load_conllu(files)
    first, second = task.splits["train"]
    assert (first.id, first.words, first.tags) == ("s-1", ("do", "n't", "_"), ("AUX", "PART", "PUNCT"))
    assert (second.id, second.words, second.lines) == ("s-2", ("10 000",), (11,))
    assert (task.name, task.main_score, task.scored_splits) == ("conllu", "accuracy", ["dev"])
    assert load_conllu(files, column="xpos").splits["dev"][0].tags == ("VBP", "RB", "NFP")


def test_a_treebank_without_tags_is_predicted_only(folder):
    files = folder(a__train_conllu=TREEBANK, a__test_conllu=line(1, "go", "_") + line(2, "on", "_"))
    assert load_conllu(files).unlabelled == {"test"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TREEBANK + "2\tgo\tVERB\n", r"train\.conllu:12: .*\b3\b.*\b10\b"),
        (TREEBANK + line("x", "go", "VERB"), r"train\.conllu:12: .*number"),
        (TREEBANK + line(2, "", "VERB"), r"train\.conllu:12: .*word"),
        (TREEBANK + line(2, "go", "_"), r"train\.conllu:12: 'go'.*tag"),
        (TREEBANK + "\n" + TREEBANK, r"train\.conllu: .*'s-1'"),
    ],
)
def test_bad_treebanks_are_named_with_the_line(folder, text, message):
    with pytest.raises(InputError, match=message):
        load_conllu(folder(train_conllu=text))


@pytest.mark.slow
def test_real_data_is_read_whole(shared):
    chunking = load_conll("conll2000", shared / "data/tagging/conll2000")
    assert {name: len(examples) for name, examples in chunking.splits.items()} == {
        "train": 8936,
        "test": 2012,
    }
    assert sum(len(example.words) for example in chunking.splits["test"]) == 47377
    assert any("IOB2" in note for note in chunking.notes)
    assert not any("conlleval" in note for note in chunking.notes)
    treebank = load_conllu(shared / "data/tagging/ud-ewt")
    sizes = {name: len(examples) for name, examples in treebank.splits.items()}
    assert sizes == {"train": 12544, "dev": 2001, "test": 2077}
    assert len(treebank.family.tags) == 17
