"""Texts -> one turn of the training game: the generator rewrites some tokens, the discriminator judges all.

T tokens of a text, P of them masked, V of the vocabulary.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from electra.errors import InputError
from electra.seeds import numpy_generator
from electra.ship.pretrained import Discriminator, Generator, Positions
from electra.ship.texts import Ids, Span, Tokens
from electra.text.tokenizer import Tokenizer
from electra.text.vocabulary import CONTINUATION

IDEOGRAPHS = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
"""Characters that are words without a blank between them."""


class Chosen(NamedTuple):
    """What is masked in a text, and the numbers that decide what comes in its place."""

    positions_P: Positions
    uniform_P: NDArray[np.float64]


class Spliced(NamedTuple):
    """A text with other tokens in some places."""

    text: str
    spans: list[Span]
    """The characters, in it, of each token."""


def corrupt(
    texts: Sequence[str],
    located: Sequence[Tokens],
    *,
    generator: Generator,
    discriminator: Discriminator,
    mask_prob: float,
    seed: int,
) -> list[dict[str, Any]]:
    """What is made of each text depends on it, on the seed, and on nothing else."""
    if not 0 < mask_prob <= 1:
        raise InputError(f"mask_prob is {mask_prob}, expected above 0 and at most 1 (such as 0.15)")
    tokenizer = generator.reader.tokenizer
    originals = [tokens.ids_T for tokens in located]
    choices = [
        choose(text, len(ids_T), mask_prob=mask_prob, seed=seed)
        for text, ids_T in zip(texts, originals, strict=True)
    ]
    positions = [chosen.positions_P for chosen in choices]
    masked = [
        replace(ids_T, chosen.positions_P, np.uint32(tokenizer.mask_id))
        for ids_T, chosen in zip(originals, choices, strict=True)
    ]
    sampled = generator.sample(masked, positions, [chosen.uniform_P for chosen in choices])
    corrupted = [replace(*parts) for parts in zip(originals, positions, sampled, strict=True)]
    suspicions = discriminator.suspicions(corrupted)
    continues_V = tokenizer.continues_word()
    return [
        describe(text, tokens, new_T, positions_P, suspicion_T, tokenizer, continues_V)
        for text, tokens, new_T, positions_P, suspicion_T in zip(
            texts, located, corrupted, positions, suspicions, strict=True
        )
    ]


def choose(text: str, num_tokens: int, *, mask_prob: float, seed: int) -> Chosen:
    """Which tokens are masked: at least one, if there are any."""
    random = numpy_generator(seed, "corrupt", text)
    count = min(num_tokens, max(1, round(mask_prob * num_tokens)))
    positions_P = np.sort(random.choice(num_tokens, count, replace=False)) if count else np.zeros(0, np.int64)
    return Chosen(positions_P, random.random(count))


def replace(ids_T: Ids, positions_P: Positions, new: Ids | np.uint32) -> Ids:
    """The same tokens with others at some positions."""
    changed_T = ids_T.copy()
    changed_T[positions_P] = new
    return changed_T


def describe(
    text: str,
    tokens: Tokens,
    new_T: Ids,
    masked_P: Positions,
    suspicion_T: NDArray[np.float32],
    tokenizer: Tokenizer,
    continues_V: NDArray[np.bool_],
) -> dict[str, Any]:
    """The turn as plain data."""
    spliced = splice(text, tokens, new_T, tokenizer, continues_V)
    masked = set(masked_P.tolist())
    old_names, new_names = tokenizer.tokens(tokens.ids_T), tokenizer.tokens(new_T)
    return {
        "text": text,
        "corrupted": spliced.text,
        "tokens": [
            {
                "text": text[start:end],
                "start": start,
                "end": end,
                "original": old_names[place],
                "corrupted": new_names[place],
                "corrupted_start": spliced.spans[place][0],
                "corrupted_end": spliced.spans[place][1],
                "masked": place in masked,
                "replaced": bool(tokens.ids_T[place] != new_T[place]),
                "suspicion": float(suspicion_T[place]),
            }
            for place, (start, end) in enumerate(tokens.spans)
        ],
    }


def splice(
    text: str, tokens: Tokens, new_T: Ids, tokenizer: Tokenizer, continues_V: NDArray[np.bool_]
) -> Spliced:
    """The text with new tokens in place of those that differ, and all else as it was.

    A blank goes or comes only beside a new token: it goes before a piece that continues the word in front
    of it, and it comes where two words would else become one.
    """
    found, spans, done = "", [], 0
    is_new_T = tokens.ids_T != new_T
    for place, (start, end) in enumerate(tokens.spans):
        blank = text[done:start]
        word = readable(int(new_T[place]), tokenizer, continues_V) if is_new_T[place] else text[start:end]
        continues = bool(continues_V[new_T[place]])
        if place > 0 and is_new_T[place - 1 : place + 1].any():
            if continues and is_new_T[place] and not blank.strip():
                blank = ""
            elif not continues and not blank and fuse(found[-1:], word[:1]):
                blank = " "
        found += blank
        spans.append((len(found), len(found) + len(word)))
        found += word
        done = end
    return Spliced(found + text[done:], spans)


def readable(token: int, tokenizer: Tokenizer, continues_V: NDArray[np.bool_]) -> str:
    """A token as it stands in a text, without the marks of a vocabulary."""
    word = tokenizer.decode([token]).strip()
    return word.removeprefix(CONTINUATION) if continues_V[token] else word


def fuse(before: str, after: str) -> bool:
    """Whether two characters side by side would be read as one word."""
    return before.isalnum() and after.isalnum() and not is_ideograph(before) and not is_ideograph(after)


def is_ideograph(char: str) -> bool:
    """Whether a character is a word by itself."""
    return any(first <= char <= last for first, last in IDEOGRAPHS)
