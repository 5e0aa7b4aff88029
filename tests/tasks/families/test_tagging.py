import dataclasses
import json

import numpy as np
import pytest
import torch

from electra.errors import InputError
from electra.model import names
from electra.model.heads import TaggingHead
from electra.model.sizes import EncoderConfig
from electra.tasks.batches import collate
from electra.tasks.families.family import TaskBatch, TaskRow
from electra.tasks.families.tagging import UNLEARNED, JudgedWords, Tagging, TaggingExample
from electra.text import tokenizer as tokenizers
from original_heads import TASK_HEADS

pytestmark = pytest.mark.numeric

POS = Tagging(("ADJ", "NOUN"), "tokens")
WORDS = ("the", "film", "was", "bright")


def example(words, tags=None, **more):
    words = tuple(words.split()) if isinstance(words, str) else tuple(words)
    return TaggingExample(
        id="1", where="train.txt:7", words=words, tags=None if tags is None else tuple(tags.split()), **more
    )


def batch_of(rows, length):
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    return TaskBatch(rows=rows, input_ids_BL=ids, token_type_ids_BL=ids, attention_mask_BL=ids + 1)


def test_a_row_is_the_sentence_between_cls_and_sep(tokenizer):
    (row,) = POS.rows([example("the film was bright", "NOUN NOUN ADJ ADJ")], tokenizer, max_length=64)
    pieces = tokenizer.encode(WORDS).split()
    assert row.input_ids.tolist() == [tokenizer.cls_id, *np.concatenate(pieces), tokenizer.sep_id]
    assert row.input_ids.dtype == np.uint32
    assert row.token_type_ids.tolist() == [0] * len(row.input_ids)
    assert row.targets["tags"].tolist() == [1, 1, 0, 0]
    firsts = [piece[0] for piece in pieces]
    assert row.input_ids[row.origin.positions].tolist() == firsts
    assert (row.example, row.unit) == (0, 0)


def test_words_of_several_tokens_are_judged_by_the_first(tokenizer):
    (row,) = POS.rows([example(["filmbright", "was"], "NOUN ADJ")], tokenizer, max_length=64)
    first, second = tokenizer.encode(["filmbright", "was"]).split()
    assert len(first) > 1
    assert row.origin.positions.tolist() == [1, 1 + len(first)]
    assert row.input_ids[row.origin.positions[1]] == second[0]


def test_a_word_that_gives_no_token_is_unknown(tokenizer):
    assert tokenizer.encode(["\u200b"]).lengths.tolist() == [0]
    (row,) = POS.rows([example(["\u200b", "was"])], tokenizer, max_length=64)
    assert row.input_ids.tolist() == [
        tokenizer.cls_id,
        tokenizer.unk_id,
        *tokenizer.encode(["was"]).ids,
        tokenizer.sep_id,
    ]
    assert len(row.origin.positions) == 2
    assert row.targets == {}


def test_a_tag_that_is_not_known_is_not_learned(tokenizer):
    (row,) = POS.rows([example("the film", "ADJ VERB")], tokenizer, max_length=64)
    assert row.targets["tags"].tolist() == [0, UNLEARNED]


def test_a_long_sentence_loses_no_word(tokenizer):
    words = [*WORDS, "bright" * 30, *WORDS] * 3
    long = example(words, " ".join(["ADJ"] * len(words)))
    rows = POS.rows([example("the film", "NOUN ADJ"), long], tokenizer, max_length=16)
    assert len(rows) > 3
    assert max(len(row.input_ids) for row in rows) <= 16
    assert [row.unit for row in rows] == list(range(len(rows)))
    assert [row.example for row in rows] == [0] + [1] * (len(rows) - 1)
    assert sum(len(row.targets["tags"]) for row in rows[1:]) == len(words)
    firsts = [piece[0] for piece in tokenizer.encode(words).split()]
    assert [row.input_ids[place] for row in rows[1:] for place in row.origin.positions] == firsts


def test_predictions_are_put_together_from_windows(tokenizer):
    words = list(WORDS) * 10
    examples = [example(words), example("was")]
    rows = POS.rows(examples, tokenizer, max_length=12)
    sentence = [number % 2 for number in range(len(words))]
    probabilities = np.array([[0.75, 0.25], [0.4, 0.6]], np.float32)
    outputs = [
        probabilities[sentence[row.origin.first :][: len(row.origin.positions)]]
        if row.example == 0
        else probabilities[:1]
        for row in rows
    ]
    long, short = POS.predictions(examples, rows, outputs)
    assert long["tags"] == ["ADJ", "NOUN"] * (len(words) // 2)
    assert long["confidences"] == [0.75, 0.6] * (len(words) // 2)
    assert short["tags"] == ["ADJ"]
    json.dumps([long, short])


def test_outputs_are_the_probabilities_of_the_judged_words(tokenizer, tiny_config):
    rows = POS.rows([example("the film was bright"), example("was")], tokenizer, max_length=64)
    head = POS.head(tiny_config)
    hidden = torch.randn(2, 12, tiny_config.hidden_size)
    outputs = POS.outputs(head, hidden, batch_of(rows, 12))
    assert [output.shape for output in outputs] == [(4, 2), (1, 2)]
    expected = head(hidden[1, 1]).softmax(-1).detach().numpy()
    np.testing.assert_allclose(outputs[1][0], expected, rtol=1e-5)


CHUNKS = Tagging.learn([example("a b c d e", "B-NP I-NP O B-NP O")], scheme="entities")


def test_chunks_are_learned_in_bioes_and_answered_in_iob2(tokenizer):
    assert CHUNKS.labels() == ("B-NP", "E-NP", "O", "S-NP")
    (row,) = CHUNKS.rows([example("the film was bright", "B-NP I-NP O B-NP")], tokenizer, max_length=64)
    assert row.targets["tags"].tolist() == [0, 1, 2, 3]
    (prediction,) = CHUNKS.predictions([example("the film was bright")], [row], [np.eye(4, dtype=np.float32)])
    assert prediction["tags"] == ["B-NP", "I-NP", "O", "B-NP"]


def test_ends_without_a_beginning_are_read_as_conlleval_reads_them(tokenizer):
    family = dataclasses.replace(CHUNKS, decoding="words")
    (row,) = family.rows([example("the film was bright")], tokenizer, max_length=64)
    (odd,) = family.predictions(
        [example("the film was bright")], [row], [np.eye(4, dtype=np.float32)[[1, 1, 2, 0]]]
    )
    assert odd["tags"] == ["B-NP", "B-NP", "O", "B-NP"]


def test_tags_that_keep_to_their_scheme_are_preferred(tokenizer):
    sentence = [example("the film was bright")]
    (row,) = CHUNKS.rows(sentence, tokenizer, max_length=64)
    # B-NP, E-NP, O, S-NP: word by word a chunk begins that never ends.
    probabilities = np.array([[0.6, 0, 0, 0.4], [0, 0.1, 0.9, 0], [0, 0, 1, 0], [0, 0, 1, 0]], np.float32)
    (chosen,) = CHUNKS.predictions(sentence, [row], [probabilities])
    assert chosen["tags"] == ["B-NP", "O", "O", "O"]
    assert chosen["confidences"] == [0.4, 0.9, 1, 1]
    assert Tagging.learn([example("a b", "X Y")], scheme="tokens").decoding == "words"


def test_scores_of_chunks_and_of_tags():
    true = [example("a b c", "B-NP I-NP O"), example("a", "B-NP")]
    predicted = [{"tags": ["B-NP", "I-NP", "B-NP"]}, {"tags": ["O"]}]
    scores = CHUNKS.scores(true, predicted)
    assert list(scores) == ["f1", "precision", "recall", "accuracy"]
    assert [score.value for score in scores.values()] == [0.5, 0.5, 0.5, 0.5]
    iob1 = [example("a b c", "I-NP I-NP O"), example("a", "I-NP")]
    assert CHUNKS.scores(iob1, predicted) == scores
    (accuracy,) = POS.scores([example("a b", "ADJ NOUN")], [{"tags": ["ADJ", "ADJ"]}]).values()
    assert accuracy.value == 0.5


@pytest.mark.slow
def test_a_tiny_model_learns_chunks_of_long_sentences(tokenizer, tiny_encoder, tiny_config, make_opinions):
    """All parts together: of three rows for a sentence, each word must meet its own tag."""
    tagged = []
    for opinion in make_opinions(24):
        words = opinion.text.split()
        tags = ["O" if word in ("the", "was", "and", "to") else "I-X" for word in words]
        tagged.append(example(words, " ".join(tags)))
    family = Tagging.learn(tagged, scheme="entities")
    rows = family.rows(tagged, tokenizer, max_length=12)
    assert len(rows) > 24
    torch.manual_seed(0)
    head = family.head(tiny_config)
    batch = collate(rows, pad_id=tokenizer.pad_id, device=torch.device("cpu"))
    optimizer = torch.optim.AdamW([*tiny_encoder.parameters(), *head.parameters()], lr=2e-3)
    tiny_encoder.eval()
    for _ in range(60):
        hidden = tiny_encoder(batch.input_ids_BL, attention_mask_BL=batch.attention_mask_BL)
        optimizer.zero_grad()
        family.losses(head, hidden, batch).mean().backward()
        optimizer.step()
    predictions = family.predictions(tagged, rows, family.outputs(head, hidden, batch))
    assert family.scores(tagged, predictions)["f1"].value > 0.95


def test_where_a_word_stands():
    assert example("a b").where_is(1) == "train.txt:7, word 2 ('b')"
    assert example("a b", lines=(7, 9)).where_is(1) == "train.txt:9 ('b')"


def test_tags_of_another_scheme_are_refused():
    with pytest.raises(InputError, match="BIOES"):
        Tagging(("B-NP", "I-NP", "O"), "entities")


def test_the_tags_of_a_saved_model_make_the_same_family():
    assert Tagging(**CHUNKS.settings()) == CHUNKS
    # A folder from before there was a choice was scored word by word.
    assert Tagging(CHUNKS.labels(), "entities").decoding == "words"


@pytest.fixture(scope="module")
def oracle(shared):
    folder = shared / "oracles/google-electra"
    return json.loads((folder / "finetune_oracle.json").read_text())["chunk"], np.load(
        folder / "finetune_oracle.npz"
    )


def test_rows_as_the_authors(oracle, shared):
    facts, _ = oracle
    bert = tokenizers.load_tokenizer(shared / "oracles/vocab/bert-base-uncased.vocab.txt")
    family = Tagging(tuple(facts["label_mapping"]), "entities")
    tags = [family.tags[number] for number in facts["labels"]]
    (row,) = family.rows([example(facts["words"], " ".join(tags))], bert, max_length=128)
    features = facts["features"]
    count = int(sum(features["chunk_labels_mask"]))
    assert row.input_ids.tolist() == features["input_ids"][: sum(features["input_mask"])]
    assert row.targets["tags"].tolist() == features["chunk_labels"][:count]
    assert row.origin.positions.tolist() == features["chunk_labeled_positions"][:count]


def test_losses_and_predictions_as_the_authors(oracle):
    _, dump = oracle
    counts = dump["chunk/in/chunk_labels_mask"].sum(axis=1).astype(int)
    nothing = np.zeros(1, np.uint8)
    rows = [
        TaskRow(
            input_ids=nothing.astype(np.uint32),
            token_type_ids=nothing,
            example=number,
            unit=number,
            targets={"tags": labels[:count]},
            origin=JudgedWords(0, positions[:count].astype(np.int64)),
        )
        for number, (labels, positions, count) in enumerate(
            zip(dump["chunk/in/chunk_labels"], dump["chunk/in/chunk_labeled_positions"], counts, strict=True)
        )
    ]
    head = TaggingHead(EncoderConfig.preset("tiny", hidden_size=16), 9)
    kernel, bias = (dump[f"chunk/w/task_specific/chunk/dense/{name}"] for name in ("kernel", "bias"))
    table = list(names.tensors(TASK_HEADS["TaggingHead"]))
    head.load_state_dict(names.from_tensorflow({"dense/kernel": kernel, "dense/bias": bias}, table))
    family = Tagging(tuple(map(str, range(9))), "tokens")
    hidden = torch.from_numpy(dump["chunk/hidden"])
    losses = family.losses(head, hidden, batch_of(rows, 12))
    np.testing.assert_allclose(losses.detach(), dump["chunk/losses"], rtol=1e-5)
    with torch.no_grad():
        outputs = family.outputs(head, hidden, batch_of(rows, 12))
    for output, theirs, count in zip(outputs, dump["chunk/out/predictions"], counts, strict=True):
        assert output.argmax(axis=1).tolist() == theirs[:count].tolist()
