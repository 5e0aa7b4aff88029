"""`electra pretrain`: rows of tokens -> a run folder with checkpoints, metrics and the trained encoders."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import cli, config
from electra.errors import InputError
from electra.pretraining import cost
from electra.pretraining.build import (
    FINAL,
    FirstStep,
    Pretraining,
    build,
    first_step,
    run_pretraining,
)
from electra.pretraining.config import PretrainRunConfig, paper_defaults
from electra.pretraining.start import STARTED_FROM
from electra.pretraining.step import show_row
from electra.report import write_report
from electra.show import clock, table
from electra.train import engine
from electra.train.distributed import World
from electra.train.engine import Engine
from electra.train.signals import supervise


def main(arguments: Sequence[str]) -> None:
    """Pre-train, or resume."""
    settings = read_settings(arguments)
    if settings.max_restarts and not settings.dry_run:
        sys.exit(restart_after_crashes(arguments, max_restarts=settings.max_restarts))
    with engine.joined(settings.train.device) as (world, device):
        if settings.dry_run:
            run = build(settings, Engine.choose(settings.train, world, device))
            first = first_step(run)
            if world.writes:
                print(preview(run, first))
        else:
            run = run_pretraining(settings, world, device)
            if world.writes:
                print(summary(run, Path(settings.out)))


def read_settings(arguments: Sequence[str]) -> PretrainRunConfig:
    """The command line over its files over the paper's values for the size."""
    given = config.read(PretrainRunConfig, arguments, prog="electra pretrain")
    settings = given.config(paper_defaults(given))
    settings.require_folders()
    return settings


def restart_after_crashes(arguments: Sequence[str], *, max_restarts: int) -> int:
    """Run the same command in processes of their own, one after the other; the last one's exit code."""
    if World.from_environment().size > 1:
        raise InputError("max_restarts is for one process; with torchrun, use its own --max-restarts")
    command = [sys.executable, "-m", "electra", "pretrain", *arguments, "--max_restarts", "0"]
    ends = (cli.OK, cli.BAD_INPUT, cli.INTERRUPTED)
    return supervise(command, max_restarts=max_restarts, ends=ends)


def describe_start(began: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Where the first weights of a run come from."""
    without = f"; random weights for {', '.join(began['random'])}" if began["random"] else ""
    step = "" if began["step"] is None else f"step {began['step']:,} of "
    yield "start", f"{step}{began['path']}{without}"
    if "vocabulary" in began:
        yield "vocabulary", began["vocabulary"]


def summary(run: Pretraining, out: Path) -> str:
    """What was trained, and where everything is."""
    state, began = run.state, run.facts[STARTED_FROM]
    lines = {
        **(dict(describe_start(began)) if began else {}),
        "trained": f"{state.step:,} steps, {state.tokens:,} tokens, {state.flops:.2e} FLOPs, "
        f"{clock(state.seconds)}",
        "best": "unknown: no rows are held out"
        if state.best_error is None
        else f"step {state.best_step:,} on held-out rows",
        "encoder": str(out / FINAL / run.objective.encoder_name),
        "report": write_report(out),
    }
    return table(lines)


def preview(run: Pretraining, first: FirstStep) -> str:
    """What the run will need, and some rows as the networks see them."""
    step, micro_batch = first.step, run.facts["choices"]["micro_batch"]
    began = run.facts[STARTED_FROM]
    lines = {
        **(dict(describe_start(began)) if began else {}),
        **cost.needs(
            run.objective,
            flops_per_token=run.problem.flops_per_token,
            tokens_per_step=step.tokens,
            kept_bytes=first.kept_bytes,
            num_checkpoints=run.settings.checkpoint.most_at_once,
            optimizer=run.settings.train.optimizer,
        ),
        "machine": f"{run.engine.device.type}, {run.engine.precision}, {micro_batch} rows at once",
        "first step": f"loss {step.loss:.3f} in {step.seconds:.2f} s, "
        f"{step.tokens / step.seconds:,.0f} tokens/s",
        "whole run": f"about {clock(first.seconds_left)} at the speed of this step, the slowest of all",
    }
    return "\n".join([table(lines), *(f"\n{show_row(row)}" for row in first.samples)])
