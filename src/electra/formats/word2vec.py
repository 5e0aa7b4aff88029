"""A model's table of input embeddings -> vectors.txt in word2vec's text format, and the nearest words.

The first line has the number of vectors and of their numbers, each other line a token and its vector:

    8192 128
    the 0.0123 -0.456 ...

gensim, spaCy, fastText and others read it. The vectors are the rows of the encoder's word embeddings as they
are looked up, before norm and projection: what word2vec calls input vectors.

V tokens of the vocabulary, N of them written, E numbers in a vector.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Literal

import numpy as np
from numpy.typing import NDArray

from electra import files
from electra.errors import InputError
from electra.model.store import ModelFolder
from electra.show import did_you_mean, listed
from electra.text.tokenizer import SPECIAL_TOKENS, Tokenizer

VECTORS = "vectors.txt"
KIND = "word vectors"
"""What the manifest calls the folder."""
Tokens = Literal["words", "all"]
_WORD_TABLE = "embeddings.word_embeddings.weight"
_NUM_SHOWN, _NUM_NEAREST, _SHORTEST = 8, 5, 4
"""Of the words that are shown without being asked for: how many, with how many neighbours, from how many
letters on. The shortest words are mostly those that say least."""


@dataclass(frozen=True)
class WordVectors:
    """Words and their vectors, row by row, in the order of the vocabulary."""

    words: Sequence[str]
    vectors_NE: NDArray[np.float32]

    @cached_property
    def places(self) -> dict[str, int]:
        """The row of each word."""
        return {word: row for row, word in enumerate(self.words)}

    @cached_property
    def directions(self) -> NDArray[np.float32]:
        """The vectors with length one; a vector of zeros stays it."""
        length_N1 = np.linalg.norm(self.vectors_NE, axis=1, keepdims=True)
        unit_NE: NDArray[np.float32] = self.vectors_NE / np.maximum(length_N1, np.finfo(np.float32).tiny)
        return unit_NE

    def nearest(self, word: str, count: int = _NUM_NEAREST) -> list[tuple[str, float]]:
        """The words with the highest cosines to a word, the nearest first."""
        row = self.places[word]
        cosine_N = self.directions @ self.directions[row]
        cosine_N[row] = -np.inf
        rows = np.argsort(-cosine_N, kind="stable")[: min(count, len(self.words) - 1)]
        return [(self.words[other], float(cosine_N[other])) for other in rows]

    def require(self, words: Sequence[str]) -> None:
        """Refuse words that have no vector."""
        if unknown := [word for word in words if word not in self.places]:
            hint = did_you_mean(unknown[0], self.places)
            raise InputError(
                f"--words: {listed(unknown)} not in the vocabulary as one token{hint}. A word of several "
                "pieces has no vector of its own"
            )

    def frequent(self) -> list[str]:
        """Some of the first words of the vocabulary, which tokenizers learn in the order of frequency."""
        found = [word for word in self.words if len(word) >= _SHORTEST and word.isalpha()]
        return found[:_NUM_SHOWN]

    def write(self, path: Path) -> None:
        """Write word2vec's text format."""
        files.write_file(path, self._write_lines)

    def _write_lines(self, file: IO[bytes]) -> None:
        file.write(f"{len(self.words)} {self.vectors_NE.shape[1]}\n".encode())
        for word, vector_E in zip(self.words, self.vectors_NE, strict=True):
            # Nine digits are what it takes to read the same float32 again.
            numbers = " ".join(f"{number:.9g}" for number in vector_E.tolist())
            file.write(f"{word} {numbers}\n".encode())


def read_vectors(model: ModelFolder, *, tokens: Tokens) -> WordVectors:
    """The vectors of a model, of whole words or of all tokens."""
    table_VE = model.encoder_state()[_WORD_TABLE].numpy()
    if not np.isfinite(table_VE).all():
        raise InputError(f"{model.path}: its word embeddings hold numbers that are not finite")
    rows: dict[str, int] = {}
    for number, name in written_tokens(model.tokenizer, tokens=tokens):
        rows.setdefault(name, number)
    if not rows:
        raise InputError(f"{model.path}: its tokenizer has no whole words: take --tokens all")
    return WordVectors(list(rows), np.ascontiguousarray(table_VE[list(rows.values())], np.float32))


def written_tokens(tokenizer: Tokenizer, *, tokens: Tokens) -> Iterator[tuple[int, str]]:
    """Token ids with the names that the file has for them: without white space, which separates numbers."""
    entries, continues = tokenizer.tokens(range(tokenizer.vocab_size)), tokenizer.continues_word()
    # Other tokenizers mark where words begin, and some write letters as bytes.
    is_plain = tokens == "all" or tokenizer.describe()["algorithm"] == "wordpiece"
    for number, entry in enumerate(entries):
        if tokens == "words" and (continues[number] or entry in SPECIAL_TOKENS):
            continue
        text = entry if is_plain else tokenizer.decode([number]).strip()
        # As word2vec writes phrases: New_York.
        name = "".join("_" if letter.isspace() else letter for letter in text)
        if name:
            yield number, name
