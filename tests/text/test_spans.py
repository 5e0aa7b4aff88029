import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from electra.errors import InputError
from electra.text import tokenizer as tokenizers
from electra.text.spans import (
    SharedTokenizer,
    check_texts,
    join_words,
    locate,
    locate_with_gaps,
    mask_gaps,
    words_of,
)
from electra.text.tokenizer import TokenizerConfig

SAMPLE = ["the café was naïve don't stop 日本語 한국어 🙂 a b c [MASK] e\u0301tude"] * 5
KINDS = ("wordpiece", "bpe", "unigram")
# One for all examples of hypothesis.
TOKENIZERS = {
    (kind, accents): tokenizers.train(
        SAMPLE, TokenizerConfig(vocab_size=330, algorithm=kind, accents=accents)
    )
    for kind in KINDS
    for accents in ("strip", "keep")
}
anything = st.text(max_size=40) | st.text(alphabet="a\u0301é 日🙂.[MASK]\u200b\t한", max_size=40)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accents", ["strip", "keep"])
@given(text=anything)
def test_tokens_stand_in_order_and_share_no_character(kind, accents, text):
    (tokens,) = locate([text], TOKENIZERS[kind, accents])
    assert len(tokens.ids_T) == len(tokens.spans)
    done = 0
    for start, end in tokens.spans:
        assert done <= start <= end <= len(text)
        assert text[start:end] == text[start:end].strip()
        done = end


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café naïve", ["Café", "naïve"]),
        # The last letter's accent is a character of its own.
        ("  cafe\u0301 the", ["cafe\u0301", "the"]),
        ("日本語", ["日", "本", "語"]),
        ("the 🙂 the", ["the", "🙂", "the"]),
        ("한국어\tthe", ["한국어", "the"]),
    ],
)
def test_words_lead_back_to_the_text(kind, text, expected):
    tokenizer = TOKENIZERS[kind, "strip"]
    (tokens,) = locate([text], tokenizer)
    assert [word.text for word in words_of(text, tokens, tokenizer.continues_word())] == expected
    assert "".join(text[start:end] for start, end in tokens.spans) == "".join(expected)


def test_words_end_at_punctuation_with_wordpiece_and_at_blanks_otherwise():
    text = "don't  stop."
    for kind, expected in {"wordpiece": ["don", "'", "t", "stop", "."], "bpe": ["don't", "stop."]}.items():
        tokenizer = TOKENIZERS[kind, "keep"]
        (tokens,) = locate([text], tokenizer)
        words = words_of(text, tokens, tokenizer.continues_word())
        assert [word.text for word in words] == expected
        assert all(text[word.start : word.end] == word.text for word in words)


def test_words_joined():
    text, words = join_words(["a", "", "bc"])
    assert text == "a  bc"
    assert [text[word.start : word.end] for word in words] == ["a", "", "bc"]


@pytest.mark.parametrize(
    "text", ["[MASK]", "the [MASK] was [MASK].", "a[MASK][MASK]b", "[mask]", "", "the é"]
)
def test_gaps_are_one_token_where_they_stand(text):
    tokenizer = TOKENIZERS["wordpiece", "keep"]
    (tokens,) = locate_with_gaps([text], tokenizer)
    positions = np.flatnonzero(tokens.ids_T == tokenizer.mask_id)
    assert [tokens.spans[position] for position in positions] == list(mask_gaps(text))
    assert len(positions) == text.count("[MASK]")
    between = [text[start:end] for start, end in tokens.spans]
    assert "".join(between) == text.replace(" ", "")


def test_a_name_of_a_special_token_is_text(tmp_path):
    # A model of bytes reads "[MASK]" as the entry of that name.
    import tokenizers as library

    model = library.models.WordLevel(
        {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "a": 5}, "[UNK]"
    )
    backend = library.Tokenizer(model)
    backend.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = SharedTokenizer.read(tmp_path)
    (located,) = tokenizer.encode_with_offsets(["a [MASK] [SEP]"])
    assert located.ids.tolist() == tokenizer.encode(["a [MASK] [SEP]"]).ids.tolist() == [5, 1, 1]


def test_what_is_no_list_of_texts_is_refused():
    with pytest.raises(InputError, match=r"texts.*\['hello'\]"):
        check_texts("hello")
    with pytest.raises(InputError, match=r"texts\[1\].*int"):
        check_texts(["a", 1])
    with pytest.raises(InputError, match=r"pairs\[0\].*'\\ud800'.* 1\b"):
        check_texts(["a\ud800"], name="pairs")
    assert check_texts(("a", "")) == ["a", ""]
