"""Held-out rows -> the same corrupted rows in every run of the same data, and how well they are told.

What a discriminator detects of its own generator's work says little of how good it is: both get better
together. Here the replacements come from no network but from the corpus's word frequencies, and depend on
the row alone: not on the seed, the objective, the batch size or the number of processes.

B rows, L positions, P of them replaced.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from electra.pretrain.inputs import Inputs, TokenFacts, pick
from electra.pretrain.metrics import Sums, area_sums
from electra.pretrain.objectives.protocol import Objective
from electra.pretrain.sampling import Corrupted, Unigram, corrupt
from electra.seeds import numpy_generator
from electra.text.batches import Batch, Batches

SEED = 0
NUM_ROWS = 512
"""Rows that are looked at, if so many are held out: about 8,000 replaced tokens."""
_REPLACED_SHARE = 0.15


@dataclass(frozen=True, kw_only=True)
class FixedSet:
    """Held-out rows with some tokens replaced by others of the corpus."""

    batches: Batches
    num_batches: int
    unigram: Unigram
    rank: int
    world_size: int
    device: torch.device

    @classmethod
    def of(
        cls,
        batches: Batches,
        tokens: TokenFacts,
        *,
        num_held_out: int,
        rank: int,
        world_size: int,
        device: torch.device,
    ) -> Self:
        """The first of the held-out rows, which come in the order of `SEED`."""
        return cls(
            batches=batches,
            num_batches=max(1, min(NUM_ROWS, num_held_out) // batches.batch_size),
            unigram=Unigram.uniform(tokens.vocab_size)
            if tokens.counts_V is None
            else Unigram(tokens.counts_V),
            rank=rank,
            world_size=world_size,
            device=device,
        )

    def sums(self, objective: Objective) -> Iterator[Sums]:
        """How suspicious replaced tokens look beside original ones; nothing if that is not learned."""
        for number in range(self.num_batches):
            batch = self.batches.part(number, rank=self.rank, world_size=self.world_size)
            inputs = Inputs.from_batch(batch).to(self.device)
            corrupted = self.corrupted(batch, objective.ordinary_mask(inputs).cpu())
            suspicion_BL = objective.suspicion(inputs, corrupted.corrupted_ids_BL.to(self.device))
            if suspicion_BL is None:
                return
            replaced_BL = corrupted.replaced_BL.to(self.device)
            suspicion_N, replaced_N = (pick(values, inputs.text_N) for values in (suspicion_BL, replaced_BL))
            yield {"fixed_auc": area_sums(suspicion_N, replaced_N)}

    def corrupted(self, batch: Batch, ordinary_BL: Tensor) -> Corrupted:
        """The rows of a batch with replaced tokens, on the CPU."""
        length = batch.input_ids_BL.shape[1]
        # A row's numbers go position by position, so that it does not matter how far the batch is padded.
        noise_BL2 = torch.from_numpy(
            np.stack(
                [numpy_generator(SEED, "fixed set", int(row)).random((length, 2)) for row in batch.row_ids_B]
            )
        )
        positions_P = ((noise_BL2[..., 0] < _REPLACED_SHARE) & ordinary_BL).flatten().nonzero().squeeze(1)
        sampled_P = self.unigram.sample(noise_BL2[..., 1].flatten()[positions_P])
        return corrupt(torch.from_numpy(batch.input_ids_BL), positions_P, sampled_P)
