"""`electra import`: a model of transformers or of the original code -> a folder, and a run, of ours.

With --run and --data the model is also put into a run folder as its last checkpoint, with Adam's moments and
the step if the source has them, so that `electra pretrain` goes on from there.
"""

import contextlib
import dataclasses
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from electra import cli, config, files, show
from electra.errors import InputError
from electra.formats.imported import Imported, read_transformers, write_imported
from electra.formats.tensorflow import read_tensorflow
from electra.model.sizes import PRESETS, EncoderConfig, generator_config
from electra.pretraining.config import GeneratorConfig, ModelConfig, PretrainConfig
from electra.pretraining.masking import TokenFacts
from electra.pretraining.objectives import build_objective
from electra.text import tokenizer as tokenizers
from electra.text.rows import Rows
from electra.train import resume
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.optim import build_optimizer
from electra.train.schedule import TrainConfig
from electra.train.session import CHECKPOINTS
from electra.train.state import TrainState

_MOST_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """A foreign model, and where it shall go."""

    source: Literal["transformers", "tensorflow"] | None = None
    """What the model was made with; also written --from."""
    path: list[str] = field(default_factory=list)
    """The model; may also follow the word after --from. For transformers its folder, or the folders of a
    discriminator and of its generator; for tensorflow PREFIX of PREFIX.index, or the folder around it."""
    out: str = ""
    """Folder for the model in our layout, which is that of transformers."""
    vocab: str = ""
    """vocab.txt of a TensorFlow checkpoint, if it does not lie beside it."""
    num_attention_heads: int | None = None
    """Of a TensorFlow checkpoint, which does not say it; by default one for every 64 of the hidden size."""
    run: str = ""
    """Run folder to put the model into, for `electra pretrain` to go on with."""
    data: str = ""
    """With --run: folder made by `electra prepare` with the model's tokenizer."""
    step: int | None = None
    """With --run: the step to go on from; by default the one that the checkpoint knows, or 0."""
    pretrain: list[str] = field(default_factory=list)
    """With --run: keys of `electra pretrain`, such as train.steps=1100000 train.learning_rate=1e-4."""

    def __post_init__(self) -> None:
        if self.step is not None and self.step < 0:
            raise InputError(f"step is {self.step}, expected 0 or more")
        if bool(self.run) != bool(self.data):
            raise InputError("--run and --data go together: give both or none")
        if not self.run and (self.pretrain or self.step is not None):
            raise InputError("--pretrain and --step are about a run: give --run RUN and --data DATA too")


def main(arguments: Sequence[str]) -> None:
    """Read a foreign model and write it as ours."""
    settings = config.parse(ImportConfig, as_options(arguments), prog="electra import")
    if not (settings.source and settings.path and settings.out):
        raise InputError(
            "give --from transformers|tensorflow PATH and --out DIR (see 'electra import --help')"
        )
    # Before the hundreds of megabytes are read.
    for folder in filter(None, (settings.out, settings.run)):
        files.refuse_full(Path(folder))
    imported = read(settings)
    run = prepare_run(settings, imported) if settings.run else None
    write_imported(imported, Path(settings.out))
    if run is not None:
        write_run(run, Path(settings.run))
    print(summary(settings, imported))


def as_options(arguments: Sequence[str]) -> list[str]:
    """`--from FORMAT PATH ...` in the words of the config: `from` cannot be the name of a field."""
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words.insert(0, "--path")
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option == "--from":
            words[place] = f"--source{equals}{value}"
            after = place + (1 if equals else 2)
            if after < len(words) and not words[after].startswith("-"):
                words.insert(after, "--path")
            break
    return words


def read(settings: ImportConfig) -> Imported:
    """The model, by our names."""
    if settings.source == "transformers":
        if settings.vocab or settings.num_attention_heads:
            raise InputError("--vocab and --num_attention_heads are for TensorFlow: transformers says both")
        return read_transformers(settings.path)
    if len(settings.path) > 1:
        raise InputError(
            f"--path names {len(settings.path)} checkpoints, expected one: it holds both encoders"
        )
    return read_tensorflow(
        settings.path[0],
        vocabulary=settings.vocab or None,
        num_attention_heads=settings.num_attention_heads,
    )


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run as if it had come to where the imported model is."""

    state: TrainState
    facts: Mapping[str, Any]
    values: Mapping[str, Any]
    """All keys of `electra pretrain`."""


def prepare_run(settings: ImportConfig, imported: Imported) -> ImportedRun:
    """Check that the model can be trained on with the data, and build the state to begin with."""
    data, tokenizer = Path(settings.data), imported.tokenizer
    special_ids = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    step = imported.step if settings.step is None else settings.step
    seq_length = check_data(data, imported)
    values = pretrain_values([*structure(imported), *settings.pretrain], settings)
    train = TrainConfig(**values["train"])
    if train.steps is not None and step >= train.steps:
        raise InputError(
            f"the model has come to step {step:,} and the run ends at {train.steps:,}: give more, such as "
            f"--pretrain train.steps={step + 100_000}, or count anew with --step 0"
        )
    if imported.moments and train.optimizer != "adam_as_google":
        raise InputError(
            f"train.optimizer is {train.optimizer}, but the model comes with the moments of the original's "
            "Adam: leave it at adam_as_google"
        )
    objective = build_objective(
        PretrainConfig(objective=values["objective"], generator=GeneratorConfig(**values["generator"])),
        ModelConfig(**values["model"]).encoder(vocab_size=tokenizer.vocab_size),
        TokenFacts(vocab_size=tokenizer.vocab_size, mask_id=tokenizer.mask_id, special_ids=special_ids),
        seq_length=seq_length,
        seed=values["seed"],
    )
    state = TrainState(
        model=objective, optimizer=build_optimizer(train, objective.named_parameters()), step=step
    )
    fill(state, imported)
    facts = {
        "config": resume.plain(values),
        "dataset_sha256": files.sha256(data / files.MANIFEST),
        "tokenizer_sha256": tokenizer.content_hash,
        "imported_from": dict(imported.source),
    }
    return ImportedRun(state=state, facts=facts, values=values)


def check_data(data: Path, imported: Imported) -> int:
    """Refuse data that the model does not know the tokens or positions of; the length of its rows."""
    ours = next(iter(imported.sizes.values()))
    tokenizer = imported.tokenizer
    if tokenizer.vocab_size != ours.vocab_size:
        raise InputError(
            f"the model has {ours.vocab_size:,} rows for {tokenizer.vocab_size:,} tokens: it can be used, "
            "but not trained on here; leave out --run"
        )
    rows = Rows(data)
    if tokenizers.load(data / "tokenizer").content_hash != tokenizer.content_hash:
        raise InputError(
            f"{data} was made with another tokenizer than the model's: prepare it again with the model's, "
            "which is in the folders of --out: electra prepare --tokenizer DIR/discriminator"
        )
    if rows.seq_length > ours.max_position_embeddings:
        raise InputError(
            f"{data} has rows of {rows.seq_length} tokens, the model takes {ours.max_position_embeddings}: "
            f"prepare it again with --seq_length {ours.max_position_embeddings}"
        )
    return rows.seq_length


def structure(imported: Imported) -> list[str]:
    """The keys of `electra pretrain` that build the same networks."""
    sizes = imported.sizes
    if "discriminator" not in sizes or "generator" not in sizes:
        raise InputError(
            f"--run needs a discriminator and a generator, the source has only: {', '.join(sizes)}; leave "
            "out --run, or give both folders"
        )
    large, small = sizes["discriminator"], sizes["generator"]
    width, depth = (getattr(small, key) / getattr(large, key) for key in ("hidden_size", "num_hidden_layers"))
    if generator_config(large, width=width, depth=depth) != small:
        raise InputError(
            "the generator is no smaller copy of the discriminator: it cannot be trained on here"
        )
    if large.hidden_dropout_prob != large.attention_probs_dropout_prob:
        raise InputError(
            f"hidden_dropout_prob is {large.hidden_dropout_prob}, attention_probs_dropout_prob "
            f"{large.attention_probs_dropout_prob}: a run has one dropout for both; make them equal"
        )
    # The size also names batch, steps and learning rate: those of the paper's nearest model.
    nearest = min(PRESETS, key=lambda name: abs(PRESETS[name]["hidden_size"] - large.hidden_size))
    preset = EncoderConfig.preset(nearest, vocab_size=large.vocab_size)
    keys = [key.name for key in dataclasses.fields(ModelConfig) if hasattr(large, key.name)]
    changed = {key: getattr(large, key) for key in keys if getattr(large, key) != getattr(preset, key)}
    if large.hidden_dropout_prob != preset.hidden_dropout_prob:
        changed["dropout"] = large.hidden_dropout_prob
    return [
        f"model.size={nearest}",
        *(f"model.{key}={value!r}" for key, value in changed.items()),
        *(
            f"generator.width={width!r}",
            f"generator.depth={depth!r}",
            f"generator.sharing={sharing(imported)}",
        ),
    ]


def sharing(imported: Imported) -> str:
    """What both encoders have in common."""
    state = imported.state
    twins = {
        name: name.replace("generator.", "discriminator.", 1)
        for name in state
        if name.startswith("generator.")
    }
    same = {name for name, twin in twins.items() if twin in state and torch.equal(state[name], state[twin])}
    if same == twins.keys():
        return "all"
    return "embeddings" if {name for name in twins if ".embeddings." in name} <= same else "none"


def pretrain_values(keys: Sequence[str], settings: ImportConfig) -> dict[str, Any]:
    """All values that `electra pretrain` would run with, by its own word."""
    printed = io.StringIO()
    words = [f"--data={settings.data}", f"--out={settings.run}", *(f"--{key}" for key in keys)]
    with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        if cli.main(["pretrain", *words, "--print_config"]):
            raise InputError("`electra pretrain` does not take the keys of --pretrain: see above")
    values: dict[str, Any] = yaml.safe_load(printed.getvalue())
    return values


def fill(state: TrainState, imported: Imported) -> None:
    """Give the networks the imported weights, and the optimizer the moments."""
    own = {name: tensor.shape for name, tensor in state.model.state_dict().items()}
    if own != {name: tensor.shape for name, tensor in imported.state.items()}:
        raise InputError(
            "the keys of --pretrain change the networks: leave model, generator and objective as they are"
        )
    state.model.load_state_dict(imported.state)
    if not imported.moments:
        return
    for name, weight in state.model.named_parameters():
        state.optimizer.state[weight] = {
            moment: values[name].clone() for moment, values in imported.moments.items()
        }


def write_run(run: ImportedRun, folder: Path) -> None:
    """A run folder with one checkpoint, and the config that goes on from it."""
    folder.mkdir(parents=True, exist_ok=True)
    with CheckpointStore(folder / CHECKPOINTS, CheckpointConfig()) as store:
        store.save(run.state.step, run.state.tensors(), {**run.facts, **run.state.facts()})
    text = yaml.safe_dump(run.values, sort_keys=False)
    files.write_file(folder / "config.yaml", lambda file: file.write(text.encode()))


def summary(settings: ImportConfig, imported: Imported) -> str:
    """What was found, and how to go on with it."""
    lines: dict[str, str] = {
        role: f"{size.num_hidden_layers} layers of {size.hidden_size}, {size.num_attention_heads} heads, "
        f"embeddings of {size.embedding_size} for {size.vocab_size:,} tokens"
        for role, size in imported.sizes.items()
    }
    if imported.left_out:
        lines["left out"] = show.listed(imported.left_out, most=_MOST_SHOWN)
    if imported.step or imported.moments:
        lines["training"] = (
            f"step {imported.step:,}, {'with' if imported.moments else 'without'} Adam's moments"
        )
    lines["model"] = settings.out
    if settings.run:
        lines["go on"] = f"electra pretrain --config {Path(settings.run) / 'config.yaml'}"
    return show.table(lines)
