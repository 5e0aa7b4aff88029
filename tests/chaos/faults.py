"""Disks that are full, broken or slow, and clocks that jump."""

import random
from pathlib import Path

import shim
from jobs import Workshop
from kills import Outcome, finished, last_line

NAMES = {"full": "disk full", "broken": "disk error", "slow": "slow disk", "clock": "clock jumps"}


def strike(workshop: Workshop, name: str, kind: shim.Kind, rng: random.Random) -> Outcome:
    """A command meets a fault at a random operation; then the disk is well, and it is typed again."""
    job, out = workshop.job(name), workshop.fresh(f"{kind}-{name}-{rng.getrandbits(32):08x}")
    at = rng.randint(1, num_operations(workshop, name)) if kind in ("full", "broken") else 0
    ended = job.start(out, fault=shim.Fault(kind, out.parent, at=at, seed=rng.getrandbits(32))).end()
    if "Traceback" in ended.said:
        return Outcome(NAMES[kind], name, 1, f"a traceback at operation {at}: {last_line(ended.said)}")
    if ended.code and kind in ("slow", "clock"):
        return Outcome(NAMES[kind], name, 1, f"code {ended.code}: {last_line(ended.said)}")
    return Outcome(NAMES[kind], name, 1, finished(job, out))


def num_operations(workshop: Workshop, name: str) -> int:
    """What a command asks of the disk when nothing fails."""
    job, out = workshop.job(name), workshop.fresh(f"counted-{name}")

    def count(noted: Path) -> None:
        job.start(out, fault=shim.Fault("count", out.parent, noted=noted)).end()

    return int(workshop.once(f"operations-{name}", count).read_text())
