"""Masked rows -> what the generator proposes for the masked tokens, and how good it is.

Logits over the vocabulary exist for masked positions only and for a chunk of them at a time; loss, accuracy,
entropy and sample all come out of one pass over them, in float32.

B rows, L positions, P masked positions of all rows together, C of them in a chunk, V tokens, D hidden size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from electra.model.heads import GeneratorHead
from electra.model.token_loss import token_loss
from electra.pretrain.config import GeneratorConfig
from electra.pretrain.inputs import Inputs, pick
from electra.pretrain.masking import Masked
from electra.pretrain.metrics import Sums, mean
from electra.pretrain.networks import FixedGenerator, Generator
from electra.pretrain.sampling import draw, sample
from electra.pretrain.towers import TwoTowers

Reduce = Callable[..., tuple[Tensor, ...]]
"""`reduce(function, *columns_P)`: what the function makes of the logits (C, V) and columns of all chunks."""


class Proposal(NamedTuple):
    """What the generator says about the masked positions."""

    loss_P: Tensor
    """Cross-entropy of the original tokens: the only part with a gradient."""
    correct_P: Tensor
    """Whether the most probable token is the original one."""
    entropy_P: Tensor
    """Of its distribution, in nats."""
    sampled_P: Tensor
    """The tokens it proposes."""


def masked_hidden(generator: nn.Module, inputs: Inputs, masked: Masked) -> Tensor:
    """The generator's hidden states (P, D) at the masked positions."""
    # Two towers never see the token of a position itself, so for them nothing needs a mask.
    ids_BL = inputs.input_ids_BL if isinstance(generator, TwoTowers) else masked.masked_ids_BL
    hidden_BLD: Tensor = generator(ids_BL, **inputs.context)
    return pick(hidden_BLD, masked.positions_P)


def vocabulary_reduce(
    generator: Generator, head: GeneratorHead | None, inputs: Inputs, masked: Masked
) -> Reduce:
    """Run the generator -> a way to its logits at the masked positions."""
    if isinstance(generator, FixedGenerator):
        return generator.reduce
    assert head is not None, "a generator that learns has a head"
    hidden_PD = masked_hidden(generator, inputs, masked)
    return partial(head.reduce, hidden_PD, generator.embeddings.word_embeddings.weight)


def propose(reduce: Reduce, masked: Masked, config: GeneratorConfig) -> Proposal:
    """Judge and sample the generator's distributions."""
    return Proposal(*reduce(partial(_judge, config=config), masked.original_P, masked.uniform_P))


def run_generator(
    generator: Generator,
    head: GeneratorHead | None,
    inputs: Inputs,
    masked: Masked,
    config: GeneratorConfig,
) -> Proposal:
    """The proposal of one training step, with dropout while sampling or without."""
    proposal = propose(vocabulary_reduce(generator, head, inputs, masked), masked, config)
    if config.sampling_dropout == "off" and generator.training:
        with torch.no_grad(), evaluating(generator):
            calm = propose(vocabulary_reduce(generator, head, inputs, masked), masked, config)
        return proposal._replace(sampled_P=calm.sampled_P)
    return proposal


def _judge(
    logits_CV: Tensor, original_C: Tensor, uniform_C: Tensor, *, config: GeneratorConfig
) -> tuple[Tensor, ...]:
    """A function for `reduce`: the fields of a proposal."""
    judged = token_loss(logits_CV, original_C)
    with torch.no_grad():
        entropy_C = judged.log_normaliser_C - torch.linalg.vecdot(judged.probs_CV, logits_CV.float())
        if config.draws_as_is:
            sampled_C = draw(judged.probs_CV, uniform_C)
        else:
            sampled_C = sample(
                logits_CV,
                uniform_C,
                method=config.sampling,
                temperature=config.temperature,
                forbidden_P=original_C if config.correct_token == "forbidden" else None,
            )
    return judged.loss_C, judged.best_C == original_C, entropy_C, sampled_C


def predict_tokens(logits_CV: Tensor, original_C: Tensor) -> tuple[Tensor, Tensor]:
    """A function for `reduce`: the cross-entropy of tokens, and whether they are the most probable ones."""
    judged = token_loss(logits_CV, original_C)
    return judged.loss_C, judged.best_C == original_C


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Without dropout, for a while."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


def proposal_sums(proposal: Proposal, masked: Masked) -> Sums:
    """The generator's metrics."""
    return {
        "mlm_loss": mean(proposal.loss_P),
        "mlm_accuracy": mean(proposal.correct_P),
        "sampled_accuracy": mean(proposal.sampled_P == masked.original_P),
        "generator_entropy": mean(proposal.entropy_P),
    }
