"""`electra import`: a model of transformers or of the original code -> a folder, and a run, of ours.

A name that is no folder here is that of a model on the Hugging Face Hub: what is read of it is fetched into
the cache of the Hub's client.
What transformers has fine-tuned for a task is a fine-tuned model here, too, with its head. With --run and
--data the model also becomes the last checkpoint of a run folder, with Adam's moments and the step if the
source has them, so that `electra pretrain` continues from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from electra import config, files, hub, show
from electra.config import Given
from electra.errors import InputError
from electra.formats.imported import (
    Imported,
    ImportedTask,
    Part,
    fetch,
    origin_of,
    read_task,
    read_transformers,
    write_imported,
    write_task,
)
from electra.formats.runs import prepare_run, write_run
from electra.formats.tensorflow import read_tensorflow
from electra.hub import Fetched
from electra.model.sizes import EncoderConfig
from electra.pretraining.config import PretrainRunConfig

_MOST_SHOWN, _MOST_LABELS = 4, 12


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """A model of another library, and where to put it."""

    source: Literal["transformers", "tensorflow"] | None = None
    """Library that the model was made with; also written --from."""
    path: list[str] = field(default_factory=list)
    """The model; may also follow the value of --from. For transformers its folder, or else its name on the
    Hugging Face Hub, or both of a discriminator and its generator; for tensorflow the PREFIX of PREFIX.index,
    or the folder of it."""
    revision: str = ""
    """Branch, tag or commit of a model on the Hub. Default: its main branch."""
    out: str = ""
    """Folder for the model, in transformers' layout."""
    part: Part = "all"
    """Whether to read a model of transformers with the head of its task or its pre-training, or its encoder
    alone."""
    prefix: str = ""
    """What the names of the encoder's weights begin with, such as `backbone.`, if a folder of transformers
    holds several encoders. Default: detected."""
    vocab: str = ""
    """vocab.txt of a TensorFlow checkpoint, if it is not in the same folder."""
    num_attention_heads: int | None = None
    """Attention heads of a TensorFlow checkpoint, which does not say. Default: hidden size / 64."""
    run: str = ""
    """Run folder to put the model into, for `electra pretrain` to continue."""
    data: str = ""
    """With --run: folder made by `electra prepare` with the model's tokenizer."""
    step: int | None = None
    """With --run: the step to continue from. Default: the checkpoint's, or 0."""
    pretrain: list[str] = field(default_factory=list)
    """With --run: keys of `electra pretrain`, such as train.steps=1100000 train.learning_rate=1e-4."""

    def __post_init__(self) -> None:
        if self.step is not None and self.step < 0:
            raise InputError(f"step is {self.step}, expected 0 or more")
        if bool(self.run) != bool(self.data):
            raise InputError("--run and --data go together: give both or neither")
        if not self.run and (self.pretrain or self.step is not None):
            raise InputError("--pretrain and --step need a run: give --run RUN and --data DATA as well")


def main(arguments: Sequence[str]) -> None:
    """Read a model of another library and write it as ours."""
    settings = config.parse(ImportConfig, as_options(arguments), prog="electra import")
    if not (settings.source and settings.path and settings.out):
        raise InputError(
            "give --from transformers|tensorflow PATH and --out DIR (see 'electra import --help')"
        )
    check_source(settings)
    # Before hundreds of megabytes are read.
    for folder in filter(None, (settings.out, settings.run)):
        files.refuse_full(Path(folder))
    given = pretrain_keys(settings)
    fetched = fetch_models(settings)
    if (task := read_tuned(settings, fetched)) is not None:
        write_task(task, Path(settings.out))
        print(task_summary(settings, task))
        return
    imported = read_model(settings, fetched)
    run = prepare_run(imported, given, step=settings.step) if settings.run else None
    write_imported(imported, Path(settings.out))
    if run is not None:
        write_run(run, Path(settings.run))
    print(summary(settings, imported))


def as_options(arguments: Sequence[str]) -> list[str]:
    """`--from FORMAT PATH ...` as --source and --path: `from` cannot be the name of a field."""
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


def pretrain_keys(settings: ImportConfig) -> Given[PretrainRunConfig]:
    """The keys of --pretrain, as `electra pretrain` would take them, with the folders of the run."""
    words = [f"--{key.removeprefix('--')}" for key in settings.pretrain]
    given = config.read(PretrainRunConfig, words, prog="electra pretrain")
    return given.changed({"data": settings.data, "out": settings.run})


def check_source(settings: ImportConfig) -> None:
    """Refuse options of the other library."""
    if settings.source == "transformers" and (settings.vocab or settings.num_attention_heads):
        raise InputError(
            "--vocab and --num_attention_heads are for TensorFlow: a transformers folder has both"
        )
    if settings.source == "tensorflow" and (settings.prefix or settings.revision or settings.part != "all"):
        raise InputError("--prefix, --part and --revision are for transformers: leave them out")
    if settings.source == "tensorflow" and len(settings.path) > 1:
        raise InputError(
            f"--path names {len(settings.path)} checkpoints, expected one: it holds both encoders"
        )


def fetch_models(settings: ImportConfig) -> list[Fetched]:
    """The models of the Hub that are meant; empty if folders are. A folder goes before a name."""
    if settings.source != "transformers":
        return []
    remote = [path for path in settings.path if not Path(path).exists() and hub.is_name(path)]
    if not remote and settings.revision:
        raise InputError(
            f"--revision is for a model on the Hub, and {settings.path[0]} is a path here: leave it out"
        )
    if remote and len(remote) < len(settings.path):
        raise InputError(
            f"{remote[0]} is no folder here, and another model is one: give two folders, or two names"
        )
    return [fetch(name, revision=settings.revision, prefix=settings.prefix) for name in remote]


def read_tuned(settings: ImportConfig, fetched: Sequence[Fetched]) -> ImportedTask | None:
    """A model of transformers with the head of its task; None if it has none, or it is not wanted."""
    if settings.source != "transformers" or settings.part == "encoder" or len(settings.path) > 1:
        return None
    path = fetched[0].path if fetched else settings.path[0]
    found = read_task(path, prefix=settings.prefix, origin=origin_of(fetched) if fetched else None)
    if found is not None and settings.run:
        raise InputError(
            f"--run is for models of pre-training, and {settings.path[0]} was fine-tuned for "
            f"{found.tuned.task}: leave out --run and --data. To pre-train its encoder further: electra "
            "pretrain --start DIR"
        )
    return found


def read_model(settings: ImportConfig, fetched: Sequence[Fetched]) -> Imported:
    """Read the model, under our names."""
    if settings.source == "transformers":
        return read_transformers(
            [one.path for one in fetched] or settings.path,
            prefix=settings.prefix,
            part=settings.part,
            origin=origin_of(fetched) if fetched else None,
        )
    return read_tensorflow(
        settings.path[0],
        vocabulary=settings.vocab or None,
        num_attention_heads=settings.num_attention_heads,
    )


def task_summary(settings: ImportConfig, imported: ImportedTask) -> str:
    """What a fine-tuned model is, and what can be done with it."""
    tuned = imported.tuned
    lines = {
        "encoder": size_line(tuned.model.encoder.config),
        "task": tuned.family.name.replace("_", " "),
    }
    if labels := tuned.family.labels():
        lines["labels"] = show.listed(labels, most=_MOST_LABELS)
    if imported.left_out:
        lines["left out"] = show.listed(imported.left_out, most=_MOST_SHOWN)
    lines["model"] = settings.out
    return show.table(lines)


def size_line(size: EncoderConfig) -> str:
    """The sizes of an encoder in some words."""
    return (
        f"{size.num_hidden_layers} layers of {size.hidden_size}, {size.num_attention_heads} heads, "
        f"embeddings of {size.embedding_size} for {size.vocab_size:,} tokens"
    )


def summary(settings: ImportConfig, imported: Imported) -> str:
    """What was found, and how to continue with it."""
    lines: dict[str, str] = {role: size_line(size) for role, size in imported.sizes.items()}
    if imported.left_out:
        lines["left out"] = show.listed(imported.left_out, most=_MOST_SHOWN)
    if imported.step or imported.moments:
        lines["training"] = (
            f"step {imported.step:,}, {'with' if imported.moments else 'without'} Adam's moments"
        )
    lines["model"] = settings.out
    if settings.run:
        lines["continue"] = f"electra pretrain --config {Path(settings.run) / 'config.yaml'}"
    return show.table(lines)
