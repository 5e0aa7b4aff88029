"""Sampled tokens -> corrupted rows -> how replaced each position looks to the discriminator, and the loss.

B rows, L positions, P masked positions of all rows together.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional

from electra.model.encoder import Encoder
from electra.model.heads import DiscriminatorHead
from electra.pretrain.inputs import Inputs
from electra.pretrain.masking import Masked
from electra.pretrain.sampling import Corrupted, corrupt


class Detection(NamedTuple):
    """The discriminator's verdict on all positions, padding too."""

    corrupted: Corrupted
    logits_BL: Tensor
    """Above 0 a token looks replaced; in float32."""
    losses_BL: Tensor
    """Binary cross-entropy of the verdict."""


def detect(
    discriminator: Encoder, head: DiscriminatorHead, inputs: Inputs, masked: Masked, sampled_P: Tensor
) -> Detection:
    """Corrupt the rows and let the discriminator look at them."""
    corrupted = corrupt(inputs.input_ids_BL, masked.positions_P, sampled_P)
    logits_BL = suspicion(discriminator, head, inputs, corrupted.corrupted_ids_BL)
    return Detection(corrupted, logits_BL, detection_losses(logits_BL, corrupted.replaced_BL))


def suspicion(discriminator: Encoder, head: DiscriminatorHead, inputs: Inputs, ids_BL: Tensor) -> Tensor:
    """The discriminator's logits (B, L) for these tokens, in float32."""
    logits_BL: Tensor = head(discriminator(ids_BL, **inputs.context)).float()
    return logits_BL


def detection_losses(logits: Tensor, replaced: Tensor) -> Tensor:
    """Binary cross-entropy of each position."""
    return functional.binary_cross_entropy_with_logits(logits, replaced.to(logits.dtype), reduction="none")


def detection_views(masked: Masked, corrupted: Corrupted, logits_BL: Tensor) -> dict[str, Tensor]:
    """The rows as both networks see them, with labels and verdicts."""
    return {
        "masked_ids_BL": masked.masked_ids_BL,
        "corrupted_ids_BL": corrupted.corrupted_ids_BL,
        "replaced_BL": corrupted.replaced_BL,
        "logits_BL": logits_BL.detach(),
    }
