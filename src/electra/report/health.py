"""A run -> where each metric stands now, in which range it is healthy, and why.

The ranges are those of replaced token detection that works. What several metrics mean together, and what to
do about it, is said by `diagnosis.py`, which takes the ranges from here.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from electra.report.runs import OF_LAYER, Event, RunRecord, number

Word = Literal["healthy", "low", "high", "early"]

EARLY_STEPS = 500
"""Before this step nothing is judged: every run starts at chance."""
TAIL_SHARE = 0.05
"""Share of the training records whose mean is the value now, for metrics without a held-out value."""


@dataclass(frozen=True, kw_only=True)
class Range:
    """The healthy values of a metric."""

    key: str
    low: float | None
    high: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The value of a metric now."""

    value: float | None
    source: Literal["held out", "training", ""]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A metric beside its healthy range."""

    range: Range
    now: Observation
    word: Word


def now(run: RunRecord, key: str) -> Observation:
    """The latest held-out value, or else the mean of the last training records."""
    for record in reversed(run.valid):
        if key in record:
            return Observation(value=record[key], source="held out")
    values = [record[key] for record in run.train if key in record]
    if not values:
        return Observation(value=None, source="")
    tail = values[-max(1, round(len(values) * TAIL_SHARE)) :]
    return Observation(value=float(np.mean(tail)), source="training")


def last(run: RunRecord, key: str) -> float | None:
    """How far a run has come on an axis."""
    return max((record[key] for record in (*run.train, *run.valid) if key in record), default=None)


def judge_metrics(run: RunRecord) -> list[Verdict]:
    """The verdict on every metric that the run has measured."""
    verdicts = []
    for healthy in healthy_ranges(run):
        reading = now(run, healthy.key)
        if reading.value is not None:
            verdicts.append(Verdict(range=healthy, now=reading, word=_word(run, healthy, reading.value)))
    return verdicts


def _word(run: RunRecord, healthy: Range, value: float) -> Word:
    if (last(run, "step") or 0) < EARLY_STEPS:
        return "early"
    if healthy.low is not None and value < healthy.low:
        return "low"
    if healthy.high is not None and value > healthy.high:
        return "high"
    return "healthy"


def healthy_ranges(run: RunRecord) -> list[Range]:
    """The ranges that apply to a run: some follow from its config or from its other metrics."""
    return [rule(run) for rule in _RULES]


def _auc(_run: RunRecord) -> Range:
    reason = (
        "0.5 is chance. A plateau near it is normal in the first steps; later: train longer, or lower the "
        "learning rate"
    )
    return Range(key="discriminator_auc", low=0.6, high=None, reason=reason)


def _recall(_run: RunRecord) -> Range:
    reason = (
        "near 0 the discriminator calls everything original while its loss still falls. Cures: lower "
        "learning rate, more masking, smaller generator"
    )
    # It says “replaced” above a probability of one half, which few of the rare replaced tokens reach early:
    # the recipe `minutes` has 0.014 after 4 minutes with an AUC of 0.66, 0.088 and 0.76 after 30.
    return Range(key="discriminator_recall", low=0.01, high=None, reason=reason)


def _precision(_run: RunRecord) -> Range:
    reason = "it says “replaced” above a probability of one half, so it should be right at least that often"
    return Range(key="discriminator_precision", low=0.5, high=None, reason=reason)


def _discriminator_loss(run: RunRecord) -> Range:
    share = now(run, "replaced_fraction").value
    base = None
    if share is not None and 0 < share < 1:
        base = -share * math.log(share) - (1 - share) * math.log(1 - share)
    reason = "the loss of giving every token the replaced fraction as its probability, without looking at it"
    return Range(key="discriminator_loss", low=None, high=base, reason=reason)


def _replaced_fraction(run: RunRecord) -> Range:
    mask_prob = number(run.config.get("masking.mask_prob")) or 0.15
    if run.config.get("objective") == "single_pass":
        share = number(run.config.get("single_pass.replace_prob")) or 0.1
        reason = (
            f"of the {share:.0%} that hold a proposal, those that differ from the original. Too few: the "
            "corpus is small or repeats itself, so that neighbours give the token away"
        )
        return Range(key="replaced_fraction", low=share / 3, high=share, reason=reason)
    reason = (
        f"of the {mask_prob:.0%} that are masked, those the generator did not guess. Too few: the generator "
        "is too strong, or nothing is sampled, and the discriminator has nothing to find"
    )
    # What is written may be longer than what was masked.
    is_bounded = run.config.get("replaced_span.length") != "own"
    high = mask_prob if is_bounded else None
    return Range(key="replaced_fraction", low=mask_prob / 3, high=high, reason=reason)


def _generator_accuracy(run: RunRecord) -> Range:
    reason = (
        "below, it knows little more than which tokens are frequent (the unigram plateau) and its "
        "replacements are obvious; above, it leaves too little to find: make it smaller"
    )
    if now(run, "masked_accuracy").value is not None:
        # The most frequent token is right at about 5 % of the masks.
        return Range(key="masked_accuracy", low=0.08, high=0.75, reason=reason)
    return Range(key="mlm_accuracy", low=0.15, high=0.75, reason=reason)


def _states_rank(_run: RunRecord) -> Range:
    reason = (
        "in how many directions the last hidden states differ. Below, they say one thing of every token, and "
        "a task learns little from them. Cures: a loss that names tokens, output_bias, a lower learning rate"
    )
    return Range(key="states_rank", low=4.0, high=None, reason=reason)


def _states_cosine(_run: RunRecord) -> Range:
    reason = "of two states; near 1 what differs between tokens is small beside what they have in common"
    return Range(key="states_cosine", low=None, high=0.95, reason=reason)


def layer_table(run: RunRecord) -> list[tuple[str, float, float]]:
    """(layer, effective rank, mean cosine) at the last evaluation that measured them, from below."""
    for record in reversed(run.valid):
        if "states_rank" in record:
            below = {int(found[2]) for key in record if (found := OF_LAYER.fullmatch(key))}
            names = {str(number): f"_layer_{number}" for number in sorted(below)} | {"last": ""}
            return [
                (
                    layer,
                    record.get(f"states_rank{suffix}", math.nan),
                    record.get(f"states_cosine{suffix}", math.nan),
                )
                for layer, suffix in names.items()
            ]
    return []


def _gradient_norm(run: RunRecord) -> Range:
    clip = next((number(v) for key, v in run.config.items() if key.split(".")[-1] == "clip_norm"), None)
    clip = clip or 1.0
    reason = (
        f"clipped at {clip:g}. Far above, every step is cut short: lower the learning rate; near 0 nothing "
        "moves"
    )
    return Range(key="gradient_norm", low=0.01, high=10 * clip, reason=reason)


def _mfu(_run: RunRecord) -> Range:
    reason = "a lower share means waiting: larger micro-batch, shorter padding, more prefetch"
    return Range(key="mfu", low=0.25, high=None, reason=reason)


_RULES: tuple[Callable[[RunRecord], Range], ...] = (
    _auc,
    _recall,
    _precision,
    _discriminator_loss,
    _replaced_fraction,
    _generator_accuracy,
    _states_rank,
    _states_cosine,
    _gradient_norm,
    _mfu,
)

Severity = Literal["bad", "watch", "note"]
_ROUTINE = {"saved", "evaluated", "pruned", "started", "finished"}
_SEVERITY: dict[str, Severity] = {
    "collapse": "bad",
    "rolled_back": "bad",
    "stopped": "bad",
    "skipped_update": "watch",
    "damaged_checkpoint": "watch",
    "out_of_memory": "watch",
    "disk_full": "watch",
}


def severity(event: Event) -> Severity:
    """How much an event matters; an unknown one is a note."""
    return _SEVERITY.get(event.event, "note")


def noteworthy(run: RunRecord) -> list[Event]:
    """The events worth marking on the curves: all but the routine ones."""
    return [event for event in run.events if event.event not in _ROUTINE]
