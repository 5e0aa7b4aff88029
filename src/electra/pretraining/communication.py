"""Weights, devices and the link between them -> what devices send in a step, and how long they wait for it.

A small model of what `train/distributed.py` does, for `electra plan`. P devices form a ring, in which each
sends to the next one; S bytes are

    all-reduced   in 2 (P - 1) messages of S / P bytes each: reduce-scatter, then all-gather
    gathered      in P - 1 messages of S / P bytes; reduce-scattered in as many

Gradients and weights are float32, also where products are not. With ddp, gradients are all-reduced once a
step, in buckets, while the backward pass of the last micro-batch goes on; those of the embeddings are ready
when it ends, and are waited for. With fsdp, each micro-batch gathers the layers' weights twice, for its
forward and for its backward pass, and all others once; gradients are reduce-scattered in the last one.
Weights are gathered while the layer before computes, but for the first ones.

Left out: trees, which NCCL prefers to rings for short messages; devices that wait for the slowest one.
"""

import math
from dataclasses import dataclass

from electra.train.distributed import Parallel

_FLOAT = 4
BUCKET_BYTES = 25 << 20
"""DDP's, by default."""
BACKWARD_SHARE = 2 / 3
"""Of the time of a micro-batch: two of three matrix products are those of the backward pass."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """What joins the devices: the slowest part of their ring."""

    bandwidth: float
    """Bytes per second, in one direction."""
    latency: float
    """Seconds that a message takes beside its bytes, on the mean of all hops."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Numbers of weights, by when their gradients are ready and how FSDP gathers them."""

    layers: int
    """In the encoders' layers."""
    num_layers: int
    embeddings: int
    rest: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.layers + self.embeddings + self.rest


@dataclass(frozen=True, kw_only=True)
class Communication:
    """Of one device in one step."""

    sent: float
    """Bytes."""
    seconds: float
    """As if nothing were computed at the same time."""
    waited: float
    """Those of them in which it computes nothing."""


NONE = Communication(sent=0.0, seconds=0.0, waited=0.0)
"""Of a device on its own."""


def communication(
    weights: Weights,
    *,
    devices: int,
    link: Link,
    parallel: Parallel,
    computing: float,
    micro_batches: int,
    overlaps: bool,
) -> Communication:
    """What is sent in a step that computes for `computing` seconds.

    Without `overlaps` all of it is waited for: on a CPU the cores that would compute copy the bytes.
    """
    if devices == 1:
        return NONE
    # Messages of each kind cross every link of the ring at the same time.
    hops, share = devices - 1, (devices - 1) / devices

    def seconds(sent: float, calls: int) -> float:
        return sent / link.bandwidth + calls * hops * link.latency

    outside = weights.embeddings + weights.rest
    if parallel == "ddp":
        first, last = weights.layers + weights.rest, weights.embeddings
        buckets = math.ceil(first * _FLOAT / BUCKET_BYTES)
        early, early_calls = 2 * share * first * _FLOAT, 2 * buckets
        late, late_calls = 2 * share * last * _FLOAT, 2
        hidden = BACKWARD_SHARE * computing / micro_batches
    else:
        # Each micro-batch gathers; the last one also scatters what the layers and the others have summed up.
        gathers = 2 * micro_batches
        early, early_calls = (
            (gathers + 1) * share * weights.layers * _FLOAT,
            (gathers + 1) * weights.num_layers,
        )
        late, late_calls = (micro_batches + 1) * share * outside * _FLOAT, micro_batches + 1
        hidden = computing
    whole = seconds(early + late, early_calls + late_calls)
    waited = max(0.0, seconds(early, early_calls) - hidden) + seconds(late, late_calls)
    return Communication(sent=early + late, seconds=whole, waited=waited if overlaps else whole)
