"""What rewriting whole spans costs: processor time of a step, as a multiple of that of `electra`.

    OMP_NUM_THREADS=1 python benchmarks/spans.py [--size tiny] [--rows 32] [--length 128] [--rounds 8]

Forward and backward pass of random tokens, without the update; objectives take turns, and the median of each
counts. Processor time, so that other jobs on the machine matter little. The generator that decides how long
spans are ends each at every second token, as a trained one does where spans have two tokens in the mean.
"""

import argparse
import dataclasses
import math
import statistics
import time

import torch

from electra.model.sizes import GENERATOR_WIDTH, PRESETS, EncoderConfig
from electra.pretraining.config import GeneratorConfig, PretrainConfig, ReplacedSpanConfig
from electra.pretraining.masking import Inputs, MaskingConfig, StepRandom, TokenFacts
from electra.pretraining.objectives import build_objective

VOCABULARY = 8192
SPANS = MaskingConfig(strategy="span", mask_token_prob=1.0)
CONTESTANTS = {
    "electra": PretrainConfig(),
    "original": PretrainConfig(objective="replaced_span", masking=SPANS),
    "own": PretrainConfig(
        objective="replaced_span", masking=SPANS, replaced_span=ReplacedSpanConfig(length="own")
    ),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="tiny", choices=PRESETS)
    for name, value in (("rows", 32), ("length", 128), ("rounds", 8)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    encoder = EncoderConfig.preset(given.size, vocab_size=VOCABULARY)
    tokens = TokenFacts(
        vocab_size=VOCABULARY,
        mask_id=4,
        special_ids=(0, 2, 3, 4),
        sep_id=3,
        continues_word_V=torch.arange(VOCABULARY) % 5 == 0,
    )
    ids_BL = torch.randint(5, VOCABULARY, (given.rows, given.length))
    ids_BL[:, 0], ids_BL[:, -1] = 2, 3
    inputs = Inputs.of(ids_BL, torch.zeros_like(ids_BL), torch.full((given.rows,), given.length))
    generator = GeneratorConfig(width=GENERATOR_WIDTH[given.size])
    objectives = {
        name: build_objective(
            dataclasses.replace(config, generator=generator), encoder, tokens, seq_length=given.length, seed=0
        )
        for name, config in CONTESTANTS.items()
    }
    with torch.no_grad():
        # Logits are about 0: the sign of the end is as probable as all others together.
        objectives["own"].generator_head.bias[tokens.sep_id] = math.log(VOCABULARY)
    seconds: dict[str, list[float]] = {name: [] for name in objectives}
    for step in range(given.rounds + 1):
        for name, objective in objectives.items():
            random = StepRandom(seed=0, step=step, num_rows=given.rows)
            begin = time.process_time()
            masked = objective.mask(inputs, random)
            objective.train()(inputs, random, None, masked).loss.backward()
            objective.zero_grad(set_to_none=True)
            seconds[name].append(time.process_time() - begin)
    # Of the first one a part is making ready.
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    for name, median in medians.items():
        print(f"{name:<10} {median * 1000:8.1f} ms  {median / medians['electra']:.2f} x")


if __name__ == "__main__":
    main()
