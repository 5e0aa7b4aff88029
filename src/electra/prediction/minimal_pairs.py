"""A model and minimal pairs -> how often it prefers the acceptable text, by phenomenon, without any training.

    found = score_minimal_pairs(electra.load("RUN"), "FOLDER", by="detection", limit=200)
    found.accuracy, found.phenomena["irregular-verb"].accuracy

A model that knows nothing has 50 %. A tie counts half. The accuracy of all phenomena is the mean of theirs.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from electra import files
from electra.prediction.model import Model
from electra.prediction.scoring import By, Method, check_gaps
from electra.tasks.data.minimal_pairs import TASK, MinimalPair, load_minimal_pairs

RESULTS = f"{TASK}.json"
"""In a run's folder, where its report finds them."""


@dataclass(frozen=True, kw_only=True)
class Phenomenon:
    """How often the model prefers the acceptable text of a pair."""

    accuracies: Mapping[Method, float]
    ties: Mapping[Method, int]
    """Pairs whose texts have the same score; each counts half."""
    num_pairs: int
    num_unknown: int
    """Pairs in which a token is unknown to the vocabulary."""

    @property
    def accuracy(self) -> float:
        """By the first of the methods."""
        return next(iter(self.accuracies.values()))


@dataclass(frozen=True, kw_only=True)
class MinimalPairScores:
    """The result for all phenomena."""

    phenomena: Mapping[str, Phenomenon]
    methods: tuple[Method, ...]
    """As they were computed; `accuracy` is by the first of them."""
    data_sha256: str
    """Of all pairs: results can be compared where it is the same."""
    limit: int | None = None

    @property
    def accuracies(self) -> dict[Method, float]:
        """Method -> the mean of the accuracies of all phenomena."""
        return {
            method: float(np.mean([one.accuracies[method] for one in self.phenomena.values()]))
            for method in self.methods
        }

    @property
    def accuracy(self) -> float:
        """By the first method: detection, if the model has a discriminator."""
        return self.accuracies[self.methods[0]]

    @property
    def num_pairs(self) -> int:
        """Of all phenomena."""
        return sum(one.num_pairs for one in self.phenomena.values())

    def content(self, *, model: str, data: str) -> dict[str, Any]:
        """As plain data, for a file."""
        return {
            "kind": TASK,
            "model": model,
            "data": data,
            "data_sha256": self.data_sha256,
            "limit": self.limit,
            "methods": list(self.methods),
            "pairs": self.num_pairs,
            "accuracy": self.accuracies,
            "phenomena": {
                name: {
                    "pairs": one.num_pairs,
                    "unknown": one.num_unknown,
                    "ties": dict(one.ties),
                    "accuracy": dict(one.accuracies),
                }
                for name, one in self.phenomena.items()
            },
        }

    def write(self, path: Path, *, model: str, data: str) -> None:
        """Write a JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, self.content(model=model, data=data))


def score_minimal_pairs(
    model: Model,
    data: str | Path,
    *,
    by: By = "auto",
    limit: int | None = None,
    on_phenomenon: Callable[[str, float], object] = lambda _name, _done: None,
) -> MinimalPairScores:
    """Score the pairs of a file or folder; `limit`: pairs of each phenomenon, always the same ones.

    `on_phenomenon` is called before each one, with its name and the share of them that is done.
    """
    # Before the files are read: the model may not have the networks.
    model.need_scorer()
    methods = model.scorer.methods(by)
    phenomena = load_minimal_pairs(data, limit=limit)
    digest = hashlib.sha256()
    for name, pairs in phenomena.items():
        check_gaps([f"{pair.good} {pair.bad}" for pair in pairs], [pair.where for pair in pairs])
        digest.update(repr([name, [pair[:2] for pair in pairs]]).encode())
    found: dict[str, Phenomenon] = {}
    for name, pairs in phenomena.items():
        on_phenomenon(name, len(found) / len(phenomena))
        found[name] = score_phenomenon(model, pairs, by=by)
    return MinimalPairScores(phenomena=found, methods=methods, data_sha256=digest.hexdigest(), limit=limit)


def score_phenomenon(model: Model, pairs: Sequence[MinimalPair], *, by: By) -> Phenomenon:
    """Compare the texts of each pair by their sums."""
    texts_ids = model.tokenizer.encode([text for pair in pairs for text in (pair.good, pair.bad)]).split()
    accuracies: dict[Method, float] = {}
    ties: dict[Method, int] = {}
    for method, sums in model.scorer.sums(texts_ids, by=by).items():
        # A text without any token that the tokenizer keeps is as good as nothing.
        known = np.nan_to_num(sums, nan=-np.inf)
        good, bad = known[::2], known[1::2]
        ties[method] = int((good == bad).sum())
        accuracies[method] = (int((good > bad).sum()) + ties[method] / 2) / len(pairs)
    is_unknown = np.array([(ids_T == model.tokenizer.unk_id).any() for ids_T in texts_ids])
    return Phenomenon(
        accuracies=accuracies,
        ties=ties,
        num_pairs=len(pairs),
        num_unknown=int((is_unknown[::2] | is_unknown[1::2]).sum()),
    )
