"""A run config -> data, objective, optimizer and loop -> a trained run folder.

`build` puts the parts of a run together and touches no file but the data's. `run_pretraining` also trains to
the end of the budget and writes RUN/final, a folder for each encoder. `first_step` is the dry run.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from electra import config, files
from electra.errors import InputError
from electra.model.cost import activation_bytes
from electra.model.encoder import Encoder
from electra.model.names import is_layer_matrix
from electra.model.sizes import EncoderConfig
from electra.model.store import TOKENS_READ, write_networks
from electra.pretraining import cost
from electra.pretraining.config import FREE_KEYS, PretrainRunConfig
from electra.pretraining.masking import Inputs, StepRandom, TokenFacts
from electra.pretraining.ngrams import open_index
from electra.pretraining.objectives import build_objective
from electra.pretraining.objectives.protocol import Objective, StepOutput
from electra.pretraining.spectral import open_vectors, start_at_vectors
from electra.pretraining.start import STARTED_FROM, all_tokens_read, begin_from, read_start
from electra.pretraining.states import STATE_ROWS, StateProbe
from electra.pretraining.step import FIXED_SET_SEED, FixedSet, Piece, Pieces, PretrainProblem, Share
from electra.text import tokenizer as tokenizers
from electra.text.batches import Batches
from electra.text.rows import TOKEN_COUNTS, Rows
from electra.text.tokenizer import Tokenizer
from electra.train.cores import gradients, timed
from electra.train.devices import autocast, saved_bytes
from electra.train.distributed import World
from electra.train.engine import Engine, json_values, read_environment, write_description
from electra.train.loop import Step, training_steps
from electra.train.optim import Network, build_optimizer
from electra.train.session import CHECKPOINTS
from electra.train.state import TrainState, copy_weights

Made = TypeVar("Made")

FINAL = "final"
_PROBE_ROWS = 4
_PROBE_TOKENS = 1024
"""Tokens of each core in a step that is timed."""
_NUM_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a run reads: rows to train on, held-out rows, and the tokenizer that made them."""

    folder: Path
    rows: Rows
    valid_rows: Rows
    tokenizer: Tokenizer
    tokens: TokenFacts

    @classmethod
    def read(cls, folder: Path) -> "Data":
        """Open a folder made by `electra prepare`."""
        rows, counts = Rows(folder), folder / TOKEN_COUNTS
        rows.require_intact(
            name for name in rows.manifest["files"] if name.startswith("tokenizer/") or name == TOKEN_COUNTS
        )
        tokenizer = tokenizers.load_tokenizer(folder / "tokenizer")
        continues = torch.from_numpy(tokenizer.continues_word())
        tokens = TokenFacts(
            vocab_size=tokenizer.vocab_size,
            mask_id=tokenizer.mask_id,
            special_ids=(tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id),
            sep_id=tokenizer.sep_id,
            continues_word_V=continues if continues.any() else None,
            counts_V=torch.from_numpy(np.load(counts, allow_pickle=False)) if counts.is_file() else None,
        )
        return cls(
            folder=folder, rows=rows, valid_rows=Rows(folder, "valid"), tokenizer=tokenizer, tokens=tokens
        )

    def with_ngrams(self, tokens: int, world: World, *, keep: files.Keep) -> "Data":
        """The same with the index of at most so many tokens, made by one process if it is not there yet."""
        index = one_then_others(
            world,
            lambda: open_index(
                self.rows,
                special_ids=self.tokens.special_ids,
                vocab_size=self.tokens.vocab_size,
                tokens=tokens,
                keep=keep if world.writes else "in_memory",
            ),
        )
        return replace(self, tokens=replace(self.tokens, ngrams=index))


@dataclass(frozen=True, kw_only=True)
class Pretraining:
    """A run put together, before or after its training."""

    settings: PretrainRunConfig
    data: Data
    engine: Engine
    objective: Objective
    make_objective: Callable[[], Objective]
    """The same objective with its initial weights, neither compiled nor spread over processes."""
    problem: PretrainProblem
    state: TrainState
    facts: dict[str, Any]
    """What every checkpoint says of the run: config, hashes of data and tokenizer, choices."""


def build(settings: PretrainRunConfig, engine: Engine) -> Pretraining:
    """Put a run together: data, objective, problem, optimizer."""
    data = Data.read(Path(settings.data))
    if settings.generator.kind == "ngram" and settings.objective != "mlm":
        data = data.with_ngrams(settings.generator.ngram_tokens, engine.world, keep=keep_of(settings))
    encoder = settings.model.encoder(vocab_size=data.tokens.vocab_size)
    if encoder.max_position_embeddings < data.rows.seq_length:
        raise InputError(
            f"{data.folder} has rows of {data.rows.seq_length} tokens, the model takes "
            f"{encoder.max_position_embeddings}: set --model.max_position_embeddings {data.rows.seq_length}"
        )
    # Others may be on machines that do not see the folder, or see it later.
    resumed = bool(settings.out) and engine.world.first_says(lambda: is_resumed(Path(settings.out)))
    start = read_start(Path(settings.start)) if settings.start and not resumed else None
    if start is not None:
        start.require_room(encoder)
    make_objective = partial(
        build_objective,
        settings,
        encoder,
        data.tokens,
        seq_length=data.rows.seq_length,
        seed=settings.seed,
        batch_size=settings.train.batch_size,
    )
    objective = make_objective(device=engine.device)
    if settings.model.embedding_start != "random" and not resumed:
        start_embeddings(settings, objective, data, encoder, engine.world)
    started_from = begin_from(start, objective, data.tokenizer) if start else None
    if resumed:
        started_from = engine.world.first_says(lambda: earlier_start(Path(settings.out)))
    engine.set_recomputation(objective)
    micro_batch = engine.micro_batch(lambda: bytes_per_row(objective, data.rows, engine.device))
    cores = engine.num_cores(partial(step_seconds, objective, data.rows, engine))
    problem = build_problem(settings, engine, data, encoder, objective, micro_batch=micro_batch, cores=cores)
    # After the problem: with fsdp, wrapping the objective has replaced its weights.
    optimizer = build_optimizer(
        settings.train,
        objective.named_parameters(),
        network=separate_networks(settings, objective),
        is_matrix=is_layer_matrix,
        peak=settings.train.learning_rate,
        precision=engine.precision,
    )
    return Pretraining(
        settings=settings,
        data=data,
        engine=engine,
        objective=objective,
        make_objective=make_objective,
        problem=problem,
        state=engine.state(objective, optimizer),
        facts={
            "config": json_values(config.to_dict(settings)),
            "dataset_sha256": files.sha256(data.folder / files.MANIFEST),
            "tokenizer_sha256": data.tokenizer.content_hash,
            "choices": engine.choices(micro_batch=micro_batch, cores=cores),
            STARTED_FROM: started_from,
        },
    )


def earlier_start(out: Path) -> dict[str, Any] | None:
    """Where the weights of a resumed run began: at what `--start` named then, or at a model that was imported
    as a run; None: they were random."""
    found = read_environment(out).get(STARTED_FROM)
    return dict(found) if isinstance(found, dict) and found else None


def start_embeddings(
    settings: PretrainRunConfig, objective: Objective, data: Data, encoder: EncoderConfig, world: World
) -> None:
    """Give the tables of tokens first vectors that are not random."""
    vectors_VE = one_then_others(
        world,
        lambda: open_vectors(
            data.rows,
            vocab_size=data.tokens.vocab_size,
            special_ids=data.tokens.special_ids,
            size=encoder.embedding_size,
            keep=keep_of(settings) if world.writes else "in_memory",
        ),
    )
    start_at_vectors(objective, vectors_VE, std=encoder.initializer_range)


def one_then_others(world: World, make: Callable[[], Made]) -> Made:
    """What one process makes and keeps, and all others read after it."""
    if not world.writes:
        world.barrier()
    made = make()
    if world.writes:
        world.barrier()
    return made


def keep_of(settings: PretrainRunConfig) -> files.Keep:
    """Where to keep what is derived from the data: a dry run writes nothing."""
    return "in_memory" if settings.dry_run else "in_cache"


def is_resumed(out: Path) -> bool:
    """Whether a run folder has weights of its own already."""
    return any((out / CHECKPOINTS).glob("step-*"))


def separate_networks(settings: PretrainRunConfig, objective: Objective) -> Callable[[str], Network] | None:
    """Which network a parameter belongs to, where generator and discriminator are optimized separately."""
    train = settings.train
    if train.optimizers == "joint":
        return None
    owned = objective.parameters_by_owner()
    if len(owned) < 2 or settings.generator.sharing == "all" or settings.objective == "single_pass":
        raise InputError(
            f"train.optimizers is separate, but objective {settings.objective} with generator.kind "
            f"{settings.generator.kind} and generator.sharing {settings.generator.sharing} trains one "
            "network: set it to joint"
        )
    rate = train.generator_learning_rate or train.learning_rate
    networks = {
        "generator": Network("generator", rate / train.learning_rate),
        "discriminator": Network("discriminator", 1.0),
    }
    by_name = {name: networks[owner] for owner, named in owned.items() for name, _ in named}
    return by_name.__getitem__


def build_problem(
    settings: PretrainRunConfig,
    engine: Engine,
    data: Data,
    encoder: EncoderConfig,
    objective: Objective,
    *,
    micro_batch: int,
    cores: int,
) -> PretrainProblem:
    """What the loop minimises, evaluates and shows."""
    world, device, seed = engine.world, engine.device, settings.seed
    num_valid = min(settings.valid_rows, len(data.valid_rows))
    valid_size = min(settings.train.batch_size, num_valid - num_valid % world.size)
    valid = fixed_set = probe = None
    if valid_size:
        valid = Batches(data.valid_rows, seed=seed, batch_size=valid_size)
        fixed_set = FixedSet.of(
            Batches(data.valid_rows, seed=FIXED_SET_SEED, batch_size=valid_size),
            data.tokens,
            num_held_out=len(data.valid_rows),
            rank=world.rank,
            world_size=world.size,
            device=device,
        )
        num_states = min(STATE_ROWS, num_valid)
        probe = StateProbe(
            batches=Batches(
                data.valid_rows,
                seed=FIXED_SET_SEED,
                batch_size=max(world.size, num_states - num_states % world.size),
            ),
            rank=world.rank,
            world_size=world.size,
            device=device,
            add=world.add,
        )
    return PretrainProblem(
        objective=objective,
        module=engine.wrap(
            objective,
            idle_weights=settings.objective == "two_stage",
            methods=("suspicion", "states"),
        ),
        train=Batches(data.rows, seed=seed, batch_size=settings.train.batch_size),
        valid=valid,
        num_valid=num_valid // valid_size if valid_size else 0,
        seed=seed,
        share=Share(rank=world.rank, world_size=world.size, micro_batch=micro_batch, cores=cores),
        device=device,
        flops_per_token=cost.flops_per_token(settings, encoder, length=data.rows.seq_length),
        add=world.add,
        tokens=data.tokenizer.tokens,
        fixed_set=fixed_set,
        probe=probe,
    )


def bytes_per_row(objective: Objective, rows: Rows, device: torch.device) -> float:
    """Bytes that a forward pass keeps for its backward pass, for each row."""
    inputs = Inputs.from_batch(Batches(rows, seed=0, batch_size=_PROBE_ROWS)[0])
    random = StepRandom(seed=0, step=0, num_rows=_PROBE_ROWS)
    masked = objective.mask(inputs, random).to(device)
    with saved_bytes() as total:
        objective.train()(inputs.to(device), random, masked=masked)
    # Where layers are recomputed, torch does not count the inputs that it keeps for that.
    recomputed = sum(
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
    return recomputed + total[0] / _PROBE_ROWS


def step_seconds(objective: Objective, rows: Rows, engine: Engine, cores: int) -> float:
    """The time of a step but for its update, with so many cores that have rows of their own."""
    threads = engine.train.threads or torch.get_num_threads()
    num_rows = min(engine.train.batch_size, threads * max(1, _PROBE_TOKENS // rows.seq_length))
    pieces = Pieces(
        batches=Batches(rows, seed=0, batch_size=num_rows),
        mask=objective.mask,
        seed=0,
        share=Share(cores=cores),
    )[0]
    objective.train().begin_step(0)

    def backward(piece: Piece, module: nn.Module) -> None:
        with autocast(engine.device, engine.precision):
            output: StepOutput = module(piece.inputs, piece.random, masked=piece.masked)
        torch.autograd.backward(output.loss)

    seconds = timed(lambda: gradients(objective, pieces, backward, cores=cores))
    objective.zero_grad(set_to_none=True)
    return seconds


def run_pretraining(settings: PretrainRunConfig, world: World, device: torch.device) -> Pretraining:
    """Train to the end of the budget, from wherever the run folder stands, and write the encoders."""
    out = Path(settings.out)
    engine = Engine.choose(settings.train, world, device, run=out)
    run = build(settings, engine)
    with engine.holding(out):
        peak = engine.peak()
        engine.run(
            out,
            settings,
            state=run.state,
            problem=run.problem,
            budget=settings.train.budget,
            log=settings.log,
            facts=run.facts,
            free_keys=FREE_KEYS,
            defaults=config.to_dict(PretrainRunConfig()),
            describe=lambda: write_description(
                out,
                config.to_dict(settings),
                choices=run.facts["choices"],
                gemm_peak_flops=peak,
                parameters=cost.parameters_by_part(run.objective),
                flops_per_token=run.problem.flops_per_token,
                started_from=run.facts[STARTED_FROM],
            ),
            peak=peak,
        )
        write_final(run, out / FINAL)
    return run


def write_final(run: Pretraining, folder: Path) -> None:
    """Write the encoders with the tokenizer, into a folder that appears when it is whole."""
    writes = run.engine.world.writes
    # The objective in training may be spread over processes and compiled: a plain one takes its weights.
    weights = {name: tensor for name, tensor in run.state.whole_weights() if writes}
    if not writes:
        return
    objective = run.make_objective()
    copy_weights(weights, objective, where="the trained model")
    write_networks(
        folder,
        objective.sizes(),
        objective.plain_state(),
        run.data.tokenizer,
        encoder=objective.encoder_name,
        facts={
            "step": run.state.step,
            TOKENS_READ: all_tokens_read(
                run.state.tokens, run.facts[STARTED_FROM], encoder=objective.encoder_name
            ),
            "seq_length": run.data.rows.seq_length,
            **{key: run.facts[key] for key in ("config", "dataset_sha256", STARTED_FROM)},
        },
    )


@dataclass(frozen=True, kw_only=True)
class FirstStep:
    """What one step in memory tells of a run."""

    step: Step
    kept_bytes: float
    """What the rows worked on at once keep for the backward pass."""
    seconds_left: float
    """Of the whole run at the speed of this step."""
    samples: list[dict[str, Any]]
    """Held-out rows as both networks see them."""


def first_step(run: Pretraining) -> FirstStep:
    """Take one step without writing anything."""
    problem, micro_batch = run.problem, run.facts["choices"]["micro_batch"]
    kept_bytes = micro_batch * bytes_per_row(run.objective, run.data.rows, run.engine.device)
    loop = run.engine.loop(run.settings.train.budget)
    with run.engine.computing():
        step = next(training_steps(run.state, problem, loop, run.engine.world))
    samples = problem.samples()[:_NUM_EXAMPLES]
    problem.close()
    left = loop.budget.seconds_left(steps=1, seconds=step.seconds, tokens=step.tokens)
    return FirstStep(step=step, kept_bytes=kept_bytes, seconds_left=left, samples=samples)
