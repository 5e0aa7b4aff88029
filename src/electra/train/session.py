"""A state and a problem -> a trained state and a run folder: when to log, evaluate, save, roll back, stop."""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from electra.errors import InputError
from electra.progress import LiveLine
from electra.show import clock
from electra.store.cache import with_urls
from electra.train.checkpoint import Checkpoint, CheckpointConfig, CheckpointStore, read_by_first
from electra.train.devices import autocast
from electra.train.distributed import World
from electra.train.health import HealthConfig, Verdict
from electra.train.log import RunLog, TrackerName, Trackers, headline
from electra.train.loop import LoopConfig, Problem, Step, Sums, training_steps
from electra.train.schedule import unfinished_warmup
from electra.train.signals import Request, Requests, ending_if_stuck
from electra.train.state import TrainState

CHECKPOINTS, SAVE_NOW = "checkpoints", "checkpoint_now"
_IDENTITY = ("config", "dataset_sha256", "tokenizer_sha256")
"""The facts that tell whose checkpoint it is."""
_SPEED_IS_KNOWN = 100
"""Step from which start-up costs, such as compiling, no longer hide the speed of a run."""


@dataclass(frozen=True, kw_only=True)
class LogConfig:
    """How often metrics are logged and the model is evaluated."""

    log_every: int = 10
    """Steps between log lines in metrics.jsonl."""
    evaluate_every: int = 1000
    """Steps between evaluations on held-out rows; the last step is always followed by one."""
    trackers: list[TrackerName] = field(default_factory=list)
    """Where else metrics go; with electra[tensorboard] installed, tensorboard is always among them."""

    def __post_init__(self) -> None:
        for key in ("log_every", "evaluate_every"):
            if getattr(self, key) < 1:
                raise InputError(f"log.{key} is {getattr(self, key)}, expected 1 or more steps")


def due(step: int, every: int) -> bool:
    """Whether something that happens every so many steps happens after this one."""
    return every > 0 and step > 0 and step % every == 0


@dataclass(kw_only=True)
class Session:
    """One sitting of a run: from where its folder stands to the end of its budget, or to a signal."""

    folder: Path
    state: TrainState
    problem: Problem
    loop: LoopConfig
    log: LogConfig
    checkpoint: CheckpointConfig
    health: HealthConfig
    world: World
    facts: Mapping[str, Any]
    """What every checkpoint also stores: config, and hashes of data and tokenizer."""
    check_facts: Callable[[Mapping[str, Any]], None]
    """Refuses a checkpoint of another run."""
    on_start: Callable[[], None]
    """Called once the run may start or resume, before anything else is written."""
    peak: float = 0.0
    """Measured FLOP/s of the machine, all processes together; 0 if unknown."""
    _begun: float = field(default=0.0, init=False)
    _saved_step: int = field(default=-1, init=False)
    _held_out_loss: float | None = field(default=None, init=False)
    """Of the last evaluation in this sitting; None if there was none, or nothing is held out."""
    _loaded_step: int = field(default=-1, init=False)
    """Step of the checkpoint that this sitting has continued from last."""

    def __post_init__(self) -> None:
        trackers = self.log.trackers if self.world.writes else []
        self.run_log = RunLog(
            self.folder, Trackers(self.folder, trackers, on_problem=partial(self._event, "tracker_failed"))
        )
        self.store = CheckpointStore(
            self.folder / CHECKPOINTS,
            self.checkpoint,
            together=self.world if self.state.is_spread else None,
        )
        self.requests = Requests(self.folder / SAVE_NOW)
        self.line = LiveLine(silent=not self.world.writes)

    def run(self) -> None:
        """Train until the budget is used up; a request to stop ends in a KeyboardInterrupt, all saved."""
        with ExitStack() as stack:
            stack.callback(self.problem.close)
            stack.callback(self.run_log.close)
            stack.enter_context(self.store)
            stack.enter_context(self.line)
            stack.enter_context(self.requests.heard())
            if self.world.size > 1:
                stack.enter_context(ending_if_stuck(lambda: self.store.is_saving))
            self._start()
            steps = training_steps(self.state, self.problem, self.loop, self.world)
            while True:
                if due(self.state.step, self.log.evaluate_every) or self._is_over():
                    self._evaluate()
                if self._is_over():
                    self._require_numbers()
                # The best state is always saved, also between two regular checkpoints.
                is_best = self.state.best_step == self.state.step
                if due(self.state.step, self.checkpoint.save_every) or is_best or self._is_over():
                    self._save("saved", forced=self._is_over())
                if self._is_over():
                    break
                self._after(next(steps))
                self._answer_requests()

    def _start(self) -> None:
        """Continue from the newest whole checkpoint, or make the first one, which also proves the disk."""
        self._begun = time.monotonic()
        checkpoint = self._newest_checkpoint()
        self.world.barrier()
        if checkpoint is None:
            weights = self.state.tensors()["model"].values()
            bytes_of_weights = sum(value.numel() * value.element_size() for value in weights)
            # Weights and two moments of each.
            needed = 3 * bytes_of_weights * self.checkpoint.most_at_once
            self.world.first_says(lambda: self.store.require_space(needed))
            self.on_start()
            # If no checkpoint of an earlier sitting is whole, its records are of steps that come again.
            self._cut_log()
            self._save("started", forced=True)
        else:
            self._require_facts(checkpoint)
            self.check_facts(checkpoint.facts)
            self.on_start()
            self._return_to(checkpoint)
            if self.world.writes:
                self.store.tidy(checkpoint)
            self._event("resumed", f"continuing from {checkpoint.path} at step {checkpoint.step:,}")
        if self.world.writes:
            self.run_log.open(self.facts.get("config", {}), step=self.state.step)

    def _newest_checkpoint(self) -> Checkpoint | None:
        """The newest whole one, and the same one for all processes, whatever each of them sees."""
        if self.state.is_spread:
            return self.store.load_latest(self._say_problem)
        return read_by_first(self.world, lambda: self.store.load_latest(self._say_problem))

    def _return_to(self, checkpoint: Checkpoint) -> None:
        self.state.load(checkpoint)
        self._begun = time.monotonic() - self.state.seconds
        self._saved_step = self._loaded_step = self.state.step
        self._cut_log()

    def _cut_log(self) -> None:
        """Drop what was logged after the step that the run is at."""
        if self.world.writes:
            for problem in self.run_log.go_back(
                step=self.state.step, evaluated_step=self.state.evaluated_step
            ):
                self._event("damaged_log", problem)

    def _require_facts(self, checkpoint: Checkpoint) -> None:
        """Refuse a checkpoint that does not say what it is of: nobody could tell whether it is this run's."""
        for key in _IDENTITY:
            if key in self.facts and not isinstance(checkpoint.facts.get(key), type(self.facts[key])):
                raise InputError(
                    f"{checkpoint.path} lacks {key}: another program or version of electra wrote it. Move it "
                    "away to continue from the one before, or choose another --out"
                )

    def _is_over(self) -> bool:
        return self._progress() >= 1

    def _progress(self) -> float:
        state = self.state
        return self.loop.budget.progress(steps=state.step, seconds=state.seconds, tokens=state.tokens)

    def _read_clock(self) -> None:
        """Note the time used: the same on all processes, whose clocks differ, so that they stop together."""
        self.state.seconds = self.world.largest(time.monotonic() - self._begun)

    def _after(self, step: Step) -> None:
        """React to a step: judge its health, log it."""
        state = self.state
        self._read_clock()
        self.store.check()
        # While fp16 searches for its scale, overflowing gradients are expected. Reading the scale makes a
        # device wait: not in every step.
        calibrating = not step.finite and state.scaler is not None and state.scaler.get_scale() > 1
        verdict = "skip" if calibrating else self._judge(step)
        if verdict == "roll_back":
            self._roll_back(step)
            return
        if verdict == "skip":
            self._event(
                "skipped_update", f"step {state.step:,}: loss {step.loss}, gradient norm {step.gradient_norm}"
            )
        if due(state.step, self.log.log_every) or state.step == 1:
            self._log(step)
        if state.step == _SPEED_IS_KNOWN:
            self._check_warmup()

    def _check_warmup(self) -> None:
        """With a budget in time, only the speed tells whether the warm-up fits into it."""
        problem = unfinished_warmup(self.loop.schedule, step=self.state.step, progress=self._progress())
        if problem:
            self._event("warmup_too_long", problem)

    def _judge(self, step: Step) -> Verdict:
        phase = self.problem.phase(self.state.step - 1)
        return self.state.health.observe(self.health, loss=step.loss, finite=step.finite, phase=phase)

    def _log(self, step: Step) -> None:
        if not self.world.writes:
            return
        metrics = self.problem.summarise(step.sums)
        speed = step.tokens / step.seconds
        mfu = speed * self.problem.flops_per_token / self.peak if self.peak else None
        self.run_log.measured(
            "train",
            {
                **self._place(),
                "learning_rate": step.learning_rate,
                "gradient_norm": step.gradient_norm,
                "tokens_per_second": speed,
                "mfu": mfu,
                "loss": step.loss,
                "metrics": metrics,
            },
        )
        state, share = self.state, f"  {mfu:.0%} of peak" if mfu else ""
        left = self.loop.budget.seconds_left(steps=state.step, seconds=state.seconds, tokens=state.tokens)
        values = headline({"loss": step.loss, **metrics}, self.problem.headlines)
        self.line.show(
            f"step {state.step:,}  {values}  {speed:,.0f} tokens/s{share}  ETA {clock(left)}",
            done=min(1.0, self._progress()),
        )

    def _place(self) -> dict[str, Any]:
        state = self.state
        return {"step": state.step, "tokens": state.tokens, "seconds": state.seconds, "flops": state.flops}

    def _evaluate(self) -> None:
        """Evaluate on held-out rows, unless that was already done after this step."""
        state = self.state
        if state.evaluated_step == state.step:
            return
        totals: Sums = {}
        self.problem.module.eval()
        with autocast(self.loop.device, self.loop.precision):
            for sums in self.problem.evaluate():
                for name, value in sums.items():
                    totals[name] = totals[name] + value if name in totals else value
                self._answer_requests()
            samples = self.problem.samples()
        state.evaluated_step = state.step
        if not totals:
            return
        metrics = self.problem.summarise(self.world.add(totals))
        self._held_out_loss = metrics.get("loss")
        error = self.problem.error(metrics)
        if self._is_best(error):
            state.best_step, state.best_error = state.step, error
        self._read_clock()
        if self.world.writes:
            self.run_log.measured("valid", {**self._place(), "metrics": metrics})
            self.run_log.sampled(samples, step=state.step)
            values = headline(metrics, self.problem.headlines)
            self.line.say(f"held out after step {state.step:,}: {values}")
        if illness := self.problem.diagnose(metrics, step=state.step, progress=self._progress()):
            self._event("collapse", illness)

    def _require_numbers(self) -> None:
        """Refuse to end with a model that computes nothing; its state is not saved, so a resume goes back."""
        state = self.state
        if self._held_out_loss is not None:
            is_well = math.isfinite(self._held_out_loss)
        else:
            # Nothing is held out: the loss of the last step is all there is. A run that had ended before
            # has passed already.
            is_well = not state.health.bad_steps or state.step == self._loaded_step
        if self.world.largest(float(not (is_well and state.has_finite_weights))):
            illness = f"after step {state.step:,}, the last one, the loss or the weights are not finite"
            self._event("diverged", illness, quiet=True)
            raise InputError(
                f"{illness}: no model is written. Lower --train.learning_rate, which is "
                f"{self.loop.schedule.learning_rate:g}, lengthen --train.warmup_steps, or set "
                "--train.precision fp32; then resume with --resume.allow_changes naming the changed keys, "
                "or choose another --out"
            )

    def _is_best(self, error: float) -> bool:
        """Whether a held-out error is the lowest yet; never for a state in doubt, which is not saved."""
        state, phase = self.state, self.problem.phase
        if not math.isfinite(error) or not state.health.good:
            return False
        if state.best_error is None or phase(state.best_step - 1) != phase(state.step - 1):
            return True
        return error < state.best_error

    def _save(self, event: str, *, forced: bool = False) -> None:
        """Write a checkpoint in the background; not of a state in doubt, unless forced."""
        if self._saved_step == self.state.step or not (forced or self.state.health.good):
            return
        self._saved_step = self.state.step
        if self.world.writes:
            self.run_log.sync()
        if self.world.writes or self.state.is_spread:
            facts = {**self.facts, **self.state.facts()}
            self.store.save(self.state.step, self.state.tensors(), facts)
        self._event(event, f"checkpoint of step {self.state.step:,}", quiet=True)

    def _answer_requests(self) -> None:
        request = Request(int(self.world.largest(self.requests.look())))
        if request is Request.NONE:
            return
        self._event(
            "signal", f"{self.requests.name or 'another process'}: saving at step {self.state.step:,}"
        )
        self._save("saved", forced=True)
        self.store.wait()
        if request is Request.STOP:
            raise KeyboardInterrupt(
                f"saved at step {self.state.step:,} in {self.folder}; run the same command again to resume"
            )

    def _roll_back(self, step: Step) -> None:
        """Return to the last good checkpoint, and skip the batches that led away from it."""
        state, failed, health = self.state, self.state.step, self.state.health
        health.require_hope(self.health, step=failed)
        checkpoint = self._newest_checkpoint()
        assert checkpoint is not None, "a run saves before its first step"
        skipped = state.batches_skipped + failed - checkpoint.step
        rollbacks = health.rollbacks + 1
        seconds = state.seconds
        self._return_to(checkpoint)
        state.batches_skipped, state.health.rollbacks, state.seconds = skipped, rollbacks, seconds
        self._begun = time.monotonic() - seconds
        self._event(
            "rolled_back",
            f"loss {step.loss}, gradient norm {step.gradient_norm} at step {failed:,}: back to step "
            f"{checkpoint.step:,}, skipping {failed - checkpoint.step:,} batches (rollback {rollbacks} of "
            f"{self.health.max_rollbacks})",
        )
        # Saved again with the skipped batches: a crash must not lead back into them.
        self._saved_step = -1
        self._save("saved", forced=True)

    def _event(self, event: str, message: str, *, quiet: bool = False) -> None:
        if not self.world.writes:
            return
        message = with_urls(message)
        place = {"step": self.state.step, "seconds": self.state.seconds}
        self.run_log.happened({**place, "event": event, "message": message})
        if not quiet:
            self.line.say(f"{event.replace('_', ' ')}: {message}")

    def _say_problem(self, problem: str) -> None:
        self._event("damaged_checkpoint", problem)
