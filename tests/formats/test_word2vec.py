"""Word vectors as files: what gensim reads is what was written, for tokenizers of every kind."""

import dataclasses

import numpy as np
import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from electra.errors import InputError
from electra.formats.word2vec import WordVectors, read_vectors, written_tokens
from electra.text.tokenizer import SPECIAL_TOKENS, Tokenizer


def wordpiece(*entries):
    vocabulary = {entry: number for number, entry in enumerate([*SPECIAL_TOKENS, *entries])}
    return Tokenizer(tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]")))


def byte_level(*entries):
    vocabulary = {entry: number for number, entry in enumerate([*SPECIAL_TOKENS, *entries])}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, [], unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


@dataclasses.dataclass
class Folder:
    """As much of a model's folder as is read."""

    tokenizer: Tokenizer
    table: torch.Tensor
    path: str = "MODEL"

    def encoder_state(self):
        return {"embeddings.word_embeddings.weight": self.table}


def folder_of(tokenizer, *, size=4, seed=0):
    table = torch.randn(tokenizer.vocab_size, size, generator=torch.Generator().manual_seed(seed))
    return Folder(tokenizer, table)


def names(tokenizer, tokens="words"):
    return [name for _, name in written_tokens(tokenizer, tokens=tokens)]


def test_pieces_and_special_tokens_are_left_out_unless_wanted():
    tokenizer = wordpiece("river", "##s", "city", ".")
    assert names(tokenizer) == ["river", "city", "."]
    assert names(tokenizer, "all") == [*SPECIAL_TOKENS, "river", "##s", "city", "."]
    found = read_vectors(folder_of(tokenizer), tokens="words")
    torch.testing.assert_close(torch.from_numpy(found.vectors_NE), folder_of(tokenizer).table[[5, 7, 8]])


def test_words_of_a_byte_level_tokenizer_are_text():
    # "Ã©" is how it writes the two bytes of é.
    tokenizer = byte_level("Ġriver", "s", "ĠcafÃ©", "Ċ", "Ġ")
    assert names(tokenizer) == ["river", "café"]
    assert "ĠcafÃ©" in names(tokenizer, "all")


@pytest.mark.parametrize("space", [" ", "\n", "\t", "\u00a0", "\u2028"])
def test_white_space_in_a_token_breaks_no_line(space, tmp_path):
    gensim = pytest.importorskip("gensim.models", reason="gensim, of the extra dev, is not installed")
    found = read_vectors(folder_of(wordpiece(f"new{space}york", "city")), tokens="words")
    found.write(tmp_path / "vectors.txt")
    read = gensim.KeyedVectors.load_word2vec_format(tmp_path / "vectors.txt")
    assert read.index_to_key == ["new_york", "city"]
    np.testing.assert_array_equal(read.vectors, found.vectors_NE)


def test_of_two_tokens_that_are_written_alike_the_first_is_kept():
    found = read_vectors(folder_of(wordpiece("new_york", "new york")), tokens="words")
    assert found.words == ["new_york"]


def test_gensim_reads_the_same_numbers_and_finds_the_same_neighbours(tmp_path):
    gensim = pytest.importorskip("gensim.models", reason="gensim, of the extra dev, is not installed")
    letters = "abcdefghijklmnopqrst"
    found = read_vectors(
        folder_of(wordpiece(*(a + b for a in letters for b in letters)), size=20), tokens="all"
    )
    # Of all sizes that float32 has.
    found.vectors_NE[:3] *= np.array([[1e-15], [1e-8], [1e15]], np.float32)
    found.write(tmp_path / "vectors.txt")
    read = gensim.KeyedVectors.load_word2vec_format(tmp_path / "vectors.txt")
    assert read.index_to_key == list(found.words)
    np.testing.assert_array_equal(read.vectors, found.vectors_NE)
    for word in ("aa", "kt", "ts"):
        theirs = read.most_similar(word, topn=5)
        assert [name for name, _ in found.nearest(word, 5)] == [name for name, _ in theirs]
        # Products of unit vectors of 20 numbers in fp32.
        assert [cosine for _, cosine in found.nearest(word, 5)] == pytest.approx(
            [cosine for _, cosine in theirs], abs=1e-5
        )


def test_neighbours_of_few_words_and_of_a_vector_of_zeros():
    found = WordVectors(["north", "south", "zero"], np.array([[0, 2], [0, -1], [0, 0]], np.float32))
    assert found.nearest("north") == [("zero", 0.0), ("south", -1.0)]
    assert WordVectors(["alone"], np.ones((1, 2), np.float32)).nearest("alone") == []


def test_frequent_words_are_the_first_ones_with_letters():
    words = ["the", "1999", "river", ".", "city's", *(f"word{letter}" for letter in "abcdefghij")]
    found = WordVectors(words, np.ones((len(words), 2), np.float32))
    assert found.frequent() == ["river", *(f"word{letter}" for letter in "abcdefg")]


def test_what_cannot_be_written_or_shown_is_refused():
    tokenizer = wordpiece("river", "##s")
    broken = folder_of(tokenizer)
    broken.table[6, 0] = torch.nan
    with pytest.raises(InputError, match=r"MODEL.*finite"):
        read_vectors(broken, tokens="words")
    with pytest.raises(InputError, match="--tokens all"):
        read_vectors(folder_of(wordpiece("##s")), tokens="words")
    with pytest.raises(InputError, match=r"rivr.*did you mean 'river'"):
        read_vectors(folder_of(tokenizer), tokens="words").require(["river", "rivr"])
