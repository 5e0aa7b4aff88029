"""Disks that are full, broken or slow, and clocks that jump."""

import random
from dataclasses import replace
from pathlib import Path

import shim
from jobs import Job, Workshop, with_value
from kills import Outcome, finished, last_line

NAMES = {"full": "disk full", "broken": "disk error", "slow": "slow disk", "clock": "clock jumps"}


def strike(workshop: Workshop, name: str, kind: shim.Kind, rng: random.Random) -> Outcome:
    """A command meets a fault at a random operation; then the disk is well, and it is typed again."""
    job, out = in_one_process(workshop, name), workshop.fresh(f"{kind}-{name}-{rng.getrandbits(32):08x}")
    fails = kind in ("full", "broken")
    at = rng.randint(1, num_operations(workshop, name)) if fails else 0
    noted = workshop.folder / "logs" / f"{out.name}.struck"
    ended = job.start(out, fault=shim.Fault(kind, out.parent, noted, at=at, seed=rng.getrandbits(32))).end()
    # A fault that did not strike has shown nothing.
    strikes = int(noted.exists() or not fails)
    if "Traceback" in ended.said:
        return Outcome(NAMES[kind], name, strikes, f"a traceback at operation {at}: {last_line(ended.said)}")
    if ended.code and not fails:
        return Outcome(NAMES[kind], name, strikes, f"code {ended.code}: {last_line(ended.said)}")
    return Outcome(NAMES[kind], name, strikes, finished(job, out))


def in_one_process(workshop: Workshop, name: str) -> Job:
    """The job, all of whose files are written where the fault is: workers are other processes."""
    job = workshop.job(name)
    return replace(job, words=with_value(job.words, "workers", 1)) if name == "prepare" else job


def num_operations(workshop: Workshop, name: str) -> int:
    """What a command asks of the disk when nothing fails."""
    job, out = in_one_process(workshop, name), workshop.fresh(f"counted-{name}")

    def count(noted: Path) -> None:
        job.start(out, fault=shim.Fault("count", out.parent, noted)).end()

    return int(workshop.once(f"operations-{name}", count).read_text())
