"""The name of an objective -> the objective, ready to train; `protocol.py` says what it answers to."""

import torch

from electra.model.encoder import initialise
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import ObjectiveName, PretrainConfig
from electra.pretraining.masking import Masker, TokenFacts
from electra.pretraining.networks import start_at_frequencies
from electra.pretraining.objectives.adversarial import Adversarial
from electra.pretraining.objectives.electra import Electra, Electra15
from electra.pretraining.objectives.electric import Electric
from electra.pretraining.objectives.mlm import AllTokensMlm, MaskedLanguageModelling, ReplaceMlm
from electra.pretraining.objectives.negative_sampling import NegativeSampling
from electra.pretraining.objectives.protocol import Objective
from electra.pretraining.objectives.replaced_span import ReplacedSpan
from electra.pretraining.objectives.single_pass import SinglePass
from electra.pretraining.objectives.two_stage import TwoStage
from electra.seeds import torch_generator

OBJECTIVES: dict[ObjectiveName, type[Objective]] = {
    "electra": Electra,
    "mlm": MaskedLanguageModelling,
    "electra_15": Electra15,
    "replace_mlm": ReplaceMlm,
    "all_tokens_mlm": AllTokensMlm,
    "two_stage": TwoStage,
    "adversarial": Adversarial,
    "electric": Electric,
    "single_pass": SinglePass,
    "replaced_span": ReplacedSpan,
    "negative_sampling": NegativeSampling,
}


def build_objective(
    config: PretrainConfig,
    encoder: EncoderConfig,
    tokens: TokenFacts,
    *,
    seq_length: int,
    seed: int,
    batch_size: int = 0,
    device: torch.device | str = "cpu",
) -> Objective:
    """The objective of a config for rows of up to `seq_length` tokens, with the initial weights of a seed.

    `batch_size`: rows of a global batch, if steps may have to remember something of them.
    """
    masker = Masker(
        config.masking,
        seq_length=seq_length,
        vocab_size=tokens.vocab_size,
        mask_id=tokens.mask_id,
        never_chosen=tokens.special_ids,
        continues_word_V=tokens.continues_word_V,
    )
    objective = OBJECTIVES[config.objective](config, encoder, masker, tokens)
    objective.make_room(batch_size)
    # On the CPU, so that all devices start from the same weights.
    initialise(objective, std=encoder.initializer_range, generator=torch_generator(seed, "initialise"))
    if config.output_bias == "frequencies":
        start_at_frequencies(objective, config, tokens)
    return objective.to(device)
