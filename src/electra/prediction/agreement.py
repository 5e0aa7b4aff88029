"""A model in fp32 -> the same model in the precision that was asked for, if it says the same in it.

What it says is compared on short texts that are made of its own vocabulary, always the same ones:

task        the answers of its ability: classes, tags, spans and choices are equal, numbers are near
detect      the probability of each token; and the most suspicious one is the same
fill        the best token for a gap, and its probability
score       the mean of each text, by all methods that the model has
embed       the vectors

Tokens count as the same if fp32 cannot tell them apart either. Near is what `tasks.precision` says. `corrupt`
is `fill` and `detect` one after the other: what it draws may differ by a token without being wrong. `choose`
compares what `score` says of some tokens.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from torch import nn

from electra.prediction.model import Model
from electra.prediction.pretrained import Discriminator, EnergyNetwork, Generator
from electra.prediction.windows import Reader
from electra.seeds import python_random
from electra.tasks.precision import Precision, PrecisionName, Ranking, choose, weights_in
from electra.text.spans import MASK
from electra.text.tokenizer import Tokenizer

NUM_TEXTS = 4
NUM_TOKENS = 12
"""Of a text; each half of one with a gap has as many."""
NUM_CANDIDATES = 5

Network = TypeVar("Network", Discriminator, Generator, EnergyNetwork)


def in_chosen_precision(model: Model, asked: PrecisionName) -> Model:
    """The model in the precision that was asked for, or chosen; its weights are converted."""
    device = model.reader.device
    chosen = choose(asked, device, modules_of(model), lambda precision: sayings(switched(model, precision)))
    return dataclasses.replace(
        switched(model, chosen.name), precision=chosen.name, precision_reason=chosen.reason
    )


def modules_of(model: Model) -> Iterator[nn.Module]:
    """All networks and heads."""
    if model.tuned is not None:
        yield model.tuned.model
    for part in (model.reader, model.discriminator, model.generator, model.energy):
        reader = part if part is None or isinstance(part, Reader) else part.reader
        if reader is not None and isinstance(reader.encoder, nn.Module):
            yield reader.encoder
        if part is not None and not isinstance(part, Reader):
            yield part.head


def switched(model: Model, precision: Precision) -> Model:
    """The model with networks that compute in a precision, on weights that are in it already."""
    generator = model.generator
    if generator is not None:
        table_VE = weights_in(generator.word_embeddings_VE, precision)
        generator = dataclasses.replace(generator, word_embeddings_VE=table_VE)
    return dataclasses.replace(
        model,
        reader=dataclasses.replace(model.reader, precision=precision),
        discriminator=_switched(model.discriminator, precision),
        generator=_switched(generator, precision),
        energy=_switched(model.energy, precision),
    )


def _switched(network: Network | None, precision: Precision) -> Network | None:
    if network is None:
        return None
    return dataclasses.replace(network, reader=dataclasses.replace(network.reader, precision=precision))


class MadeTexts:
    """One text after the other, of tokens that are drawn from those that begin a word."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
        ordinary = [token for token in range(tokenizer.vocab_size) if token not in special]
        continues_V = tokenizer.continues_word()
        self._tokenizer = tokenizer
        self._tokens = [token for token in ordinary if not continues_V[token]] or ordinary
        self._random = python_random(0, "precision")

    def draw(self, num_tokens: int) -> str:
        """The next one."""
        drawn = self._random.choices(self._tokens, k=num_tokens)
        return " ".join(self._tokenizer.decode(drawn).split())

    def request_like(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """A request with made texts in place of those in the example's lists, and with more of them."""

        def made(value: Any) -> Any:
            if isinstance(value, list):
                return [made(part) for part in value]
            if not isinstance(value, str):
                return value
            # What is one word stays one: it may be an item of a list of words.
            return self.draw(NUM_TOKENS if " " in value else 1) or value

        return {
            name: made(value * NUM_TEXTS) if isinstance(value, list) else value
            for name, value in example.items()
        }


def sayings(model: Model) -> dict[str, Any]:
    """What the model says of the texts, ability by ability."""
    made = MadeTexts(model.tokenizer)
    texts = [made.draw(NUM_TOKENS) for _ in range(NUM_TEXTS)]
    found: dict[str, Any] = {"embed": list(np.array(model.embed(texts), np.float32))}
    if model.discriminator is not None:
        found["detect"] = [suspicion_ranking(answer) for answer in model.detect(texts)]
    if model.generator is not None:
        gaps = [f"{text} {MASK} {made.draw(NUM_TOKENS)}" for text in texts]
        answers = model.fill(gaps, top=NUM_CANDIDATES)
        found["fill"] = [candidate_ranking(mask) for answer in answers for mask in answer["masks"]]
    if model.scorer.known:
        found["score"] = [answer["scores"] for answer in model.score(texts)]
    if model.tuned is not None and (ability := model.tuned.family.ability):
        found[ability.name] = model.ask(ability.name, **made.request_like(ability.example))
    return found


def suspicion_ranking(answer: dict[str, Any]) -> Ranking:
    """The tokens of a text by how probably they were replaced."""
    return Ranking({f"{token['start']} {token['text']}": token["replaced"] for token in answer["tokens"]})


def candidate_ranking(mask: dict[str, Any]) -> Ranking:
    """What could stand in a gap."""
    return Ranking({one["token"]: one["probability"] for one in mask["candidates"]})
