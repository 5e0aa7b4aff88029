import json
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from electra import cli
from electra.pretraining.step import PretrainProblem
from electra.train.checkpoint import CheckpointConfig, CheckpointStore

SENTENCE = "the old river was in a small city and the new model is fast to read of large mountain water"
SMALL = {
    "model.size": "tiny",
    "model.hidden_size": 32,
    "model.embedding_size": 16,
    "model.intermediate_size": 64,
    "generator.width": 0.5,
    "train.steps": 20,
    "train.batch_size": 8,
    "train.learning_rate": 0.01,
    # Numbers are compared: what `auto` chooses depends on the processor.
    "train.precision": "fp32",
    "checkpoint.save_every": 4,
    "log.log_every": 1,
    "log.evaluate_every": 10,
    "valid_rows": 16,
}


@dataclass(frozen=True, kw_only=True)
class Rounding:
    """How far numbers of one computation in another order may lie apart, in proportion to them."""

    loss: float
    """Of the first step, from the same weights."""
    gradient_norm: float
    later_loss: float
    """Of steps whose weights have been apart already."""


ROUNDING = {
    # 24 bits, 6e-8 of a number. Losses are sums of some hundred terms of one sign; a norm's terms are squares
    # of sums with terms of both. Updates have the size of the learning rate whatever the gradient's, which
    # spreads the differences from step to step.
    "fp32": Rounding(loss=1e-6, gradient_norm=1e-5, later_loss=1e-3),
    # 8 bits: two results of one product may be neighbours, 2**-8 apart, and so may a loss that all of them
    # move the same way. A weight's gradient is rounded in each part, by half of that, before parts are added
    # in fp32. Later a token may be drawn differently: one of two hundred, at several times the mean loss.
    "bf16": Rounding(loss=2**-8, gradient_norm=2**-8, later_loss=0.05),
}


@dataclass(frozen=True)
class SmallRuns:
    """`electra pretrain` with a very small model, and what its runs have written."""

    data: Path

    def words(self, out: Path, *, data: Path | None = None, **changes: Any) -> list[str]:
        keys = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
        values = [f"--{key}={value}" for key, value in keys.items()]
        return ["pretrain", f"--data={data or self.data}", f"--out={out}", *values]

    def keywords(self, out: Path, **changes: Any) -> dict[str, Any]:
        """The same for `electra.pretrain`."""
        keys = {**SMALL, **{key.replace("__", "."): value for key, value in changes.items()}}
        found: dict[str, Any] = {"data": str(self.data), "out": str(out)}
        for key, value in keys.items():
            group, _, name = key.rpartition(".")
            (found.setdefault(group, {}) if group else found)[name] = value
        return found

    def pretrain(self, out: Path, *, code: int = cli.OK, **changes: Any) -> None:
        assert cli.main(self.words(out, **changes)) == code

    def lines(self, run: Path, kind: str) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [record for record in records if record["kind"] == kind]

    def events(self, run: Path, event: str) -> list[int]:
        """The steps at which something happened."""
        return [record["step"] for record in self.lines(run, "event") if record["event"] == event]

    def learned(self, run: Path) -> tuple[Any, ...]:
        """All of a run that must not depend on where it was interrupted."""
        timed = ("seconds", "tokens_per_second", "mfu")
        records = [*self.lines(run, "train"), *self.lines(run, "valid")]
        facts = [{key: value for key, value in record.items() if key not in timed} for record in records]
        last = CheckpointStore(run / "checkpoints", CheckpointConfig()).load_latest(lambda problem: None)
        return facts, last.path.name, last.tensors

    def assert_same(self, run: Path, other: Path) -> None:
        (facts, name, tensors), (other_facts, other_name, other_tensors) = map(self.learned, (run, other))
        assert facts == other_facts
        assert name == other_name
        for group, values in tensors.items():
            assert values.keys() == other_tensors[group].keys()
            for key, value in values.items():
                assert torch.equal(value, other_tensors[group][key]), (group, key)

    def assert_continues_exactly(self, folder: Path, interrupt: Callable[..., None], **keys: Any) -> None:
        """Stopped after five steps and typed again, it is the run that was never stopped."""
        self.pretrain(folder / "whole", **keys)
        interrupt(5)
        self.pretrain(folder / "parts", code=cli.INTERRUPTED, **keys)
        self.pretrain(folder / "parts", **keys)
        self.assert_same(folder / "parts", folder / "whole")

    def assert_same_work(self, run: Path, other: Path, *, precision: str) -> None:
        """The same rows, divided otherwise."""
        rounding = ROUNDING[precision]
        ours, theirs = (self.lines(place, "train") for place in (run, other))
        assert ours[0]["loss"] == pytest.approx(theirs[0]["loss"], rel=rounding.loss)
        norms = [lines[0]["gradient_norm"] for lines in (ours, theirs)]
        assert norms[0] == pytest.approx(norms[1], rel=rounding.gradient_norm)
        for our, their in zip(ours, theirs, strict=True):
            assert our["loss"] == pytest.approx(their["loss"], rel=rounding.later_loss)
            assert our["tokens"] == their["tokens"]


def prepare_small(folder: Path, *, seed: int, sentence: str = SENTENCE) -> Path:
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(sentence.split(), k=rng.randint(20, 60))) + "." for _ in range(150)]
    (folder / "corpus.txt").write_text("\n\n".join(texts), encoding="utf-8")
    keys = {"corpus": folder / "corpus.txt", "out": folder / "data", "vocab_size": 300, "seq_length": 32}
    more = {"valid_fraction": 0.2, "workers": 1}
    assert cli.main(["prepare", *(f"--{key}={value}" for key, value in {**keys, **more}.items())]) == cli.OK
    return folder / "data"


@pytest.fixture(autouse=True)
def no_reports(monkeypatch):
    """Pages take seconds each: only what fixtures of a session or module make has them."""
    for verb in ("pretrain", "finetune"):
        monkeypatch.setattr(f"electra.run.{verb}.write_report", lambda folder: "not written: this is a test")


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Small runs on small data."""
    return SmallRuns(prepare_small(tmp_path_factory.mktemp("text"), seed=0))


@pytest.fixture(scope="session")
def other_data(tmp_path_factory):
    return prepare_small(tmp_path_factory.mktemp("other"), seed=1)


@pytest.fixture(scope="session")
def other_vocabulary(tmp_path_factory):
    """Data of other words, whose tokens are known to the first data's tokenizer in part."""
    sentence = "the older rivers ran in a smaller city while newer models read of mountainous waterways"
    return prepare_small(tmp_path_factory.mktemp("words"), seed=2, sentence=sentence)


@pytest.fixture(scope="session")
def whole(runs, tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("whole") / "run"
    runs.pretrain(out)
    return out


@pytest.fixture(scope="session")
def model(runs, tmp_path_factory):
    """A run whose weights are as good as random: from these, unlike from a collapsed model, one can learn."""
    out = tmp_path_factory.mktemp("model") / "run"
    runs.pretrain(out, train__steps=1, train__learning_rate=1e-6)
    return out


@pytest.fixture
def interrupt(monkeypatch):
    """Raise a signal while a step is worked on."""

    def at(*steps, number=signal.SIGTERM):
        begin, left = PretrainProblem.begin, set(steps)

        def begin_or_signal(self, *, step, batch_number, progress):
            if step in left:
                left.remove(step)
                signal.raise_signal(number)
            return begin(self, step=step, batch_number=batch_number, progress=progress)

        monkeypatch.setattr(PretrainProblem, "begin", begin_or_signal)

    return at


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Not in a checkout, whose history of benches would get a line of each test."""
    monkeypatch.chdir(tmp_path)
