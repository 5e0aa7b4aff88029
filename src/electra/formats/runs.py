"""An imported model and data -> a run folder that `electra pretrain` continues from that model."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from electra import config, files
from electra.config import Given
from electra.errors import InputError
from electra.formats.imported import Imported
from electra.model.store import TOKENS_READ
from electra.pretraining.build import build
from electra.pretraining.config import PretrainRunConfig, network_keys, paper_defaults
from electra.pretraining.start import STARTED_FROM, shared_weights
from electra.text import tokenizer as tokenizers
from electra.text.rows import Rows
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.engine import ENVIRONMENT, Engine, write_config
from electra.train.session import CHECKPOINTS
from electra.train.state import TrainState


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run as if its training had arrived at the imported model."""

    settings: PretrainRunConfig
    state: TrainState
    facts: Mapping[str, Any]


def prepare_run(imported: Imported, given: Given[PretrainRunConfig], *, step: int | None) -> ImportedRun:
    """Check that pre-training can continue from the model with the data, and build the state to start with.

    `given`: data, out and whatever else a person wants of the run. `step`: instead of the source's own.
    """
    data = Path(given.draft().data)
    check_data(data, imported)
    known = dataclasses.replace(given, values={}).changed(structure(imported)).values
    given = dataclasses.replace(given, values={**known, **given.values})
    settings = given.config(paper_defaults(given))
    step, end = imported.step if step is None else step, settings.train.steps
    if end is not None and step >= end:
        raise InputError(
            f"the model is at step {step:,} and the run ends at {end:,}: give more steps, such as "
            f"--pretrain train.steps={step + 100_000}, or count from zero with --step 0"
        )
    if imported.moments and settings.train.optimizer != "adam_as_google":
        raise InputError(
            f"train.optimizer is {settings.train.optimizer}, but the model comes with the moments of the "
            "original's Adam: leave it at adam_as_google"
        )
    if settings.model.embedding_start != "random":
        raise InputError(
            f"model.embedding_start is {settings.model.embedding_start}, but the embeddings are the model's: "
            "leave it out of --pretrain"
        )
    # On the CPU, whatever the run will train on: nothing is computed here.
    run = build(settings, Engine(train=settings.train))
    run.state.step = step
    fill(run.state, imported)
    # The machine that continues the run makes its own choices.
    facts = {key: value for key, value in run.facts.items() if key != "choices"}
    source = dict(imported.source)
    # How much the model has read before, nobody knows.
    paths = source.get("paths") or [source.get("path", "")]
    started_from = {"path": ", ".join(paths), "step": imported.step, TOKENS_READ: None, "random": []}
    return ImportedRun(
        settings=settings,
        state=run.state,
        facts={**facts, "imported_from": source, STARTED_FROM: started_from},
    )


def check_data(data: Path, imported: Imported) -> None:
    """Refuse data with tokens or positions that the model does not have."""
    ours = next(iter(imported.sizes.values()))
    tokenizer = imported.tokenizer
    if tokenizer.vocab_size != ours.vocab_size:
        raise InputError(
            f"the model has embeddings for {ours.vocab_size:,} tokens, its tokenizer has "
            f"{tokenizer.vocab_size:,}: it can be used, but a run cannot continue from it; leave out --run"
        )
    rows = Rows(data)
    if tokenizers.load_tokenizer(data / "tokenizer").content_hash != tokenizer.content_hash:
        raise InputError(
            f"{data} was made with another tokenizer than the model's: import the model without --run, then "
            "prepare the data with its tokenizer, electra prepare --tokenizer DIR/discriminator"
        )
    if rows.seq_length > ours.max_position_embeddings:
        raise InputError(
            f"{data} has rows of {rows.seq_length} tokens, the model takes {ours.max_position_embeddings}: "
            f"prepare it again with --seq_length {ours.max_position_embeddings}"
        )


def structure(imported: Imported) -> dict[str, Any]:
    """The keys of a pre-training run that build the same networks."""
    sizes = imported.sizes
    if "discriminator" not in sizes or "generator" not in sizes:
        raise InputError(
            f"--run needs a discriminator and a generator, the source has only: {', '.join(sizes)}; give "
            "both folders, or leave out --run"
        )
    return network_keys(sizes, sharing=shared_weights(imported.state))


def fill(state: TrainState, imported: Imported) -> None:
    """Give the networks the imported weights, and the optimizer the moments."""
    own = {name: tensor.shape for name, tensor in state.model.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in imported.state.items()}:
        raise InputError(
            "the keys of --pretrain change the networks: leave model, generator and objective out of them"
        )
    state.model.load_state_dict(imported.state)
    if not imported.moments:
        return
    for name, weight in state.model.named_parameters():
        state.optimizer.state[weight] = {
            moment: values[name].clone() for moment, values in imported.moments.items()
        }


def write_run(run: ImportedRun, folder: Path) -> None:
    """Write a run folder with one checkpoint, and the config that continues it."""
    folder.mkdir(parents=True, exist_ok=True)
    with CheckpointStore(folder / CHECKPOINTS, CheckpointConfig()) as store:
        store.save(run.state.step, run.state.tensors(), {**run.facts, **run.state.facts()})
    write_config(folder, config.to_dict(run.settings))
    # Where it began is told to the command that continues it.
    files.write_json(folder / ENVIRONMENT, {STARTED_FROM: run.facts[STARTED_FROM]})
