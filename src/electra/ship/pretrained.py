"""Token ids -> what the two networks of pre-training say of them.

The discriminator: how probably each token was replaced. The generator: what else could stand at a position.

B rows, L positions, P chosen positions, C of them in a chunk, V tokens of the vocabulary, T of a text, K best
tokens, D numbers in a hidden state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.ship.reading import ReadBatch, Reader, WindowRow
from electra.ship.texts import Ids

Positions = NDArray[np.int64]
Reduce = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True, kw_only=True)
class Discriminator:
    """Tells replaced tokens from original ones."""

    reader: Reader
    head: DiscriminatorHead

    @torch.no_grad()
    def suspicions(self, texts_ids: Sequence[Ids]) -> list[NDArray[np.float32]]:
        """The probability that it was replaced, of each token of each text."""
        found = [np.zeros(len(ids_T), np.float32) for ids_T in texts_ids]
        for rows, hidden_BLD, _ in self.reader.read(texts_ids):
            suspicion_BL = self.head(hidden_BLD).float().sigmoid().cpu().numpy()
            for row, suspicion_L in zip(rows, suspicion_BL, strict=True):
                found[row.number][row.window.judged : row.window.judged_stop] = suspicion_L[row.judged]
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
        tokenizer = self.reader.tokenizer
        special = [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id]

        def draw(logits_CV: Tensor, uniform_C: Tensor) -> tuple[Tensor]:
            logits_CV = self._known(logits_CV).index_fill(
                1, torch.tensor(special, device=logits_CV.device), -torch.inf
            )
            # In double precision: the errors of a long running sum would exceed the shares of rare tokens.
            ends_CV = logits_CV.softmax(-1).cpu().double().cumsum(-1)
            place_C1 = uniform_C.cpu()[:, None] * ends_CV[:, -1:]
            drawn_C1 = torch.searchsorted(ends_CV, place_C1, right=True)
            # Rounding may bring the product up to the total, behind the last token.
            return (drawn_C1.squeeze(1).clamp(max=ends_CV.shape[1] - 1),)

        found = self._reduce(texts_ids, positions, uniform, draw)
        return [np.array([token for (token,) in of_text], np.uint32) for of_text in found]

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
            results = self.head.reduce(
                hidden_PD, self.word_embeddings_VE, function, torch.from_numpy(column_P).to(hidden_PD.device)
            )
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
