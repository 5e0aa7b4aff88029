"""The commands under attack, and what each must leave behind: the same bits, whatever happened on the way."""

import gzip
import hashlib
import json
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from commands import Command, Ended
from shim import Fault

SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"
WORDS = SENTENCE.split()
# Times, paths, machines: what differs between two runs of the same command that nobody disturbed.
CHANGING = {".lock", "config.yaml", "environment.json", "manifest.json", "report.html", "state.json"}
COMPARED_SCORES = ("splits", "history", "median_seed")
TIMED = ("seconds", "tokens_per_second", "mfu", "time")


@dataclass(frozen=True)
class Job:
    """A command that makes a folder."""

    name: str
    words: Sequence[str]
    """Without --out."""
    reference: Path
    """What it made when nobody disturbed it."""
    seconds: float
    """How long that took."""
    ranks: int = 1

    def start(self, out: Path, *, fault: Fault | None = None) -> Command:
        return Command([*self.words, f"--out={out}"], _log_of(out), ranks=self.ranks, fault=fault)

    def finish(self, out: Path) -> Ended:
        """Type the command again, as a person would, and let it end."""
        return self.start(out).end()

    @cached_property
    def expected(self) -> dict[str, Any]:
        return essence(self.reference)

    def difference(self, out: Path) -> str:
        """The first way in which a folder is not what it should be; empty if there is none."""
        if not out.is_dir():
            return f"{out.name} is not there"
        return first_difference(self.expected, essence(out))


def first_difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """A file that one has and the other has not, or not the same."""
    for name in sorted({*expected, *found}):
        if name not in found:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} should not be there"
        if expected[name] != found[name]:
            return f"{name} differs{_shown(expected[name], found[name])}"
    return ""


def _shown(expected: Any, found: Any) -> str:
    """Two files that are read for their content: the first record in which they part."""
    if isinstance(expected, list):
        pairs = [pair for pair in zip(expected, found, strict=False) if pair[0] != pair[1]]
        expected, found = pairs[0] if pairs else (f"{len(expected)} records", f"{len(found)} records")
    elif isinstance(expected, str):
        return ""
    return f"\n    {str(expected)[:500]}\n    {str(found)[:500]}"


def essence(folder: Path) -> dict[str, Any]:
    """All of a folder that must not depend on when, where and in how many pieces it was made."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or "tensorboard" in path.parts:
            continue
        if path.name == "metrics.jsonl":
            found[name] = _learned(path)
        elif path.name == "scores.json":
            found[name] = {key: json.loads(path.read_bytes()).get(key) for key in COMPARED_SCORES}
        elif path.name == "README.md":
            # A model card has the folder's own name as its title.
            found[name] = path.read_text().replace(f"# {folder.name}\n", "# FOLDER\n")
        elif path.name not in CHANGING:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def _learned(metrics: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in metrics.read_text().splitlines()]
    kept = [record for record in records if record["kind"] in ("train", "valid")]
    return [{key: value for key, value in record.items() if key not in TIMED} for record in kept]


def _log_of(out: Path) -> Path:
    return out.parent / "logs" / f"{out.name}.log"


class Workshop:
    """A folder with a corpus, and all that the commands make of it when nobody disturbs them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._jobs: dict[str, Job] = {}
        self._making = threading.RLock()
        # The first command also starts the server of the others.
        Command(["--version"], folder / "logs" / "first.log").end()
        write_corpus(folder / "corpus")
        write_sentences(folder / "SST-2")

    def fresh(self, name: str) -> Path:
        """A place for one attempt."""
        place = self.folder / "attempts" / name
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def job(self, name: str) -> Job:
        """One of the jobs, with its reference made when it is first asked for."""
        with self._making:
            if name not in self._jobs:
                self._jobs[name] = self._make(name)
            return self._jobs[name]

    def once(self, name: str, make: Callable[[Path], object]) -> Path:
        """What several attacks compare with, made by the first of them."""
        path = self.folder / "references" / name
        with self._making:
            if not path.exists():
                make(path)
        return path

    def _make(self, name: str) -> Job:
        words, ranks = getattr(self, f"_{name}")(), 2 if name == "pretrain_two" else 1
        out = self.folder / "references" / name
        began = time.monotonic()
        ended = Command([*words, f"--out={out}"], _log_of(out), ranks=ranks).end()
        if ended.code:
            raise RuntimeError(f"{name} failed undisturbed:\n{ended.said}")
        return Job(name, words, out, time.monotonic() - began, ranks)

    def _prepare(self) -> list[str]:
        keys = {"vocab_size": 300, "seq_length": 32, "valid_fraction": 0.2, "workers": 2}
        return ["prepare", f"--corpus={self.folder / 'corpus'}", *_words(keys)]

    def _pretrain(self, **more: Any) -> list[str]:
        keys = {
            "data": self.job("prepare").reference,
            "model.size": "tiny",
            "model.hidden_size": 32,
            "model.embedding_size": 16,
            "model.intermediate_size": 64,
            "generator.width": 0.5,
            "train.steps": 24,
            "train.batch_size": 8,
            # Numbers are compared: what `auto` chooses depends on the processor and its neighbours.
            "train.precision": "fp32",
            "train.cores": 1,
            "train.threads": 1,
            "checkpoint.save_every": 4,
            "log.log_every": 1,
            "log.evaluate_every": 10,
            "valid_rows": 16,
        }
        return ["pretrain", *_words({**keys, **more})]

    def _pretrain_two(self) -> list[str]:
        return self._pretrain(**{"train.steps": 16})

    def _finetune(self) -> list[str]:
        keys = {
            "model": self.job("pretrain").reference / "final" / "discriminator",
            "task": "sst2",
            "data": self.folder / "SST-2",
            "seeds": 2,
            "train.epochs": 2,
            "train.batch_size": 8,
            "train.precision": "fp32",
            "train.cores": 1,
            "train.threads": 1,
            "checkpoint.save_every": 3,
            "log.log_every": 1,
        }
        return ["finetune", *_words(keys)]

    def _export(self) -> list[str]:
        return ["export", f"--model={self.job('finetune').reference}", "--to=transformers"]


def with_value(words: Sequence[str], key: str, value: object) -> list[str]:
    """A command with another value of a key."""
    return [*(word for word in words if not word.startswith(f"--{key}=")), f"--{key}={value}"]


def _words(keys: dict[str, Any]) -> list[str]:
    return [f"--{key}={value}" for key, value in keys.items()]


def write_corpus(folder: Path) -> None:
    """Files of several kinds, enough for a dozen shards of the campaign's size."""
    rng = random.Random(0)

    def text(size: int) -> str:
        return " ".join(rng.choices(WORDS, k=size)) + "."

    folder.mkdir(parents=True)
    for number in range(6):
        (folder / f"plain-{number}.txt").write_text("\n\n".join(text(40) for _ in range(120)))
    lines = [json.dumps({"text": text(50)}) for _ in range(200)]
    (folder / "lines.jsonl").write_text("\n".join(lines))
    (folder / "packed.txt.gz").write_bytes(gzip.compress("\n\n".join(text(40) for _ in range(120)).encode()))


def write_sentences(folder: Path) -> None:
    """Sentences that are positive if they say `fast`."""
    rng = random.Random(1)
    folder.mkdir(parents=True)
    for split, size in (("train", 64), ("dev", 24)):
        lines = ["sentence\tlabel"]
        for number in range(size):
            words = [word for word in rng.choices(WORDS, k=8) if word != "fast"]
            lines.append(" ".join([*words, "fast" if number % 2 else "water"]) + f"\t{number % 2}")
        (folder / f"{split}.tsv").write_text("\n".join(lines) + "\n")
