"""Counts of tokens -> last biases of the heads that know from the start what needs no context.

Adam moves a bias by about the learning rate in a step, and frequencies lie up to ten apart in logarithms.
Where biases begin at zero, the hidden states carry for a long time what is the same at every position. What
that changes in a short run, and what not, is in docs/log.md.

V tokens of the vocabulary.
"""

import math

import torch
from torch import Tensor, nn

from electra.errors import InputError
from electra.model.heads import DiscriminatorHead, GeneratorHead
from electra.pretrain.config import PretrainConfig
from electra.pretrain.inputs import TokenFacts

JUDGE_EVERY_POSITION = ("electra", "two_stage", "adversarial")
"""Objectives whose discriminator does. The gate of all_tokens_mlm and the energy of electric are others."""


def start_at_frequencies(objective: nn.Module, config: PretrainConfig, tokens: TokenFacts) -> None:
    """Set the biases of the heads that name tokens, and of the one that judges every position."""
    bias_V, mask_prob = log_frequencies(tokens), config.masking.mask_prob
    with torch.no_grad():
        for part in objective.modules():
            if isinstance(part, GeneratorHead):
                part.bias.copy_(bias_V)
            if isinstance(part, DiscriminatorHead) and config.objective in JUDGE_EVERY_POSITION:
                # Almost all that is masked is replaced, while the generator draws by frequency alone.
                part.output.bias.fill_(math.log(mask_prob / (1 - mask_prob)))


def log_frequencies(tokens: TokenFacts) -> Tensor:
    """Logarithms of the shares of tokens in the corpus; of those that never stand at a mask the lowest."""
    if tokens.counts_V is None:
        raise InputError(
            "output_bias is frequencies, and the data has no token_counts.npy: prepare it again, or take zero"
        )
    counts_V = tokens.counts_V.double().masked_fill(tokens.special_mask, 0.0) + 1
    return (counts_V / counts_V.sum()).log()
