"""One bit of one file is wrong: the command that reads it says so, or does what it does without it."""

import random
import shutil
import signal
import time
from pathlib import Path

from commands import Command, Ended
from jobs import Job, Workshop, essence, first_difference, with_value
from kills import Outcome, last_line

# Logs carry no checksum: a digit that changes in one stays changed, and nothing is computed from it.
LOGS = ("metrics.jsonl", "samples.jsonl")
ARTEFACTS = ("dataset", "run", "encoder", "model", "export")
TEXT = "the old river was fast"


def flip(workshop: Workshop, artefact: str, rng: random.Random) -> Outcome:
    """Copy an artefact, flip a bit of a file that is chosen by its kind, and use it."""
    place = workshop.fresh(f"flipped-{artefact}-{rng.getrandbits(32):08x}")
    whole, folder = _whole(workshop, artefact), place / artefact
    shutil.copytree(whole, folder)
    name = _any_of_any_kind(folder, rng)
    content = bytearray((folder / name).read_bytes())
    bit = rng.randrange(8 * len(content))
    content[bit // 8] ^= 1 << bit % 8
    (folder / name).write_bytes(content)
    verdict = _use(workshop, artefact, folder, place)
    shutil.rmtree(place)
    where = "" if verdict in ("found", "harmless") else f" (bit {bit} of {name})"
    return Outcome("bit flip", artefact, 1, verdict + where)


def _any_of_any_kind(folder: Path, rng: random.Random) -> str:
    """Kinds are drawn first: of a hundred files ninety are shards."""
    kinds: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size and "tensorboard" not in path.parts:
            kinds.setdefault(path.name.split(".", 1)[-1], []).append(str(path.relative_to(folder)))
    return rng.choice(kinds[rng.choice(sorted(kinds))])


def _whole(workshop: Workshop, artefact: str) -> Path:
    if artefact == "dataset":
        return workshop.job("prepare").reference
    if artefact == "encoder":
        return workshop.job("pretrain").reference / "final"
    if artefact == "model":
        return workshop.job("finetune").reference / "final"
    if artefact == "export":
        return workshop.job("export").reference
    return _half_a_run(workshop)


def _half_a_run(workshop: Workshop) -> Path:
    """A run that was killed after several checkpoints."""

    def half(run: Path) -> None:
        command = workshop.job("pretrain").start(run)
        while command.is_running() and not (run / "checkpoints" / "step-00000012").exists():
            time.sleep(0.01)
        command.signal(signal.SIGKILL)
        command.end()

    return workshop.once("half", half)


def _use(workshop: Workshop, artefact: str, folder: Path, place: Path) -> str:
    if artefact == "run":
        job = workshop.job("pretrain")
        ended, expected, found = job.finish(folder), job.expected, folder
    elif artefact == "dataset":
        words = with_value(_two_steps(workshop), "data", folder)
        ended = Job("", words, folder, 0.0).finish(place / "out")
        expected, found = essence(_two_steps_undisturbed(workshop)), place / "out"
    else:
        return _read(workshop, artefact, folder, place)
    if "Traceback" in ended.said or ended.code < 0:
        return f"code {ended.code}: {last_line(ended.said)}"
    if ended.code:
        return "found"
    return first_difference(_without_logs(expected), _without_logs(essence(found))) or "harmless"


def _without_logs(found: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in found.items() if not name.endswith(LOGS)}


def _two_steps(workshop: Workshop) -> list[str]:
    return with_value(workshop.job("pretrain").words, "train.steps", 2)


def _two_steps_undisturbed(workshop: Workshop) -> Path:
    words = _two_steps(workshop)
    return workshop.once("two-steps", lambda out: Job("", words, out, 0.0).finish(out))


def _read(workshop: Workshop, artefact: str, folder: Path, place: Path) -> str:
    whole = _whole(workshop, artefact)
    expected = workshop.once(f"said-{artefact}", lambda out: _say(whole, artefact, out, place))
    ended = _say(folder, artefact, place / "said", place)
    if "Traceback" in ended.said or ended.code < 0:
        return f"code {ended.code}: {last_line(ended.said)}"
    if ended.code:
        return "found"
    return "harmless" if (place / "said").read_bytes() == expected.read_bytes() else "it says something else"


def _say(model: Path, artefact: str, out: Path, place: Path) -> Ended:
    """Have a model judge or classify a text."""
    if artefact == "encoder":
        words = ["score", f"--text=[{TEXT}]", "--by=both", "--tokens=show"]
    else:
        (place / "texts.txt").write_text(TEXT)
        words = ["predict", f"--input={place / 'texts.txt'}"]
    more = [f"--model={model}", f"--out={place / 'out.jsonl'}", "--precision=fp32"]
    ended = Command([*words, *more], place / "read.log").end()
    if not ended.code:
        (place / "out.jsonl").rename(out)
    return ended
