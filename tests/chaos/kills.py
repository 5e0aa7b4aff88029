"""Commands that are killed, stopped or told to end at any moment, and typed again until they are done."""

import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from commands import Ended
from electra.text.quarantine import QUARANTINE
from jobs import Job, Workshop, with_value

KILLS_A_VICTIM = 4
PAUSE_SECONDS = 0.2
LINES_SHOWN = 30


@dataclass
class Outcome:
    """What one attack came to."""

    attack: str
    target: str
    count: int
    """Kills that hit, bits that flipped, faults that struck."""
    verdict: str
    """`same`, `found`, `harmless`, or what went wrong: a line, and below it what was seen of it."""

    @property
    def is_good(self) -> bool:
        return self.verdict in ("same", "found", "harmless")


def kill(workshop: Workshop, name: str, rng: random.Random, *, times: int = KILLS_A_VICTIM) -> Outcome:
    """`kill -9` of all processes of a command, several times at random moments, then let it end."""
    job, out = workshop.job(name), workshop.fresh(f"killed-{name}-{rng.getrandbits(32):08x}")
    hits, within = 0, job.seconds
    while hits < times:
        command = job.start(out)
        command.wait(rng.uniform(0.0, within))
        command.signal(signal.SIGKILL)
        ended = command.end()
        if ended.was_killed:
            hits += 1
            continue
        if wrong := problem(job, out, ended):
            return Outcome("kill -9", name, hits, wrong)
        # It was done before: once more from the beginning, and sooner, since a rest takes less time.
        within *= 0.7
        shutil.rmtree(out)
    return Outcome("kill -9", name, hits, finished(job, out))


def interrupt(workshop: Workshop, name: str, rng: random.Random) -> Outcome:
    """SIGTERM or SIGINT at a random moment: it says so, and the same command goes on."""
    job, out = workshop.job(name), workshop.fresh(f"interrupted-{name}-{rng.getrandbits(32):08x}")
    command = job.start(out)
    command.wait(rng.uniform(0.0, job.seconds))
    # As a terminal does: once, to all processes of the command.
    command.signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
    ended = command.end()
    if "Traceback" in ended.said:
        return Outcome("interruption", name, 1, f"a traceback: {last_line(ended.said)}")
    return Outcome("interruption", name, 1, finished(job, out))


def pause(workshop: Workshop, name: str, rng: random.Random) -> Outcome:
    """SIGSTOP at a random moment and SIGCONT after it: nothing was to be noticed."""
    job, out = workshop.job(name), workshop.fresh(f"paused-{name}-{rng.getrandbits(32):08x}")
    command = job.start(out)
    command.wait(rng.uniform(0.0, job.seconds))
    command.signal(signal.SIGSTOP)
    time.sleep(PAUSE_SECONDS)
    command.signal(signal.SIGCONT)
    ended = command.end()
    if ended.code:
        return Outcome("pause", name, 1, f"code {ended.code}: {last_line(ended.said)}")
    return Outcome("pause", name, 1, job.difference(out) or "same")


def lose_rank(workshop: Workshop, rng: random.Random) -> Outcome:
    """One of two processes dies: the other ends too, and both go on together."""
    job, out = workshop.job("pretrain_two"), workshop.fresh(f"lost-{rng.getrandbits(32):08x}")
    command = job.start(out)
    command.wait(rng.uniform(0.0, job.seconds))
    command.signal(signal.SIGKILL, rank=rng.randrange(2))
    ended = command.end()
    if "it hung" in ended.said:
        return Outcome("lost rank", "pretrain_two", 1, "the other process hung")
    return Outcome("lost rank", "pretrain_two", 1, finished(job, out))


def change_corpus(workshop: Workshop, rng: random.Random) -> Outcome:
    """A file of the corpus grows, shrinks or goes while it is read: what was made is named, or refused."""
    job = workshop.job("prepare")
    place = workshop.fresh(f"changed-{rng.getrandbits(32):08x}")
    corpus, out = place / "corpus", place / "data"
    shutil.copytree(workshop.folder / "corpus", corpus)
    words = with_value(job.words, "corpus", corpus)
    changed = Job("prepare", words, job.reference, job.seconds)
    command = changed.start(out)
    command.wait(rng.uniform(0.0, job.seconds))
    victim = rng.choice(sorted(corpus.iterdir()))
    rng.choice(CHANGES)(victim)
    ended = command.end()
    if "Traceback" in ended.said:
        return Outcome("changed corpus", "prepare", 1, f"a traceback: {last_line(ended.said)}")
    if ended.code:
        return Outcome("changed corpus", "prepare", 1, "found")
    # It may have read the file before or after; it must not have made something that is neither.
    if changed.difference(out) == "":
        return Outcome("changed corpus", "prepare", 1, "harmless")
    # Or it says that the file changed under its hands, and is some of both.
    named = (out / QUARANTINE).read_text(encoding="utf-8").splitlines()
    if any(victim.name in line and "changed while" in line for line in named):
        return Outcome("changed corpus", "prepare", 1, "found")
    after = place / "after"
    undisturbed = changed.finish(after)
    same = not undisturbed.code and not Job("prepare", words, after, 0.0).difference(out)
    return Outcome("changed corpus", "prepare", 1, "harmless" if same else f"neither ({victim.name})")


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n\nthe new river and the old model.\n")


def _shrink(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


CHANGES: tuple[Callable[[Path], None], ...] = (_grow, _shrink, Path.unlink)


def finished(job: Job, out: Path) -> str:
    """Type it again and let it end: `same`, or what is wrong, which is left to be looked at."""
    if wrong := problem(job, out, job.finish(out)):
        return wrong
    shutil.rmtree(out)
    return "same"


def problem(job: Job, out: Path, ended: Ended) -> str:
    """What is wrong with a command that ended, or with what it made; empty if nothing is."""
    difference = job.difference(out)
    # Some commands refuse to write over what is whole.
    if ended.code and not ("exists" in ended.said and not difference):
        return f"code {ended.code}: {last_line(ended.said)}"
    return difference


def last_line(said: str) -> str:
    """The last line that a command said, and below it those before: CI keeps nothing but what is printed."""
    lines = [line for line in said.splitlines() if line.strip()] or ["(it said nothing)"]
    return "\n    ".join(line[:200] for line in (lines[-1], *lines[-LINES_SHOWN:-1]))
