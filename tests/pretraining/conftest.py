import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from electra.model.sizes import EncoderConfig
from electra.pretraining import metrics
from electra.pretraining.config import GeneratorConfig, PretrainConfig
from electra.pretraining.masking import Inputs, MaskingConfig, StepRandom, TokenFacts
from electra.pretraining.ngrams import index_ids
from electra.pretraining.objectives import build_objective
from electra.pretraining.objectives.protocol import Objective
from electra.seeds import numpy_generator
from electra.text.batches import Batch

PAD, UNKNOWN, CLS, SEP, MASK, FIRST_WORD = range(6)
NUM_CLASSES, WORDS_PER_CLASS, LONGEST = 7, 3, 16
VOCAB_SIZE = FIRST_WORD + NUM_CLASSES * WORDS_PER_CLASS

# What an objective needs beside the defaults.
NEEDS: dict[str, dict[str, Any]] = {
    "electra": {},
    "mlm": {},
    "electra_15": {},
    "replace_mlm": {},
    "all_tokens_mlm": {},
    "two_stage": {"generator": GeneratorConfig(sharing="none", width=1.0)},
    "adversarial": {},
    "electric": {"generator": GeneratorConfig(kind="two_tower", width=0.5)},
    "single_pass": {"generator": GeneratorConfig(kind="ngram"), "discriminator_weight": 10.0},
    # Rows are short: of 15 % there would be no span of three tokens.
    "replaced_span": {"masking": MaskingConfig(strategy="span", mask_token_prob=1.0, mask_prob=0.3)},
    # The words are evenly distributed.
    "negative_sampling": {"generator": GeneratorConfig(kind="uniform"), "discriminator_weight": 1.0},
}


@dataclass(frozen=True)
class Toy:
    """A small language and small models of it.

    Words are of seven classes, which follow each other in a fixed order, as if article, noun, verb, ...;
    within its class a word is random. Over all positions words are evenly distributed.
    """

    tokens: TokenFacts
    encoder: EncoderConfig
    unigram_entropy: float = float(np.log(NUM_CLASSES * WORDS_PER_CLASS))

    def encoder_of(self, name: str) -> EncoderConfig:
        """The encoder for an objective: negative_sampling needs one that does not see its own token."""
        if name != "negative_sampling":
            return self.encoder
        return EncoderConfig.preset(
            "tiny",
            vocab_size=VOCAB_SIZE,
            backbone="bag",
            hidden_size=32,
            local_attention_window=4,
            max_position_embeddings=LONGEST,
        )

    def sentences(self, count: int, *, seed: int) -> Batch:
        random = numpy_generator(seed, "toy")
        lengths = random.integers(8, LONGEST + 1, count)
        ids = np.full((count, LONGEST), PAD, np.int64)
        for row, length in enumerate(lengths):
            classes = np.arange(length - 2) % NUM_CLASSES
            words = FIRST_WORD + classes * WORDS_PER_CLASS + random.integers(WORDS_PER_CLASS, size=length - 2)
            ids[row, :length] = [CLS, *words, SEP]
        segments = (np.arange(LONGEST) >= 7) & (ids != PAD)
        return Batch(
            row_ids_B=np.arange(count),
            input_ids_BL=ids,
            token_type_ids_BL=segments.astype(np.int64),
            lengths_B=lengths,
        )

    def inputs(self, count: int = 32, *, seed: int = 0) -> Inputs:
        return Inputs.from_batch(self.sentences(count, seed=seed))

    def objective(
        self,
        name: str = "electra",
        *,
        dropout: float = 0.0,
        seed: int = 0,
        batch_size: int = 0,
        **changes,
    ) -> Objective:
        encoder = dataclasses.replace(
            self.encoder_of(name), hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout
        )
        config = PretrainConfig(objective=name, **{**NEEDS[name], **changes})
        return build_objective(
            config, encoder, self.tokens, seq_length=LONGEST, seed=seed, batch_size=batch_size
        )

    def train(
        self, objective: Objective, steps: int, *, first: int = 0, learning_rate: float = 3e-3
    ) -> Iterator[dict[str, float]]:
        """One loss and the metrics for each step; the step is over when it is yielded."""
        optimizer = torch.optim.Adam(objective.parameters(), lr=learning_rate)
        objective.train()
        for step in range(first, first + steps):
            objective.begin_step(step)
            output = objective(self.inputs(seed=step), StepRandom(seed=0, step=step, num_rows=32))
            optimizer.zero_grad()
            output.loss.backward()
            optimizer.step()
            objective.end_step(output.sums)
            yield {"loss": output.loss.item(), **metrics.summarise(output.sums)}

    @torch.no_grad()
    def evaluate(self, objective: Objective) -> dict[str, float]:
        objective.eval()
        random = StepRandom(seed=0, step=0, num_rows=512, purpose="evaluate")
        return metrics.summarise(objective(self.inputs(512, seed=10**6), random).sums)


def make_toy() -> Toy:
    tokens = TokenFacts(
        vocab_size=VOCAB_SIZE,
        mask_id=MASK,
        special_ids=(PAD, CLS, SEP, MASK),
        sep_id=SEP,
        continues_word_V=torch.zeros(VOCAB_SIZE, dtype=torch.bool),
    )
    toy = Toy(
        tokens,
        EncoderConfig(
            vocab_size=VOCAB_SIZE,
            embedding_size=32,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            max_position_embeddings=LONGEST,
        ),
    )
    ids_BL = toy.sentences(500, seed=10**7).input_ids_BL
    index = index_ids(
        [ids_BL[ids_BL != PAD]], vocab_size=VOCAB_SIZE, special_ids=tokens.special_ids, most=ids_BL.size
    )
    return dataclasses.replace(toy, tokens=dataclasses.replace(tokens, ngrams=index))


@pytest.fixture(scope="session")
def toy() -> Toy:
    return make_toy()


@pytest.fixture(scope="session")
def modern_toy() -> Toy:
    """The same with the modern backbone; every second layer sees a window."""
    toy = make_toy()
    encoder = dataclasses.replace(
        toy.encoder,
        backbone="modern",
        position_embedding_type="rotary",
        query_key_norm="rms",
        global_attention_every=2,
        local_attention_window=8,
    )
    return dataclasses.replace(toy, encoder=encoder)
