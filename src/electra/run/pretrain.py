"""`electra pretrain`: rows of tokens -> a run folder with checkpoints, metrics and a trained encoder."""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from electra import cli, config, files
from electra.errors import InputError
from electra.model.cost import activation_bytes
from electra.model.encoder import Encoder, Layer
from electra.model.store import write_networks
from electra.pretraining import cost
from electra.pretraining.config import ModelConfig, PretrainConfig, paper_values
from electra.pretraining.masking import Inputs, StepRandom, TokenFacts
from electra.pretraining.objectives import build_objective
from electra.pretraining.objectives.protocol import Objective
from electra.pretraining.step import FIXED_SET_SEED, FixedSet, PretrainProblem, Share, show_row
from electra.show import clock, table
from electra.text import tokenizer as tokenizers
from electra.text.batches import Batches
from electra.text.rows import Rows
from electra.text.tokenizer import Tokenizer
from electra.train import devices, resume
from electra.train.checkpoint import CheckpointConfig
from electra.train.devices import choose_micro_batch, saved_bytes
from electra.train.distributed import World
from electra.train.health import HealthConfig
from electra.train.loop import LoopConfig, training_steps
from electra.train.optim import build_optimizer
from electra.train.resume import ResumeConfig
from electra.train.schedule import TrainConfig
from electra.train.session import LogConfig, Session
from electra.train.signals import supervise
from electra.train.state import TrainState, copy_weights

_PROBE_ROWS = 4
_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class PretrainRunConfig(PretrainConfig):
    """A pre-training run. Values that are not given are the paper's for the size of the model."""

    data: str = ""
    """Folder made by `electra prepare`."""
    out: str = ""
    """Run folder; the same command on an existing one continues it."""
    seed: int = 0
    """Of everything random: weights, order of rows, masks, samples, dropout."""
    model: ModelConfig = field(default_factory=ModelConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    valid_rows: int = 2048
    """Held-out rows of an evaluation; fewer if the data has fewer."""
    health: HealthConfig = field(default_factory=HealthConfig)
    resume: ResumeConfig = field(default_factory=ResumeConfig)
    max_restarts: int = 0
    """Times to start again after a crash, from the last checkpoint."""
    dry_run: bool = False
    """Check everything, take one step, and say what the run will need; nothing is written."""


# Keys that change nothing about what a run computes. That the data is the same is told by its hash.
FREE_KEYS = (
    "data",
    "out",
    "checkpoint",
    "resume",
    "max_restarts",
    "dry_run",
    "log.log_every",
    "log.trackers",
)


def main(arguments: Sequence[str]) -> None:
    """Pre-train, or continue to."""
    settings = read_settings(arguments)
    world = World.from_environment()
    if settings.max_restarts and not settings.dry_run:
        if world.size > 1:
            raise InputError("max_restarts is for one process; with torchrun, use its own --max-restarts")
        command = [sys.executable, "-m", "electra", "pretrain", *arguments, "--max_restarts", "0"]
        ends = (cli.OK, cli.BAD_INPUT, cli.INTERRUPTED)
        sys.exit(supervise(command, max_restarts=settings.max_restarts, ends=ends))
    devices.set_up_allocator()
    device = devices.choose_device(settings.train.device, local_rank=world.local_rank)
    with world.joined(device):
        if settings.dry_run:
            preview(build(settings, world, device, choices={}), world)
        else:
            pretrain(settings, world, device)


def read_settings(arguments: Sequence[str]) -> PretrainRunConfig:
    """The size's values first, then the file's, then the command line's."""
    asks = ("--print_config", "--help", "-h")
    words = [word for word in arguments if word.partition("=")[0] not in asks]
    given = config.parse(PretrainRunConfig, words, prog="electra pretrain")
    values = paper_values(given.model.size)
    if given.train.max_time or given.train.max_tokens:
        # Another budget than the paper's number of steps was chosen.
        del values["train.steps"]
    if given.train.warmup_steps:
        # Of two warm-ups the longer one would hold.
        values.pop("train.warmup_fraction", None)
    preset = [f"--{key}={value!r}" for key, value in values.items()]
    settings = config.parse(PretrainRunConfig, [*preset, *arguments], prog="electra pretrain")
    if not settings.data or not (settings.out or settings.dry_run):
        raise InputError("give --data DIR and --out RUN (see 'electra pretrain --help')")
    return settings


def pretrain(settings: PretrainRunConfig, world: World, device: torch.device) -> None:
    """Train to the end of the budget, then write the encoders."""
    out = Path(settings.out)
    run = build(settings, world, device, choices=resume.read_choices(out))
    with ExitStack() as stack:
        if world.writes:
            out.mkdir(parents=True, exist_ok=True)
            busy = f"{out} is being trained by another process: wait for it, or choose another --out"
            stack.enter_context(files.locked(out / ".lock", busy=busy))
        world.barrier()
        peak = devices.gemm_speed(device, run.loop.precision) if world.writes else 0.0
        session = Session(
            folder=out,
            state=run.state,
            problem=run.problem,
            loop=run.loop,
            log=settings.log,
            checkpoint=settings.checkpoint,
            health=settings.health,
            world=world,
            facts=run.facts,
            check_facts=lambda saved: resume.check_same_run(
                saved, run.facts, settings.resume, free_keys=FREE_KEYS
            ),
            on_start=lambda: describe(run, out, peak) if world.writes else None,
            peak=peak * world.size,
        )
        session.run()
        weights = run.state.tensors()["model"]
        if world.writes:
            write_final(run, weights, out / "final")
            print(summary(run, out))


@dataclass(frozen=True, kw_only=True)
class Run:
    """All that a run is made of."""

    settings: PretrainRunConfig
    rows: Rows
    tokenizer: Tokenizer
    objective: Objective
    make_objective: Callable[[], Objective]
    """The same, before training and in one piece."""
    problem: PretrainProblem
    state: TrainState
    loop: LoopConfig
    facts: dict[str, Any]


def build(
    settings: PretrainRunConfig, world: World, device: torch.device, *, choices: Mapping[str, Any]
) -> Run:
    """Data, model, optimizer and loop; `choices`: what the run chose for itself when it began."""
    data, train = Path(settings.data), settings.train
    rows, valid_rows = Rows(data), Rows(data, "valid")
    tokenizer = tokenizers.load(data / "tokenizer")
    encoder = settings.model.encoder(vocab_size=tokenizer.vocab_size)
    if encoder.max_position_embeddings < rows.seq_length:
        raise InputError(
            f"{data} has rows of {rows.seq_length} tokens, the model takes "
            f"{encoder.max_position_embeddings}: set --model.max_position_embeddings {rows.seq_length}"
        )
    facts = token_facts(tokenizer, data)
    make_objective = partial(
        build_objective,
        settings,
        encoder,
        facts,
        seq_length=rows.seq_length,
        seed=settings.seed,
    )
    objective = make_objective(device=device)
    for part in objective.modules():
        if isinstance(part, Encoder):
            part.recomputes_layers = train.checkpoint_activations
    batches = Batches(rows, seed=settings.seed, batch_size=train.batch_size)
    # What a run has once found for itself stays, so that it goes on as the same run.
    found = {key: value for key, value in choices.items() if getattr(train, key) == "auto"}
    precision = devices.choose_precision(found.get("precision", train.precision), device, world)
    micro_batch = choose_micro_batch(
        found.get("micro_batch", train.micro_batch),
        share=train.batch_size // world.size,
        bytes_per_row=lambda: bytes_per_row(objective, rows, device),
        device=device,
    )
    if train.compile != "off":
        for part in objective.children():
            if isinstance(part, Encoder):
                # One graph for all lengths: one for each would take minutes, and after eight torch gives up.
                part.compile(mode=train.compile, dynamic=True)
    num_valid = min(settings.valid_rows, len(valid_rows))
    valid_size = min(train.batch_size, num_valid - num_valid % world.size)
    problem = PretrainProblem(
        objective=objective,
        module=world.wrap(
            objective,
            train.parallel,
            layers=[part for part in objective.modules() if isinstance(part, Layer)],
            idle_weights=settings.objective == "two_stage",
            methods=("suspicion",),
        ),
        train=batches,
        valid=Batches(valid_rows, seed=settings.seed, batch_size=valid_size) if valid_size else None,
        num_valid=num_valid // valid_size if valid_size else 0,
        seed=settings.seed,
        share=Share(rank=world.rank, world_size=world.size, micro_batch=micro_batch),
        device=device,
        flops_per_token=cost.flops_per_token(settings, encoder, length=rows.seq_length),
        add=world.add,
        tokens=tokenizer.tokens,
        fixed_set=FixedSet.of(
            Batches(valid_rows, seed=FIXED_SET_SEED, batch_size=valid_size),
            facts,
            num_held_out=len(valid_rows),
            rank=world.rank,
            world_size=world.size,
            device=device,
        )
        if valid_size
        else None,
    )
    scaler = torch.amp.GradScaler(device.type) if precision == "fp16" else None
    optimizer = build_optimizer(train, objective.named_parameters())
    return Run(
        settings=settings,
        rows=rows,
        tokenizer=tokenizer,
        objective=objective,
        make_objective=make_objective,
        problem=problem,
        state=TrainState(model=objective, optimizer=optimizer, scaler=scaler),
        loop=LoopConfig(
            schedule=train, clip_norm=train.clip_norm, budget=train.budget, device=device, precision=precision
        ),
        facts={
            "config": resume.plain(config.to_dict(settings)),
            "dataset_sha256": files.sha256(data / files.MANIFEST),
            "tokenizer_sha256": tokenizer.content_hash,
            "choices": {"device": device.type, "precision": precision, "micro_batch": micro_batch},
        },
    )


def token_facts(tokenizer: Tokenizer, data: Path) -> TokenFacts:
    """What objectives must know of the vocabulary."""
    continues = torch.from_numpy(tokenizer.continues_word())
    counts = data / "token_counts.npy"
    return TokenFacts(
        vocab_size=tokenizer.vocab_size,
        mask_id=tokenizer.mask_id,
        special_ids=(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id),
        continues_word_V=continues if continues.any() else None,
        counts_V=torch.from_numpy(np.load(counts, allow_pickle=False)) if counts.is_file() else None,
    )


def bytes_per_row(objective: Objective, rows: Rows, device: torch.device) -> float:
    """What a forward pass keeps for its backward pass, for each row."""
    inputs = Inputs.from_batch(Batches(rows, seed=0, batch_size=_PROBE_ROWS)[0])
    random = StepRandom(seed=0, step=0, num_rows=_PROBE_ROWS)
    masked = objective.mask(inputs, random).to(device)
    with saved_bytes() as total:
        objective.train()(inputs.to(device), random, masked=masked)
    # What checkpoints of activations hold is not seen by the count.
    held = sum(
        activation_bytes(
            part.config,
            rows=1,
            length=rows.seq_length,
            number_size=4,
            attention="plain",
            recomputes_layers=True,
        )
        for part in objective.modules()
        if isinstance(part, Encoder) and part.recomputes_layers
    )
    return held + total[0] / _PROBE_ROWS


def describe(run: Run, out: Path, peak: float) -> None:
    """Write config.yaml and environment.json."""
    resume.write_description(
        out,
        config.to_dict(run.settings),
        choices=run.facts["choices"],
        gemm_peak_flops=peak,
        parameters=cost.parameters_by_part(run.objective),
        flops_per_token=run.problem.flops_per_token,
    )


def write_final(run: Run, weights: Mapping[str, Tensor], folder: Path) -> None:
    """The encoders with the tokenizer, in a folder that appears when it is whole."""
    # The objective in training may be spread over processes and compiled: a plain one takes its weights.
    objective = run.make_objective()
    copy_weights(weights, objective, where="the trained model")
    write_networks(
        folder,
        objective.sizes(),
        objective.plain_state(),
        run.tokenizer,
        encoder=objective.encoder_name,
        facts={
            "step": run.state.step,
            "seq_length": run.rows.seq_length,
            **{key: run.facts[key] for key in ("config", "dataset_sha256")},
        },
    )


def summary(run: Run, out: Path) -> str:
    """What a person wants to know of a finished run."""
    state = run.state
    lines = {
        "trained": f"{state.step:,} steps, {state.tokens:,} tokens, {state.flops:.2e} FLOPs, "
        f"{clock(state.seconds)}",
        "best": "nothing was held out"
        if state.best_error is None
        else f"step {state.best_step:,}, by what was held out",
        "encoder": str(out / "final" / run.objective.encoder_name),
        "curves": f"electra report {out}",
    }
    return table(lines)


def preview(run: Run, world: World) -> None:
    """Take one step in memory, and say what the run will need."""
    problem, rows_at_once = run.problem, run.facts["choices"]["micro_batch"]
    kept_bytes = rows_at_once * bytes_per_row(run.objective, run.rows, problem.device)
    step = next(training_steps(run.state, problem, run.loop, world))
    rows = problem.samples()[:_NUM_EXAMPLES]
    problem.close()
    if not world.writes:
        return
    left = run.loop.budget.seconds_left(steps=1, seconds=step.seconds, tokens=step.tokens)
    speed = step.tokens / step.seconds
    lines = {
        **cost.needs(
            run.objective,
            flops_per_token=problem.flops_per_token,
            tokens_per_step=step.tokens,
            kept_bytes=kept_bytes,
            num_checkpoints=run.settings.checkpoint.most_at_once,
        ),
        "machine": f"{problem.device.type}, {run.loop.precision}, {rows_at_once} rows at once",
        "first step": f"loss {step.loss:.3f} in {step.seconds:.2f} s, {speed:,.0f} tokens/s",
        "whole run": f"about {clock(left)} at the speed of this step, which is the slowest",
    }
    print(table(lines))
    for row in rows:
        print(f"\n{show_row(row)}")
