import re

import numpy as np
import pytest

from electra.errors import InputError
from electra.tasks.data.squad import Answer, AnswerExample
from electra.tasks.families.excerpts import WindowSizes, answer_tokens, characters, window_rows
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import TokenizerConfig

CONTEXT = "The first house was red. The second one, of stone, was built by Zoë (1895-1943) in Kraków."
SIZES = WindowSizes(max_query_length=4, doc_stride=4)


@pytest.fixture(scope="module")
def tokenizer():
    return tokenizers.train([CONTEXT.lower()] * 3, TokenizerConfig(vocab_size=300))


def example(question="Who built the second one?", answer=None, context=CONTEXT, **facts):
    answers = () if answer is None else (Answer(answer, context.index(answer)),)
    return AnswerExample(id="q", where="file", question=question, context=context, answers=answers, **facts)


def test_rows_hold_the_question_and_a_part_of_the_text(tokenizer):
    rows = window_rows([example()], tokenizer, max_length=20, sizes=SIZES)
    (located,) = tokenizer.encode_with_offsets([CONTEXT])
    query = tokenizer.encode([example().question]).ids[:4].tolist()
    for number, row in enumerate(rows):
        ids = row.input_ids.tolist()
        start = 4 * number
        window = located.ids[start : start + 13].tolist()
        assert ids == [tokenizer.cls_id, *query, tokenizer.sep_id, *window, tokenizer.sep_id]
        assert row.token_type_ids.tolist() == [0] * 6 + [1] * (len(window) + 1)
        assert (row.example, row.unit) == (0, number)
        assert np.array_equal(row.origin.offsets_T2, located.offsets_T2[start : start + 13])
    assert 4 * (len(rows) - 1) + 13 >= len(located.ids) > 4 * (len(rows) - 2) + 13


def test_targets_point_to_the_answer_or_to_cls(tokenizer):
    rows = window_rows([example(answer="of stone")], tokenizer, max_length=20, sizes=SIZES)
    found = 0
    for row in rows:
        start, end = row.targets["start"], row.targets["end"]
        assert row.targets["is_impossible"] == 0
        if start:
            found += 1
            offsets = row.origin.offsets_T2
            first, last = offsets[start - row.origin.first, 0], offsets[end - row.origin.first, 1]
            assert CONTEXT[first:last] == "of stone"
        else:
            assert end == 0
    assert 1 <= found < len(rows)


def test_an_impossible_question_points_to_cls_and_an_unlabelled_one_nowhere(tokenizer):
    impossible, unknown = (
        window_rows([one], tokenizer, max_length=60, sizes=SIZES)[0].targets
        for one in (example(is_impossible=True), example())
    )
    assert impossible == {"start": 0, "end": 0, "is_impossible": 1}
    assert unknown == {}


def test_an_answer_known_by_its_text_only_is_not_learned_from(tokenizer):
    one = AnswerExample(
        id="q", where="", question="?", context=CONTEXT, answers=(Answer("x", None), Answer("red", 20))
    )
    (row,) = window_rows([one], tokenizer, max_length=100, sizes=SIZES)
    first = row.targets["start"] - row.origin.first
    assert CONTEXT[slice(*row.origin.offsets_T2[first])] == "red"


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        ("1895", "1895"),
        ("1943", "1943"),
        ("Krak", "Kraków"),  # inside a word: the word, without its full stop
        ("Zoë (1895", "Zoë (1895"),
    ],
)
def test_tokens_of_an_answer(answer, tokens):
    # Whole words are in this vocabulary, so that a part of a word is not a token.
    vocabulary = tokenizers.train([CONTEXT.lower()] * 100, TokenizerConfig(vocab_size=400))
    (located,) = vocabulary.encode_with_offsets([CONTEXT])
    first, last = answer_tokens(located.offsets_T2, Answer(answer, CONTEXT.index(answer)))
    assert CONTEXT[located.offsets_T2[first, 0] : located.offsets_T2[last, 1]] == tokens


@pytest.mark.parametrize("algorithm", ["wordpiece", "bpe", "unigram"])
def test_an_answer_is_cut_out_of_the_text_as_it_stands(algorithm):
    # Marks by themselves: else some algorithms learn tokens such as "stone,", which are answers as a whole.
    texts = [re.sub(r"([^\w ])", r" \1 ", CONTEXT)] * 3
    vocabulary = tokenizers.train(texts, TokenizerConfig(vocab_size=400, algorithm=algorithm))
    (located,) = vocabulary.encode_with_offsets([CONTEXT])
    for answer in ("The first house", "of stone", "Zoë", "1943", "Kraków"):
        first, last = answer_tokens(located.offsets_T2, Answer(answer, CONTEXT.index(answer)))
        start, end = characters(CONTEXT, located.offsets_T2[first, 0], located.offsets_T2[last, 1])
        assert CONTEXT[start:end] == answer


def test_the_answer_is_learned_where_it_stands_and_not_where_it_stands_first(tokenizer):
    context = "stone-stone"
    (located,) = tokenizer.encode_with_offsets([context])
    first, _ = answer_tokens(located.offsets_T2, Answer("stone", 6))
    assert located.offsets_T2[first, 0] == 6


def test_an_answer_without_tokens_is_nowhere(tokenizer):
    (located,) = tokenizer.encode_with_offsets(["red \u200d red"])
    assert answer_tokens(located.offsets_T2, Answer("\u200d", 4)) is None


def test_a_text_without_tokens_is_one_row(tokenizer):
    (row,) = window_rows([example(context="\u200d")], tokenizer, max_length=20, sizes=SIZES)
    assert row.input_ids.tolist()[-2:] == [tokenizer.sep_id] * 2


def test_no_room_beside_the_question(tokenizer):
    with pytest.raises(InputError, match=r"file: max_length 7\b.*\b4 tokens"):
        window_rows([example()], tokenizer, max_length=7, sizes=SIZES)
    assert window_rows([example()], tokenizer, max_length=8, sizes=SIZES)


def test_sizes_are_positive():
    with pytest.raises(InputError, match=r"doc_stride.*\b0\b"):
        WindowSizes(doc_stride=0)


def test_a_combining_accent_stays_with_its_letter():
    assert characters("cafe\u0301, bar", 0, 4) == (0, 5)
    assert characters(" of stone ", 0, 10) == (1, 9)
