"""The loop on a problem that has nothing to do with text: a line through points."""

import json
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn

from electra.errors import InputError
from electra.seeds import torch_generator
from electra.train.budget import Budget
from electra.train.checkpoint import CheckpointConfig
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.loop import LoopConfig, training_steps
from electra.train.optim import OptimizerConfig, build_optimizer
from electra.train.schedule import ScheduleConfig, learning_rate
from electra.train.session import LogConfig, Session, due
from electra.train.state import TrainState

POINTS = 16


@dataclass(frozen=True)
class Points:
    module: nn.Module
    number: int
    first: int
    rows: int
    factor: float = 1.0

    def __call__(self):
        inputs = torch.randn(POINTS, 3, generator=torch_generator(0, self.number))
        part = inputs[self.first : self.first + self.rows]
        errors = (self.module(part)[:, 0] - part.sum(1)) ** 2
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
    spoiled: tuple[int, ...] = ()
    headlines: dict = field(default_factory=lambda: {"error": "error"})
    flops_per_token: float = 18.0

    def begin(self, *, step, batch_number):
        factor = math.nan if batch_number in self.spoiled else 1.0
        starts = range(0, POINTS, self.rows_at_once)
        sizes = [min(self.rows_at_once, POINTS - start) for start in starts]
        return Work(
            [
                Points(self.module, batch_number, start, size, factor)
                for start, size in zip(starts, sizes, strict=True)
            ]
        )

    def end(self, sums): ...

    def phase(self, step):
        return ""

    def summarise(self, sums):
        return {name: float(value[0] / value[1]) for name, value in sums.items()}

    def evaluate(self):
        yield {
            "loss": torch.stack(
                [Points(self.module, -1, 0, POINTS)()[0].detach().double(), torch.tensor(1.0).double()]
            )
        }

    def samples(self):
        return []

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


def test_parts_of_a_batch_give_the_same_as_the_whole():
    whole, parts = start(), start(rows_at_once=5)
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
        "log": LogConfig(log_every=1, evaluate_every=20),
        "checkpoint": CheckpointConfig(save_every=10),
        "health": HealthConfig(max_bad_steps=2),
        "facts": {},
        "check_facts": lambda saved: None,
        "on_start": lambda: None,
    }
    return Session(
        folder=folder, state=state, problem=problem, loop=LOOP, world=World(), **{**values, **changes}
    )


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


def test_going_back_leaves_the_batches_out(tmp_path):
    state, problem = start(spoiled=(14, 15))
    session(tmp_path, state, problem).run()
    assert (state.step, state.batches_skipped, state.health.rollbacks) == (40, 6, 1)


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    session(tmp_path, *start()).run()
    model = nn.Linear(4, 1)
    optimizer = build_optimizer(OptimizerConfig(), model.named_parameters())
    other = TrainState(model=model, optimizer=optimizer)
    with pytest.raises(InputError, match=r"weight has shape \[1, 3\], this model \[1, 4\]"):
        session(tmp_path, other, Line(model)).run()


def test_what_happens_every_so_often_does_not_happen_at_step_zero():
    assert [step for step in range(7) if due(step, 3)] == [3, 6]
