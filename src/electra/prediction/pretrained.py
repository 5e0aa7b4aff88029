"""Token ids -> the judgements of both networks of pre-training; texts -> a turn of their game, and vectors.

The discriminator says how probably each token was replaced, the generator what else could stand somewhere. In
a turn of the training game the generator rewrites some tokens, and the discriminator judges all of them.

B rows, L positions, P chosen positions, C of them in a chunk, V tokens of the vocabulary, T of a text, K best
tokens; numbers in an embedding E, a hidden state D.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from electra.errors import InputError
from electra.model.heads import DiscriminatorHead, GeneratorHead, Pooling, pool
from electra.prediction.phrases import Phrase, PhraseRule, PhraseWriter, choose_phrases
from electra.prediction.windows import ReadBatch, Reader, WindowRow
from electra.seeds import numpy_generator
from electra.text.spans import Ids, Span, Tokens
from electra.text.tokenizer import Tokenizer
from electra.text.vocabulary import CONTINUATION
from electra.text.windows import windows

Positions = NDArray[np.int64]
Reduce = Callable[..., tuple[Tensor, ...]]

COPIES = 4096
"""Masked copies of texts that are held at a time: 8 MB of token ids for rows of 512."""


@dataclass(frozen=True, kw_only=True)
class Discriminator:
    """Tells replaced tokens from original ones."""

    reader: Reader
    head: DiscriminatorHead

    def suspicions(self, texts_ids: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """The probability that it was replaced, of each token of each text."""
        return judge_tokens(self.reader, self.head, texts_ids, torch.sigmoid)

    def log_originals(self, texts_ids: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """The logarithm of the probability that it is original, of each token of each text."""
        # From the logit: where the probability of a replacement rounds to 1, its complement has no logarithm.
        return judge_tokens(self.reader, self.head, texts_ids, lambda logits: functional.logsigmoid(-logits))


@dataclass(frozen=True, kw_only=True)
class EnergyNetwork:
    """Electric's discriminator, whose logit is the energy of a token among all others."""

    reader: Reader
    head: DiscriminatorHead

    def log_likelihoods(self, texts_ids: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """log p(token | all others) of each token of each text, as far as the energies are normalised."""
        return judge_tokens(self.reader, self.head, texts_ids, torch.neg)


@torch.no_grad()
def judge_tokens(
    reader: Reader, head: DiscriminatorHead, texts_ids: Sequence[Ids], function: Callable[[Tensor], Tensor]
) -> list[NDArray[np.float32]]:
    """What `function` makes of the logit of each token of each text."""
    found = [np.zeros(len(ids_T), np.float32) for ids_T in texts_ids]
    for rows, hidden_BLD, _ in reader.read(texts_ids):
        with reader.computing():
            logits_BL = head(hidden_BLD).float()
        judged_BL = function(logits_BL).cpu().numpy()
        for row, judged_L in zip(rows, judged_BL, strict=True):
            found[row.number][row.window.judged : row.window.judged_stop] = judged_L[row.judged]
    return found


class Guesses(NamedTuple):
    """The best tokens for a gap, and their probabilities."""

    ids_K: NDArray[np.int64]
    probabilities_K: NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Generator:
    """Proposes tokens for positions that it sees masked."""

    reader: Reader
    head: GeneratorHead
    word_embeddings_VE: Tensor
    phrases: PhraseRule | None = None
    """How it rewrites whole phrases, if it was trained to."""

    def best(
        self, texts_ids: Sequence[Ids], positions: Sequence[Positions], *, top: int
    ) -> list[list[Guesses]]:
        """For each position of each text, its most probable tokens."""
        size = min(top, self.reader.tokenizer.vocab_size)

        def best_tokens(logits_CV: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            return tuple(self._known(logits_CV).softmax(-1).topk(size))

        anything = [np.zeros(len(of_text)) for of_text in positions]
        found = self._reduce(texts_ids, positions, anything, best_tokens)
        return [[Guesses(ids_K.astype(np.int64), share_K) for share_K, ids_K in of_text] for of_text in found]

    def sample(
        self,
        texts_ids: Sequence[Ids],
        positions: Sequence[Positions],
        uniform: Sequence[NDArray[np.float64]],
    ) -> list[Ids]:
        """A token for each position, drawn by a number from 0 to 1; never one of the special ones."""
        found = self._reduce(texts_ids, positions, uniform, self.draw)
        return [np.array([token for (token,) in of_text], np.uint32) for of_text in found]

    def draw(self, logits_CV: Tensor, uniform_C: Tensor, *, end_id: int | None = None) -> tuple[Tensor]:
        """A function for `reduce`: a token for each number; of the special ones only a sign of the end."""
        tokenizer = self.reader.tokenizer
        special = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id}
        never = torch.tensor(sorted(special - {end_id}), device=logits_CV.device)
        logits_CV = self._known(logits_CV).index_fill(1, never, -torch.inf)
        # In double precision: the errors of a long running sum would exceed the shares of rare tokens.
        ends_CV = logits_CV.softmax(-1).cpu().double().cumsum(-1)
        place_C1 = uniform_C.cpu()[:, None] * ends_CV[:, -1:]
        drawn_C1 = torch.searchsorted(ends_CV, place_C1, right=True)
        # Rounding may bring the product up to the total, behind the last token.
        return (drawn_C1.squeeze(1).clamp(max=ends_CV.shape[1] - 1),)

    @torch.no_grad()
    def log_likelihoods(
        self, texts_ids: Sequence[Ids], places: Sequence[slice] | None = None
    ) -> list[NDArray[np.float32]]:
        """log p(token | all others) of each token of each text: each is masked in turn, in its own window.

        With `places`, of these tokens of each text only; others have 0.
        """
        # A long text is cut first: a copy of its window is enough for a token.
        masked = [
            (number, window, place)
            for number, ids_T in enumerate(texts_ids)
            for window in windows(len(ids_T), room=self.reader.max_length - 2)
            for place in range(window.judged, window.judged_stop)
            if places is None or places[number].start <= place < places[number].stop
        ]
        # Copies that are read together should be of like length; stable, so that the order is one.
        masked.sort(key=lambda one: one[1].start - one[1].stop)
        mask_id = np.uint32(self.reader.tokenizer.mask_id)
        found = [np.zeros(len(ids_T), np.float32) for ids_T in texts_ids]

        def named(logits_CV: Tensor, target_C: Tensor) -> tuple[Tensor]:
            known_CV = self._known(logits_CV)
            return (known_CV.gather(1, target_C[:, None]).squeeze(1) - known_CV.logsumexp(1),)

        for first in range(0, len(masked), COPIES):
            part = masked[first : first + COPIES]
            copies, columns_C = [], []
            for number, window, place in part:
                copies.append(texts_ids[number][window.start : window.stop].copy())
                copies[-1][place - window.start] = mask_id
                columns_C.append((1 + place - window.start, int(texts_ids[number][place])))
            for rows, hidden_BLD, _ in self.reader.read(copies):
                chosen = [row.number for row in rows]
                position_B, target_B = torch.tensor([columns_C[copy] for copy in chosen]).T.to(
                    hidden_BLD.device
                )
                hidden_BD = hidden_BLD[torch.arange(len(chosen), device=hidden_BLD.device), position_B]
                with self.reader.computing():
                    (log_p_B,) = self.head.reduce(hidden_BD, self.word_embeddings_VE, named, target_B)
                for copy, log_p in zip(chosen, log_p_B.tolist(), strict=True):
                    number, _, place = part[copy]
                    found[number][place] = log_p
        return found

    def _known(self, logits_CV: Tensor) -> Tensor:
        """Logits of the tokens that the tokenizer has: a table may be padded to a rounder size."""
        return logits_CV[:, : self.reader.tokenizer.vocab_size].float()

    @torch.no_grad()
    def _reduce(
        self,
        texts_ids: Sequence[Ids],
        positions: Sequence[Positions],
        columns: Sequence[NDArray[np.float64]],
        function: Reduce,
    ) -> list[list[tuple[NDArray[np.float32], ...]]]:
        """What `function` makes of the logits, and of a number of `columns`, at each position."""

        def chosen(row: WindowRow) -> slice:
            first, stop = np.searchsorted(positions[row.number], [row.window.judged, row.window.judged_stop])
            return slice(int(first), int(stop))

        found: list[list[tuple[NDArray[np.float32], ...]]] = [[()] * len(of_text) for of_text in positions]
        reads = self.reader.read(texts_ids, is_wanted=lambda row: chosen(row).start < chosen(row).stop)
        for batch in reads:
            parts = [(row.number, chosen(row)) for row in batch.rows]
            hidden_PD = self._at(batch, [positions[number][part] for number, part in parts])
            column_P = np.concatenate([columns[number][part] for number, part in parts])
            at_device_P = torch.from_numpy(column_P).to(hidden_PD.device)
            with self.reader.computing():
                results = self.head.reduce(hidden_PD, self.word_embeddings_VE, function, at_device_P)
            arrays = zip(*(result.cpu().numpy() for result in results), strict=True)
            for number, part in parts:
                for place in range(part.start, part.stop):
                    found[number][place] = next(arrays)
        return found

    def _at(self, batch: ReadBatch, positions: Sequence[Positions]) -> Tensor:
        """The hidden states (P, D) at some positions of the texts that the rows show."""
        length = batch.hidden_BLD.shape[1]
        index_P = np.concatenate(
            [
                number * length + 1 + of_row - row.window.start
                for number, (row, of_row) in enumerate(zip(batch.rows, positions, strict=True))
            ]
        )
        return batch.hidden_BLD.flatten(0, 1)[torch.from_numpy(index_P).to(batch.hidden_BLD.device)]


IDEOGRAPHS = (("\u3400", "\u4dbf"), ("\u4e00", "\u9fff"), ("\uf900", "\ufaff"), ("\U00020000", "\U0003ffff"))
"""Characters that are words without a blank between them."""


class MaskedText(NamedTuple):
    """The masked tokens of a text, and the random numbers that decide what replaces them."""

    positions_P: Positions
    uniform_P: NDArray[np.float64]


class Piece(NamedTuple):
    """Tokens of a text that are rewritten as one, or stay."""

    start: int
    end: int
    """Characters of the text."""
    old: Ids
    new: Ids
    is_masked: bool
    phrase: int | None = None
    """Number of the phrase that it belongs to, where phrases are rewritten as one."""

    @property
    def is_new(self) -> bool:
        """Whether anything has changed."""
        return not np.array_equal(self.old, self.new)


class Spliced(NamedTuple):
    """A text with some tokens replaced."""

    text: str
    spans: list[Span]
    """The characters, in it, of each piece."""


def corrupt_texts(
    texts: Sequence[str],
    located: Sequence[Tokens],
    *,
    generator: Generator,
    discriminator: Discriminator,
    mask_prob: float,
    seed: int,
) -> list[dict[str, Any]]:
    """A turn for each text, which depends on the text and the seed alone."""
    if not 0 < mask_prob <= 1:
        raise InputError(f"mask_prob is {mask_prob}, expected above 0 and at most 1 (such as 0.15)")
    rewrite = rewrite_tokens if generator.phrases is None else rewrite_phrases
    pieces = rewrite(texts, located, generator, mask_prob=mask_prob, seed=seed)
    corrupted = [
        np.concatenate([piece.new for piece in of_text]) if of_text else np.zeros(0, np.uint32)
        for of_text in pieces
    ]
    suspicions = discriminator.suspicions(corrupted)
    tokenizer = generator.reader.tokenizer
    continues_V = tokenizer.continues_word()
    return [
        describe_turn(text, of_text, suspicion_T, tokenizer, continues_V)
        for text, of_text, suspicion_T in zip(texts, pieces, suspicions, strict=True)
    ]


def rewrite_tokens(
    texts: Sequence[str], located: Sequence[Tokens], generator: Generator, *, mask_prob: float, seed: int
) -> list[list[Piece]]:
    """Draw some tokens of each text anew, each by itself."""
    originals = [tokens.ids_T for tokens in located]
    choices = [
        choose_masks(text, len(ids_T), mask_prob=mask_prob, seed=seed)
        for text, ids_T in zip(texts, originals, strict=True)
    ]
    positions = [chosen.positions_P for chosen in choices]
    masked = [
        replace(ids_T, chosen.positions_P, np.uint32(generator.reader.tokenizer.mask_id))
        for ids_T, chosen in zip(originals, choices, strict=True)
    ]
    sampled = generator.sample(masked, positions, [chosen.uniform_P for chosen in choices])
    return [
        token_pieces(tokens, replace(tokens.ids_T, positions_P, new_P), set(positions_P.tolist()))
        for tokens, positions_P, new_P in zip(located, positions, sampled, strict=True)
    ]


def token_pieces(tokens: Tokens, new_T: Ids, masked: set[int]) -> list[Piece]:
    """Each token by itself."""
    return [
        Piece(start, end, tokens.ids_T[place : place + 1], new_T[place : place + 1], place in masked)
        for place, (start, end) in enumerate(tokens.spans)
    ]


def rewrite_phrases(
    texts: Sequence[str], located: Sequence[Tokens], generator: Generator, *, mask_prob: float, seed: int
) -> list[list[Piece]]:
    """Cut each text into phrases, and let the generator rewrite some of them from left to right."""
    rule, reader = generator.phrases, generator.reader
    assert rule is not None
    continues_V = reader.tokenizer.continues_word()
    cut = [
        choose_phrases(
            numpy_generator(seed, "corrupt", text),
            continues_V[tokens.ids_T],
            rule,
            mask_prob=mask_prob,
            # A phrase is written in one window.
            borders=[window.judged_stop for window in windows(len(tokens.ids_T), room=reader.max_length - 2)],
        )
        for text, tokens in zip(texts, located, strict=True)
    ]
    writer = PhraseWriter(
        reader=reader,
        rule=rule,
        draw=lambda hidden_RD, uniform_R, end_id: generator.head.reduce(
            hidden_RD, generator.word_embeddings_VE, partial(generator.draw, end_id=end_id), uniform_R
        )[0],
    )
    written = writer.write([tokens.ids_T for tokens in located], cut)
    return [phrase_pieces(*parts) for parts in zip(located, cut, written, strict=True)]


def phrase_pieces(tokens: Tokens, cut: Sequence[Phrase], written: Sequence[Ids]) -> list[Piece]:
    """Rewritten phrases, and the tokens of all others."""
    found, new = [], iter(written)
    for number, phrase in enumerate(cut):
        if phrase.uniform_N is None:
            for place in range(phrase.start, phrase.stop):
                token = tokens.ids_T[place : place + 1]
                found.append(Piece(*tokens.spans[place], token, token, is_masked=False, phrase=number))
        else:
            start, end = tokens.spans[phrase.start][0], tokens.spans[phrase.stop - 1][1]
            old = tokens.ids_T[phrase.start : phrase.stop]
            found.append(Piece(start, end, old, next(new), is_masked=True, phrase=number))
    return found


def choose_masks(text: str, num_tokens: int, *, mask_prob: float, seed: int) -> MaskedText:
    """Which tokens are masked: at least one, if there are any."""
    random = numpy_generator(seed, "corrupt", text)
    count = min(num_tokens, max(1, round(mask_prob * num_tokens)))
    positions_P = np.sort(random.choice(num_tokens, count, replace=False)) if count else np.zeros(0, np.int64)
    return MaskedText(positions_P, random.random(count))


def replace(ids_T: Ids, positions_P: Positions, new: Ids | np.uint32) -> Ids:
    """The same tokens with others at some positions."""
    changed_T = ids_T.copy()
    changed_T[positions_P] = new
    return changed_T


def describe_turn(
    text: str,
    pieces: Sequence[Piece],
    suspicion_T: NDArray[np.float32],
    tokenizer: Tokenizer,
    continues_V: NDArray[np.bool_],
) -> dict[str, Any]:
    """The turn as plain data."""
    spliced = splice(text, pieces, tokenizer, continues_V)
    ends = np.cumsum([len(piece.new) for piece in pieces])
    return {
        "text": text,
        "corrupted": spliced.text,
        "tokens": [
            {
                "text": text[piece.start : piece.end],
                "start": piece.start,
                "end": piece.end,
                "original": " ".join(tokenizer.tokens(piece.old)),
                "corrupted": " ".join(tokenizer.tokens(piece.new)),
                "corrupted_start": start,
                "corrupted_end": end,
                "masked": piece.is_masked,
                "replaced": piece.is_new,
                "suspicion": float(suspicion_T[last - len(piece.new) : last].max()),
                "phrase": piece.phrase,
            }
            for piece, (start, end), last in zip(pieces, spliced.spans, ends, strict=True)
        ],
    }


def splice(
    text: str, pieces: Sequence[Piece], tokenizer: Tokenizer, continues_V: NDArray[np.bool_]
) -> Spliced:
    """The text with new tokens in place of those that differ, and everything else as it was.

    Blanks change only beside a new token: one is removed before a piece that continues the word in front of
    it, and one is inserted where two words would otherwise become one.
    """
    found, spans, done, was_new = "", [], 0, False
    for number, piece in enumerate(pieces):
        blank = text[done : piece.start]
        word = readable(piece.new, tokenizer, continues_V) if piece.is_new else text[piece.start : piece.end]
        continues = bool(continues_V[piece.new[0]])
        if number > 0 and (was_new or piece.is_new):
            if continues and piece.is_new and not blank.strip():
                blank = ""
            elif not continues and not blank and fuse(found[-1:], word[:1]):
                blank = " "
        found += blank
        spans.append((len(found), len(found) + len(word)))
        found += word
        done, was_new = piece.end, piece.is_new
    return Spliced(found + text[done:], spans)


def readable(ids: Ids, tokenizer: Tokenizer, continues_V: NDArray[np.bool_]) -> str:
    """Tokens as they stand in a text, without the marks of a vocabulary."""
    words = tokenizer.decode(ids.tolist()).strip()
    return words.removeprefix(CONTINUATION) if continues_V[ids[0]] else words


def fuse(before: str, after: str) -> bool:
    """Whether two characters side by side would be read as one word."""
    return before.isalnum() and after.isalnum() and not is_ideograph(before) and not is_ideograph(after)


def is_ideograph(char: str) -> bool:
    """Whether a character is a word by itself."""
    return any(first <= char <= last for first, last in IDEOGRAPHS)


SMALLEST_LENGTH = 1e-12


@torch.no_grad()
def embed(texts_ids: Sequence[Ids], reader: Reader, *, pooling: Pooling, size: int) -> NDArray[np.float32]:
    """Vectors of length 1, whose product is their cosine; zeros for a text without tokens.

    The vector of a text in several windows is the mean of theirs, weighted by the tokens that each judges;
    with max pooling, it is the largest of each number.
    """
    if pooling not in get_args(Pooling):
        raise InputError(f"pooling is {pooling!r}, expected one of {', '.join(get_args(Pooling))}")
    found = np.zeros((len(texts_ids), size), np.float32)
    if pooling == "max":
        found[[number for number, ids_T in enumerate(texts_ids) if len(ids_T)]] = -math.inf
    for rows, hidden_BLD, attention_mask_BL in reader.read(texts_ids):
        pooled_BD = pool(hidden_BLD.float(), attention_mask_BL, pooling).cpu().numpy()
        for row, pooled_D in zip(rows, pooled_BD, strict=True):
            if pooling == "max":
                found[row.number] = np.maximum(found[row.number], pooled_D)
            else:
                found[row.number] += pooled_D * row.window.num_judged
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    vectors: NDArray[np.float32] = found / np.maximum(lengths, SMALLEST_LENGTH)
    return vectors
