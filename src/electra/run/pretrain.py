"""`electra pretrain`: rows of tokens -> a run folder with checkpoints, metrics and the trained encoders."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from electra import cli, config
from electra.config import Given
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
from electra.pretraining.on_nodes import pretrain_on_nodes
from electra.pretraining.start import STARTED_FROM
from electra.pretraining.step import show_row
from electra.report import write_report
from electra.show import clock, table
from electra.store.cache import with_urls
from electra.store.remote import is_url
from electra.train import engine, on_cluster
from electra.train.distributed import World
from electra.train.engine import Engine
from electra.train.signals import supervise


def main(arguments: Sequence[str]) -> None:
    """Pre-train, or resume."""
    given = config.read(PretrainRunConfig, arguments, prog="electra pretrain")
    if given.values.get("cluster") and not given.print_option:
        sys.exit(pretrain_on_nodes(settings_of(given)))
    refuse_parts_in_a_store(given)
    if on_cluster.is_worker():
        on_cluster.end_with_parent()
    restarts = given.values.get("max_restarts")
    if restarts and restarts > 0 and not given.values.get("dry_run") and not given.print_option:
        sys.exit(restart_after_crashes(arguments, max_restarts=restarts))
    with given.opened(reads=("data",), runs=("start",), writes=("out",)) as given:
        pretrain(settings_of(given))


def refuse_parts_in_a_store(given: Given[PretrainRunConfig]) -> None:
    """Only one machine uploads, so it must have all of a checkpoint."""
    machines = os.environ.get("GROUP_WORLD_SIZE", "1")  # as torchrun says
    is_spread = given.values.get("train.parallel") == "fsdp" and machines != "1"
    if is_spread and is_url(str(given.values.get("out"))):
        raise InputError(
            f"--out {given.values['out']}: with --train.parallel fsdp each of the {machines} machines writes "
            "a part of every checkpoint: give a folder that all of them see, or use ddp"
        )


def pretrain(settings: PretrainRunConfig) -> None:
    """Pre-train, resume, or take the first step only."""
    with engine.joined(settings.train.device) as (world, device):
        if settings.dry_run:
            run = build(settings, Engine.choose(settings.train, world, device))
            first = first_step(run)
            if world.writes:
                print(preview(run, first))
        else:
            run = run_pretraining(settings, world, device)
            if world.writes:
                print(with_urls(summary(run, Path(settings.out))))


def settings_of(given: Given[PretrainRunConfig]) -> PretrainRunConfig:
    """What was given over the paper's values for the size."""
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
