"""The loop on a problem that has nothing to do with text: a line through points."""

import dataclasses
import json
import math
import re
import shutil
import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from electra.errors import InputError
from electra.seeds import torch_generator
from electra.train.checkpoint import CheckpointConfig
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.loop import LoopConfig, training_steps
from electra.train.optim import OptimizerConfig, build_optimizer
from electra.train.schedule import Budget, ScheduleConfig, learning_rate
from electra.train.session import LogConfig, Session, due
from electra.train.state import TrainState

pytestmark = pytest.mark.numeric

POINTS = 16


@dataclass(frozen=True)
class Points:
    number: int
    first: int
    rows: int
    factor: float = 1.0

    def __call__(self, module):
        inputs = torch.randn(POINTS, 3, generator=torch_generator(0, self.number))
        part = inputs[self.first : self.first + self.rows]
        errors = (module(part)[:, 0] - part.sum(1)) ** 2
        loss = self.factor * errors.sum() / POINTS
        return loss, {
            "error": torch.stack([errors.detach().sum().double(), torch.tensor(len(part)).double()])
        }


@dataclass
class Work:
    parts: list[Points]
    tokens: int = POINTS


@dataclass
class Line:
    module: nn.Module
    rows_at_once: int = POINTS
    cores: int = 1
    spoiled: tuple[int, ...] = ()
    headlines: dict = field(default_factory=lambda: {"error": "error"})
    flops_per_token: float = 18.0

    def begin(self, *, step, batch_number, progress):
        factor = math.nan if batch_number in self.spoiled else 1.0
        starts = range(0, POINTS, self.rows_at_once)
        sizes = [min(self.rows_at_once, POINTS - start) for start in starts]
        return Work(
            [Points(batch_number, start, size, factor) for start, size in zip(starts, sizes, strict=True)]
        )

    def end(self, sums): ...

    def phase(self, step):
        return ""

    def summarise(self, sums):
        return {name: float(value[0] / value[1]) for name, value in sums.items()}

    def evaluate(self):
        yield {
            "loss": torch.stack(
                [Points(-1, 0, POINTS)(self.module)[0].detach().double(), torch.tensor(1.0).double()]
            )
        }

    def samples(self):
        return []

    def error(self, metrics):
        return metrics["loss"]

    def diagnose(self, metrics, *, step, progress):
        return None

    def close(self): ...


SCHEDULE = ScheduleConfig(learning_rate=0.05, warmup_steps=3)
LOOP = LoopConfig(
    schedule=SCHEDULE, clip_norm=1.0, budget=Budget(steps=40), device=torch.device("cpu"), precision="fp32"
)


def start(**options):
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    optimizer = build_optimizer(OptimizerConfig(weight_decay=0.0), model.named_parameters())
    return TrainState(model=model, optimizer=optimizer), Line(model, **options)


def take(state, problem, number):
    steps = training_steps(state, problem, LOOP, World())
    return [next(steps) for _ in range(number)]


def weights(state):
    return torch.cat([weight.detach().flatten() for weight in state.model.parameters()])


def test_it_minimises():
    state, problem = start()
    steps = take(state, problem, 40)
    assert steps[-1].loss < steps[0].loss / 100
    assert (state.step, state.tokens, state.flops) == (40, 40 * POINTS, 40 * POINTS * 18.0)


@pytest.mark.parametrize("cores", [1, 2, 3])
def test_parts_of_a_batch_give_the_same_as_the_whole(cores):
    whole, parts = start(), start(rows_at_once=5, cores=cores)
    for left, right in zip(take(*whole, 10), take(*parts, 10), strict=True):
        assert left.loss == pytest.approx(right.loss, rel=1e-4)
        assert left.sums["error"] == pytest.approx(right.sums["error"], rel=1e-4)
    assert torch.allclose(weights(whole[0]), weights(parts[0]), atol=1e-5)


def test_the_first_update_reads_step_one_of_the_schedule():
    rates = [step.learning_rate for step in take(*start(), 5)]
    expected = [learning_rate(SCHEDULE, step=step, progress=step / 40) for step in range(1, 6)]
    assert rates == expected
    assert rates[0] > 0


def test_a_step_that_is_no_number_changes_neither_weights_nor_optimizer():
    state, problem = start(spoiled=(3,))
    take(state, problem, 3)
    before, moments = weights(state), json.dumps(state.facts()["optimizer"]["parameters"])
    (bad,) = take(state, problem, 1)
    assert not bad.finite
    assert torch.equal(weights(state), before)
    assert json.dumps(state.facts()["optimizer"]["parameters"]) == moments
    assert take(state, problem, 1)[0].finite
    assert not torch.equal(weights(state), before)


def session(folder, state, problem, **changes):
    values = {
        "loop": LOOP,
        "log": LogConfig(log_every=1, evaluate_every=20),
        "checkpoint": CheckpointConfig(save_every=10),
        "health": HealthConfig(max_bad_steps=2),
        "facts": {},
        "check_facts": lambda saved: None,
        "on_start": lambda: None,
    }
    folder.mkdir(exist_ok=True)
    return Session(folder=folder, state=state, problem=problem, world=World(), **{**values, **changes})


def test_a_session_drives_any_problem_to_the_end_and_writes_its_run(tmp_path):
    state, problem = start()
    session(tmp_path, state, problem).run()
    assert state.step == 40
    assert state.best_step in (20, 40)
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "train"] == list(range(1, 41))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-00000030",
        "step-00000040",
    ]
    again, problem = start()
    session(tmp_path, again, problem).run()
    assert torch.equal(weights(again), weights(state))
    assert again.facts() == state.facts()


def held_out(monkeypatch, losses, phases=()):
    """Give the looks at held-out rows these losses, one after the other."""
    left = iter(losses)

    def evaluate(self):
        yield {"loss": torch.tensor([next(left), 1.0], dtype=torch.float64)}

    monkeypatch.setattr(Line, "evaluate", evaluate)
    monkeypatch.setattr(Line, "phase", lambda self, step: "second" if step in phases else "")


def lines_of(folder, kind):
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if kind in (record["kind"], record.get("event"))]


def steps_in(folder):
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())


LOOKS = {"log": LogConfig(evaluate_every=4), "checkpoint": CheckpointConfig(save_every=10, keep_last=1)}


def test_the_best_has_a_checkpoint_also_where_it_is_not_the_turn_of_one(tmp_path, monkeypatch):
    held_out(monkeypatch, [5.0, 4.0, 3.0, 3.5, math.nan, 3.0, 6.0, 7.0, 8.0, 9.0])
    state, problem = start()
    session(tmp_path, state, problem, **LOOKS).run()
    assert (state.best_step, state.best_error) == (12, 3.0)
    assert steps_in(tmp_path) == [12, 40]
    assert [event["step"] for event in lines_of(tmp_path, "saved")] == [4, 8, 10, 12, 20, 30, 40]


def test_losses_of_different_phases_are_not_compared(tmp_path, monkeypatch):
    held_out(monkeypatch, [3.0, 2.0, 9.0, 8.0, 8.5, 9.0, 9.0, 9.0, 9.0, 9.0], phases=range(10, 40))
    state, problem = start()
    session(tmp_path, state, problem, **LOOKS).run()
    assert (state.best_step, state.best_error) == (16, 8.0)


def test_a_state_in_doubt_is_not_the_best(tmp_path, monkeypatch):
    held_out(monkeypatch, [5.0, 1.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0])
    # The update of step 8 is left out.
    state, problem = start(spoiled=(7,))
    session(tmp_path, state, problem, **LOOKS).run()
    assert (state.best_step, state.best_error) == (12, 3.0)
    assert steps_in(tmp_path) == [12, 40]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_last_look_that_is_no_number_ends_in_an_error_and_is_not_saved(tmp_path, monkeypatch, loss):
    held_out(monkeypatch, [2.0, loss, 2.0])
    with pytest.raises(InputError, match=r"--train\.learning_rate.*\b0\.05\b"):
        session(tmp_path, *start()).run()
    assert steps_in(tmp_path) == [20, 30]
    # A number in the middle of the run is no reason to end it, and a later look may be better.
    state, problem = start()
    session(tmp_path, state, problem).run()
    assert steps_in(tmp_path)[-1] == state.step == 40


def test_weights_that_are_no_numbers_end_in_an_error_even_if_nothing_is_held_out(tmp_path, monkeypatch):
    monkeypatch.setattr(Line, "evaluate", lambda self: iter(()))
    state, problem = start()

    def spoil_the_last(sums):
        if state.step == 39:
            with torch.no_grad():
                state.model.bias.fill_(float("nan"))

    monkeypatch.setattr(problem, "end", spoil_the_last)
    with pytest.raises(InputError, match="40"):
        session(tmp_path, state, problem).run()
    assert steps_in(tmp_path) == [20, 30]


def test_a_last_update_that_was_left_out_ends_well_if_the_last_look_is_a_number(tmp_path):
    for _ in range(2):
        state, problem = start(spoiled=(39,))
        session(tmp_path, state, problem).run()
        assert (state.step, state.health.bad_steps) == (40, 1)


def test_a_budget_that_ends_within_the_warmup_is_said_when_the_speed_is_known(tmp_path, capsys):
    def warnings(folder, warmup_steps):
        schedule = ScheduleConfig(learning_rate=0.05, warmup_steps=warmup_steps)
        loop = dataclasses.replace(LOOP, schedule=schedule, budget=Budget(tokens=200 * POINTS))
        session(folder, *start(), loop=loop, log=LogConfig(log_every=50)).run()
        return lines_of(folder, "warmup_too_long")

    assert warnings(tmp_path / "fits", 200) == []
    (warning,) = warnings(tmp_path / "does not", 201)
    assert warning["step"] == 100
    assert re.search(r"warmup_steps.*\b201\b.*\b200\b", warning["message"])
    assert warning["message"] in capsys.readouterr().err


def test_what_metrics_say_tensorboard_shows_also_when_a_run_goes_back_or_on(tmp_path):
    session(tmp_path, *start(spoiled=(14, 15))).run()
    # The last checkpoint is lost: the run goes on from the one before, and says the same again.
    shutil.rmtree(tmp_path / "checkpoints" / "step-00000040")
    session(tmp_path, *start(spoiled=(14, 15))).run()
    reader = EventAccumulator(str(tmp_path / "tensorboard"), purge_orphaned_data=True)
    reader.Reload()
    for tag in ("train/loss", "train/learning_rate", "valid/loss"):
        kind, name = tag.split("/")
        told = [(line["step"], {**line["metrics"], **line}[name]) for line in lines_of(tmp_path, kind)]
        assert [(event.step, pytest.approx(event.value)) for event in reader.Scalars(tag)] == told
        assert told[-1][0] == 40


def test_a_tracker_that_fails_does_not_stop_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", ModuleType("trackio"))
    state, problem = start()
    session(tmp_path, state, problem, log=LogConfig(trackers=["trackio"])).run()
    assert state.step == 40
    (event,) = lines_of(tmp_path, "tracker_failed")
    assert "has no attribute 'init'" in event["message"]


def test_going_back_leaves_the_batches_out(tmp_path):
    state, problem = start(spoiled=(14, 15))
    session(tmp_path, state, problem).run()
    assert (state.step, state.batches_skipped, state.health.rollbacks) == (40, 6, 1)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    session(tmp_path, *start()).run()
    model = nn.Linear(4, 1)
    optimizer = build_optimizer(OptimizerConfig(), model.named_parameters())
    other = TrainState(model=model, optimizer=optimizer)
    with pytest.raises(InputError, match=r"weight.*\[1, 3\].*\[1, 4\]"):
        session(tmp_path, other, Line(model)).run()


def test_what_happens_every_so_often_does_not_happen_at_step_zero():
    assert [step for step in range(7) if due(step, 3)] == [3, 6]
