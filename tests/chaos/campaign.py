"""An attack on the commands: kills, faults, flipped bits. Nothing may be lost, or wrong and not noticed.

    python tests/chaos/campaign.py --seed 0 --out chaos        all of it, in minutes
    python tests/chaos/campaign.py --scale 0.1 --out chaos     a tenth of it
    python tests/chaos/campaign.py --seconds 600 --out chaos   what ten minutes are enough for, of every kind

Every attack has a random generator of its own, so that one that went wrong can be repeated alone:
`--only NUMBER`. The exit code is 1 if anything was lost.
"""

import argparse
import json
import math
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import faults
import flips
import kills
from jobs import Workshop
from kills import Outcome

Attack = Callable[[random.Random], Outcome]
JOBS = ("prepare", "pretrain", "finetune", "export")
DOORS = ("configuration", "tokenizer", "weights", "model folder", "minimal pairs")
DOORS += ("task sst2", "task conll2000", "task conllu", "task squad_v1")
VICTIMS = {"prepare": 9, "pretrain": 7, "finetune": 4, "export": 2, "pretrain_two": 3}
"""Each is killed four times."""


def attacks(workshop: Workshop, *, scale: float) -> Iterator[Attack]:
    """All attacks, each of them at least once."""

    def times(number: float) -> range:
        return range(max(1, round(scale * number)))

    for name, number in VICTIMS.items():
        yield from (partial(kills.kill, workshop, name) for _ in times(number))
    for name in JOBS:
        yield from (partial(kills.interrupt, workshop, name) for _ in times(4))
        yield from (partial(kills.pause, workshop, name) for _ in times(2))
        for kind, number in (("full", 4), ("broken", 4), ("slow", 1), ("clock", 1)):
            yield from (partial(faults.strike, workshop, name, kind) for _ in times(number))
    yield from (partial(kills.lose_rank, workshop) for _ in times(4))
    yield from (partial(kills.change_corpus, workshop) for _ in times(10))
    for artefact in flips.ARTEFACTS:
        yield from (partial(flips.flip, workshop, artefact) for _ in times(20))
    yield from (partial(read_changed, workshop, name, examples=len(times(2000))) for name in DOORS)


def read_changed(workshop: Workshop, name: str, rng: random.Random, *, examples: int) -> Outcome:
    """Many changed files at one door."""
    # It imports torch, which the other attacks leave to the processes they start.
    import fuzz

    doors = fuzz.doors(workshop.fresh(f"good-{name}"), workshop.job("finetune").reference / "final")
    door = next(door for door in doors if door.name == name)
    try:
        place = workshop.fresh(f"changed-{name}")
        examples, _ = fuzz.fuzz(door, place, rng, examples=examples, seconds=30)
    except Exception as error:
        return Outcome("changed files", name, 1, f"{type(error).__name__}: {error}"[:200])
    return Outcome("changed files", name, examples, "found")


def campaign(
    folder: Path,
    *,
    seed: int,
    scale: float,
    at_once: int,
    only: Sequence[int] = (),
    seconds: float = math.inf,
) -> tuple[list[tuple[int, Outcome]], int]:
    """Attack in a folder -> what came of each attack, by its number; how many the time was too short for."""
    end = time.monotonic() + seconds
    workshop = Workshop(folder)
    for name in VICTIMS:
        workshop.job(name)
    numbered = [pair for pair in enumerate(attacks(workshop, scale=scale)) if not only or pair[0] in only]
    # In an order in which every kind has had its turn whenever the time is over.
    random.Random(seed).shuffle(numbered)

    def in_time(number: int, attack: Attack) -> Outcome | None:
        return attack(random.Random(f"{seed} {number}")) if time.monotonic() < end else None

    outcomes = []
    with ThreadPoolExecutor(at_once) as pool:
        for number, future in [(number, pool.submit(in_time, number, attack)) for number, attack in numbered]:
            if (outcome := future.result()) is None:
                continue
            outcomes.append((number, outcome))
            if not outcome.is_good:
                print(f"{number}: {outcome.attack} of {outcome.target}: {outcome.verdict}", flush=True)
    return sorted(outcomes, key=lambda pair: pair[0]), len(numbered) - len(outcomes)


def table(outcomes: Sequence[tuple[int, Outcome]]) -> str:
    """Counts per attack and command, as Markdown."""
    counts: dict[tuple[str, str], Counter[str]] = {}
    for _, outcome in outcomes:
        row = counts.setdefault((outcome.attack, outcome.target), Counter())
        row["count"] += outcome.count
        row[outcome.verdict if outcome.is_good else "lost"] += 1
    columns = ("count", "same", "found", "harmless", "lost")
    lines = ["| attack | on | times | the same bits | found | harmless | lost |", "|" + " --- |" * 7]
    for (attack, target), row in counts.items():
        lines.append(f"| {attack} | {target} | " + " | ".join(str(row[column]) for column in columns) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the attacks")
    parser.add_argument("--at_once", type=int, default=2, help="attacks at the same time")
    parser.add_argument("--only", type=int, nargs="*", default=[], help="numbers of attacks to repeat")
    parser.add_argument("--seconds", type=float, default=math.inf, help="no attack is begun after these")
    parser.add_argument("--out", type=Path, default=Path("chaos"), help="folder of the report")
    given = parser.parse_args()
    # Whoever is killed leaves semaphores, which Python's own tracker removes and complains about.
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="electra-chaos-") as folder:
        options = {"seed": given.seed, "scale": given.scale, "at_once": given.at_once, "only": given.only}
        outcomes, left_out = campaign(Path(folder) / "workshop", **options, seconds=given.seconds)
        if given.only:
            shutil.copytree(folder, given.out / "workshop", dirs_exist_ok=True)
    lost = [(number, outcome) for number, outcome in outcomes if not outcome.is_good]
    seconds = time.monotonic() - began
    facts = f"seed {given.seed}, scale {given.scale}, {seconds:.0f} s, {platform.machine()}"
    report = f"{table(outcomes)}\n\n{len(outcomes)} attacks, {len(lost)} lost something ({facts}).\n"
    # Once more below the table, since of a long output the end is what remains.
    report += "".join(
        f"\n{number}: {outcome.attack} of {outcome.target}: {outcome.verdict}\n" for number, outcome in lost
    )
    if left_out:
        report += f"{left_out} attacks were left out for lack of time.\n"
    print(report)
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "report.md").write_text(report)
    records = [{"number": number, **vars(outcome)} for number, outcome in outcomes]
    (given.out / "report.json").write_text(json.dumps(records, indent=1))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
