"""Texts -> phrases -> what a generator of `replaced_span` writes in their place, from left to right.

A text is cut into phrases of one to a few words, as rows are in training, of which some are masked. What is
written is as long as the original or, if the generator has learned to end a phrase, as long as it decides.

B rows, L positions, S masked phrases of at most N tokens, T tokens of a text, R states that tokens are drawn
from, D numbers in a hidden state.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.errors import InputError
from electra.model.spans import SpanGenerator, Spans, lay_out
from electra.prediction.windows import Reader, wanted
from electra.tasks import inference
from electra.tasks.batches import collate
from electra.tasks.families.family import TaskRow, sequence
from electra.text.spans import Ids
from electra.text.windows import Window, windows


@dataclass(frozen=True, kw_only=True)
class PhraseRule:
    """How phrases were rewritten in training."""

    max_tokens: int
    max_words: int
    length: Literal["original", "own"]


class Phrase(NamedTuple):
    """Tokens of a text from `start` to `stop`."""

    start: int
    stop: int
    uniform_N: NDArray[np.float64] | None
    """Numbers from 0 to 1 that decide what is written in their place; None: they stay."""


def choose_phrases(
    random: np.random.Generator,
    continues_T: NDArray[np.bool_],
    rule: PhraseRule,
    *,
    mask_prob: float,
    borders: Sequence[int],
) -> list[Phrase]:
    """Cut tokens into phrases, none across a border, and choose some: one at least, if there are any."""
    found, num_tokens = list(_cut(random, continues_T, rule, borders)), len(continues_T)
    left = max(1, round(mask_prob * num_tokens))
    chosen: set[int] = set()
    for number in random.permutation(len(found)).tolist():
        start, stop = found[number]
        if stop - start <= left or not chosen:
            chosen.add(number)
            left -= stop - start
        if left <= 0:
            break
    return [
        Phrase(start, stop, random.random(rule.max_tokens) if number in chosen else None)
        for number, (start, stop) in enumerate(found)
    ]


def _cut(
    random: np.random.Generator, continues_T: NDArray[np.bool_], rule: PhraseRule, borders: Sequence[int]
) -> Iterator[tuple[int, int]]:
    """Phrases of n words with a probability proportional to 1/n, but of no more tokens than are written."""
    ends = {*borders, len(continues_T)}
    sizes = np.arange(1, rule.max_words + 1)
    share = 1 / sizes / (1 / sizes).sum()
    start, words = 0, 0
    goal = int(random.choice(sizes, p=share))
    for place in range(1, len(continues_T) + 1):
        ends_word = place in ends or not continues_T[place]
        words += ends_word
        # A word that would be the first to make it too long begins the next phrase.
        following = place + 1
        while ends_word and following < len(continues_T) and continues_T[following]:
            following += 1
        is_full = following - start > rule.max_tokens if ends_word else place - start == rule.max_tokens
        if place in ends or is_full or (ends_word and words == goal):
            yield start, place
            start, words = place, 0
            goal = int(random.choice(sizes, p=share))


class Row(NamedTuple):
    """A window of a text whose masked phrases are written."""

    number: int
    """Of the text."""
    ids: Ids
    """With masks, without [CLS] and [SEP]."""
    columns: list[int]
    """Of each phrase, in the row with [CLS]."""
    phrases: list[Phrase]


@dataclass(frozen=True, kw_only=True)
class PhraseWriter:
    """Writes phrases by a generator that was trained to."""

    reader: Reader
    rule: PhraseRule
    draw: Callable[[Tensor, Tensor, int | None], Tensor]
    """States (R, D), a uniform number for each, the sign of the end if it may be drawn -> tokens (R)."""

    def write(self, texts_ids: Sequence[Ids], cut: Sequence[Sequence[Phrase]]) -> list[list[Ids]]:
        """What stands in place of each masked phrase of each text."""
        rows = list(self._rows(texts_ids, cut))
        tokenizer = self.reader.tokenizer
        task_rows = []
        for unit, row in enumerate(rows):
            ids, types = sequence(row.ids, row.ids[:0], tokenizer, max_length=self.reader.max_length)
            task_rows.append(TaskRow(input_ids=ids, token_type_ids=types, example=row.number, unit=unit))

        def write_batch(places: list[int]) -> tuple[list[int], list[list[Ids]]]:
            batch = [task_rows[place] for place in places]
            return places, self._write_batch([rows[place] for place in places], batch)

        batches = inference.spread_rows(
            write_batch, task_rows, device=self.reader.device, max_tokens=self.reader.max_tokens
        )
        written: dict[tuple[int, int], Ids] = {}
        for places, found in wanted(batches):
            for place, of_row in zip(places, found, strict=True):
                row = rows[place]
                for phrase, new in zip(row.phrases, of_row, strict=True):
                    written[row.number, phrase.start] = new
        return [
            [written[number, phrase.start] for phrase in of_text if phrase.uniform_N is not None]
            for number, of_text in enumerate(cut)
        ]

    def _rows(self, texts_ids: Sequence[Ids], cut: Sequence[Sequence[Phrase]]) -> Iterator[Row]:
        """For each window that judges the tokens of a masked phrase, what is seen of the text."""
        for number, (ids_T, of_text) in enumerate(zip(texts_ids, cut, strict=True)):
            masked = [phrase for phrase in of_text if phrase.uniform_N is not None]
            for window in windows(len(ids_T), room=self.reader.max_length - 2):
                own = [phrase for phrase in masked if window.judged <= phrase.start < window.judged_stop]
                if own:
                    yield self._row(number, ids_T, masked, own, window)

    def _row(
        self, number: int, ids_T: Ids, masked: Sequence[Phrase], own: list[Phrase], window: Window
    ) -> Row:
        """What is masked elsewhere in the window is seen as masked, too."""
        shown, columns = [], []
        done, size, starts = window.start, 1, {phrase.start for phrase in own}
        for phrase in masked:
            start, stop = max(phrase.start, window.start), min(phrase.stop, window.stop)
            if start >= stop:
                continue
            num_masks = 1 if self.rule.length == "own" else stop - start
            shown += [ids_T[done:start], np.full(num_masks, self.reader.tokenizer.mask_id, ids_T.dtype)]
            if phrase.start in starts:
                columns.append(size + start - done)
            size, done = size + start - done + num_masks, stop
        return Row(number, np.concatenate([*shown, ids_T[done : window.stop]]), columns, own)

    @torch.no_grad()
    def _write_batch(self, rows: Sequence[Row], task_rows: Sequence[TaskRow]) -> list[list[Ids]]:
        generator, device, tokenizer = self.reader.encoder, self.reader.device, self.reader.tokenizer
        assert isinstance(generator, SpanGenerator)
        batch = collate(task_rows, pad_id=tokenizer.pad_id, device=device)
        phrases = [phrase for row in rows for phrase in row.phrases]
        is_own, longest = self.rule.length == "own", self.rule.max_tokens
        spans = Spans(
            torch.tensor([number for number, row in enumerate(rows) for _ in row.columns]),
            torch.tensor([column for row in rows for column in row.columns]),
            torch.tensor([longest if is_own else phrase.stop - phrase.start for phrase in phrases]),
        )
        firsts, written = (
            lay_out(
                spans._replace(length_S=length_S),
                batch.attention_mask_BL.cpu().bool(),
                longest=longest,
                last_column=self.reader.max_length - 1 if is_own else None,
            ).moved(lambda tensor: tensor.to(device))
            for length_S in (torch.ones_like(spans.length_S), spans.length_S)
        )
        numbers = [phrase.uniform_N for phrase in phrases if phrase.uniform_N is not None]
        sizes = spans.length_S.tolist()
        uniform = [uniform_N[:size] for uniform_N, size in zip(numbers, sizes, strict=True)]
        uniform_P = torch.from_numpy(np.concatenate(uniform)).to(device)
        end_id = tokenizer.sep_id if is_own else None
        types_BL, begins_P = batch.token_type_ids_BL, written.begins
        with self.reader.computing():
            hidden_BXD, reading = generator.read(
                batch.input_ids_BL, types_BL, firsts, torch.zeros_like(firsts.first_P)
            )
            # As in `Reader`: what is drawn from NaN would be an invented answer.
            if not torch.isfinite(hidden_BXD[batch.attention_mask_BL.bool()]).all():
                raise InputError("the model computes NaN: its weights are damaged, or its training diverged")
            first_SD = hidden_BXD.flatten(0, 1)[firsts.state_P]
            # A phrase has one token at least.
            drawn_S = self.draw(first_SD, uniform_P[begins_P], None).to(device)
            sampled_P = generator.write(
                types_BL,
                written,
                generator.at_other_slots(hidden_BXD, reading, written),
                torch.zeros_like(written.first_P).masked_scatter(begins_P, drawn_S),
                draw=lambda hidden_RD, tail_R: self.draw(hidden_RD, uniform_P[tail_R], end_id).to(device),
                end_id=end_id,
            )
        tokens = iter(sampled_P.cpu().split_with_sizes(sizes))
        return [[_until(next(tokens), end_id) for _ in row.phrases] for row in rows]


def _until(tokens_N: Tensor, end_id: int | None) -> Ids:
    """What was written before the sign of the end."""
    found: Ids = tokens_N.numpy().astype(np.uint32)
    if end_id is None or end_id not in found:
        return found
    return found[: int(np.argmax(found == end_id))]
