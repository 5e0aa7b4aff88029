"""Masked and corrupted rows -> the loss of naming the masked tokens and of detecting the replaced ones.

One encoder, one pass: in each row some tokens are [MASK], to be named as in masked language modelling, and
some of the others are replaced by proposals of a generator without a network (`generator.kind` ngram, unigram
or uniform), to be detected as in ELECTRA, at every position that is not masked. Both heads read the same
hidden states, so that no step goes into a network that is thrown away, and the proposals are as good in the
first step as in the last.

Proposals may also be the encoder's own guesses (`single_pass.proposals` own). Every batch is then seen twice
in a row, with other masks: at the second time, tokens that were masked at the first one hold what the encoder
drew for them in passing. So proposals get better as the encoder does, and cost no pass through a network
either. SAS (Xu et al. 2021) does the same from one epoch to the next, which needs a memory of the corpus.

The encoder is both networks of ELECTRA by name: fine-tuning finds it as the discriminator, and RUN/final has
it with either head.

B rows, L positions, P masked positions, R positions with a proposal, N judged positions: no mask, no padding.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.heads import DETECTION_HEADS, GeneratorHead, Judged, is_best, token_loss
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import UNTRAINED, PretrainConfig
from electra.pretraining.masking import Inputs, Masked, Masker, StepRandom, TokenFacts, pick
from electra.pretraining.metrics import Sums, detection_sums, mean, mean_where
from electra.pretraining.networks import host_generator
from electra.pretraining.objectives.electra import detection_losses, suspicion
from electra.pretraining.objectives.protocol import Counts, Objective, Owner, StepOutput, share
from electra.pretraining.sampling import draw_tokens

_GUESSES, _BATCH = "_guesses", "_batch of guesses"


@dataclass(frozen=True, kw_only=True)
class MaskedAndCorrupted(Masked):
    """Rows as the one encoder sees them."""

    seen_ids_BL: Tensor
    """The rows with masks and with proposals."""
    proposed_R: Tensor
    """Positions with a proposal, row by row."""
    proposals_R: Tensor
    """The tokens there."""
    judged_N: Tensor
    """Positions of tokens that are not masked, row by row."""
    batch: Tensor
    """Number of the batch, whether it is seen the first or the second time."""
    remembered_P: Tensor | None
    """The first time, if there is a second: places of the masked tokens in the memory of all rows."""
    recalled_R: Tensor | None
    """The second time: places there of the tokens with a proposal."""


class SinglePass(Objective):
    """Name masked tokens and detect replaced ones in the same pass."""

    encoder_name: ClassVar[Owner] = "discriminator"

    def __init__(
        self, config: PretrainConfig, encoder: EncoderConfig, masker: Masker, tokens: TokenFacts
    ) -> None:
        super().__init__(config, encoder, masker, tokens)
        if config.generator.kind not in UNTRAINED:
            raise InputError(
                f"generator.kind is {config.generator.kind}, but single_pass has no network beside its "
                f"encoder: set it to {', '.join(UNTRAINED[:-1])} or {UNTRAINED[-1]}"
            )
        self.proposer = host_generator(config.generator, tokens)
        self.guesses: Tensor
        self.generator = self.discriminator = Encoder(encoder)
        self.generator_head = GeneratorHead(encoder)
        self.discriminator_head = DETECTION_HEADS[config.discriminator_head](encoder)
        self.visits = 2 if config.single_pass.proposals == "own" else 1

    def make_room(self, num_rows: int) -> None:
        """A guess for each position of a batch, or 0; at the end the number of the batch, from 1 on."""
        if self.visits == 2:
            size = num_rows * self.masker.seq_length + 1
            self.register_buffer("guesses", torch.zeros(size, dtype=torch.float64))

    def mask(self, inputs: Inputs, random: StepRandom) -> MaskedAndCorrupted:
        """Mask some tokens and replace some of the others, on the host."""
        noise_BLK = random.noise(self.masker, len(inputs.input_ids_BL))
        masked = self.masker(inputs.input_ids_BL, inputs.lengths_B, noise_BLK)
        share, among = self.config.single_pass.replace_prob, None
        # Held-out rows are seen once.
        visit = random.step % 2 if self.visits == 2 and random.purpose == "train" else None
        if visit == 1:
            noise_before_BLK = replace(random, step=random.step - 1).noise(self.masker, len(noise_BLK))
            among = self.masker(inputs.input_ids_BL, inputs.lengths_B, noise_before_BLK).chosen_U
            # There are guesses for few tokens: as many of them as are as large a part of all.
            share = min(1.0, share / self.masker.config.mask_prob)
        proposed_R, uniform_R = self.masker.others(masked, noise_BLK, share=share, among=among)
        proposals_R = self.proposer.propose(inputs.input_ids_BL, proposed_R, uniform_R)
        seen = masked.masked_ids_BL.flatten().index_copy(0, proposed_R, proposals_R)
        return MaskedAndCorrupted(
            **vars(masked),
            seen_ids_BL=seen.view_as(masked.masked_ids_BL),
            proposed_R=proposed_R,
            proposals_R=proposals_R,
            judged_N=inputs.text_N[~torch.isin(inputs.text_N, masked.chosen_U)],
            batch=torch.tensor(random.step // self.visits),
            remembered_P=self.places(masked.positions_P, inputs, random) if visit == 0 else None,
            recalled_R=self.places(proposed_R, inputs, random) if visit == 1 else None,
        )

    def places(self, positions_P: Tensor, inputs: Inputs, random: StepRandom) -> Tensor:
        """Positions of some rows -> their places among those of all rows of the global batch."""
        row_P = positions_P // inputs.input_ids_BL.shape[1] + random.first_row
        return row_P * self.masker.seq_length + positions_P % inputs.input_ids_BL.shape[1]

    def count(self, inputs: Inputs, masked: Masked) -> Counts:
        """Masked and judged positions, and those with a proposal."""
        assert isinstance(masked, MaskedAndCorrupted)
        counts = super().count(inputs, masked)
        return counts._replace(judged=len(masked.judged_N), proposed=len(masked.proposed_R))

    def loss(self, inputs: Inputs, masked: Masked, totals: Counts) -> StepOutput:
        """Cross-entropy of the masked tokens and of the verdicts on all others, weighted."""
        assert isinstance(masked, MaskedAndCorrupted)
        masked = self.recall(masked)
        hidden_BLD = self.discriminator(masked.seen_ids_BL, **inputs.context)
        losses_P, correct_P, guesses = self.name_masked(hidden_BLD, masked)
        logits_BL = self.discriminator_head(hidden_BLD).float()
        # A masked token is not judged: neither original nor replaced stands there.
        replaced = torch.zeros_like(inputs.input_ids_BL, dtype=torch.bool).flatten()
        original_R = pick(inputs.input_ids_BL, masked.proposed_R)
        replaced = replaced.index_copy(0, masked.proposed_R, masked.proposals_R != original_R)
        replaced_N = replaced.index_select(0, masked.judged_N)
        logits_N = pick(logits_BL, masked.judged_N)
        losses_N = detection_losses(logits_N, replaced_N)
        loss = self.config.generator_weight * share(losses_P, totals.masked)
        loss = loss + self.discriminator_weight * share(losses_N, totals.judged)
        is_mask_P = pick(masked.masked_ids_BL, masked.positions_P) == self.masker.mask_id
        recovery: Sums = {}
        if self.config.correction == "proposed":
            losses_R, correct_R = self.name_tokens(hidden_BLD, masked.proposed_R, original_R)
            loss = loss + self.config.recovery_weight * share(losses_R, totals.proposed)
            recovery = {"recovery_loss": mean(losses_R), "recovery_accuracy": mean(correct_R)}
        return StepOutput(
            loss=loss,
            sums={
                "mlm_loss": mean(losses_P),
                "mlm_accuracy": mean(correct_P),
                "masked_loss": mean_where(losses_P, is_mask_P),
                "masked_accuracy": mean_where(correct_P, is_mask_P),
                "sampled_accuracy": mean(masked.proposals_R == original_R),
                **detection_sums(losses_N, logits_N, replaced_N),
                "replaced_fraction": mean(replaced_N),
                **recovery,
                **guesses,
            },
            views={
                "masked_ids_BL": masked.masked_ids_BL,
                "corrupted_ids_BL": masked.seen_ids_BL,
                "replaced_BL": replaced.view_as(inputs.input_ids_BL),
                "logits_BL": logits_BL.detach(),
            },
        )

    def name_tokens(self, hidden_BLD: Tensor, positions_P: Tensor, original_P: Tensor) -> tuple[Tensor, ...]:
        """The loss of naming the original tokens at some positions, and whether the best guess is right."""
        return self.generator_head.reduce(
            pick(hidden_BLD, positions_P),
            self.discriminator.embeddings.word_embeddings.weight,
            partial(token_loss, look=is_best),
            original_P,
        )

    def name_masked(self, hidden_BLD: Tensor, masked: MaskedAndCorrupted) -> tuple[Tensor, Tensor, Sums]:
        """The same at masks; and what is drawn there, to be proposed when the rows are seen again."""
        if masked.remembered_P is None or not self.training:
            losses_P, correct_P = self.name_tokens(hidden_BLD, masked.positions_P, masked.original_P)
            return losses_P, correct_P, {}
        losses_P, correct_P, drawn_P = self.generator_head.reduce(
            pick(hidden_BLD, masked.positions_P),
            self.discriminator.embeddings.word_embeddings.weight,
            partial(token_loss, look=_best_and_drawn),
            masked.original_P,
            masked.uniform_P,
        )
        # As sums these reach all processes, each of which guesses in rows of its own.
        guesses = torch.zeros_like(self.guesses)
        guesses.index_copy_(0, masked.remembered_P, (drawn_P + 1).double())
        batch = (masked.batch + 1).double()
        return losses_P, correct_P, {_GUESSES: guesses, _BATCH: torch.stack([batch, torch.ones_like(batch)])}

    def recall(self, masked: MaskedAndCorrupted) -> MaskedAndCorrupted:
        """The rows with what the encoder guessed when it saw them first, if they are seen the second time."""
        if masked.recalled_R is None:
            return masked
        guess_R = self.guesses.index_select(0, masked.recalled_R).long()
        # After a rollback, which leaves batches out, these may be the guesses at another batch.
        is_known_R = (guess_R > 0) & (self.guesses[-1] == masked.batch + 1)
        proposals_R = torch.where(is_known_R, guess_R - 1, masked.proposals_R)
        seen = masked.seen_ids_BL.flatten().index_copy(0, masked.proposed_R, proposals_R)
        return replace(masked, proposals_R=proposals_R, seen_ids_BL=seen.view_as(masked.seen_ids_BL))

    def end_step(self, sums: Sums) -> None:
        """Remember the guesses of all processes."""
        if _GUESSES in sums:
            batch, parts = sums[_BATCH]
            self.guesses.copy_(sums[_GUESSES])
            self.guesses[-1] = batch / parts

    def suspicion(self, inputs: Inputs, ids_BL: Tensor) -> Tensor | None:
        """The logits of the detecting head."""
        return suspicion(self.discriminator, self.discriminator_head, inputs, ids_BL)


def _best_and_drawn(judged: Judged, original_C: Tensor, uniform_C: Tensor) -> tuple[Tensor, ...]:
    """A look: whether the most probable token is the true one, and a token drawn from each distribution."""
    return *is_best(judged, original_C), draw_tokens(judged.probs_CV, uniform_C)
