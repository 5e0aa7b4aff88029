"""Batches of rows -> losses and outputs: one encoder with a head for each task; and its folder on the disk.

    start = find_start("RUN", like="", dropout=None)       # read once, for all seeds
    model = start.model({"sst2": family}, seed=0)          # trained elsewhere
    save_model(FineTuned(model=model, task="sst2", tokenizer=start.tokenizer, max_length=128), folder)
    load_model(folder)

The folder is in transformers layout with label names wherever transformers can express encoder and head; the
key `electra_task` of its config.json says what the task is. `load_model` also reads what transformers itself
has fine-tuned: there the name of the class says it.

B rows, L positions, U units, D numbers in a hidden state.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder, Positions, initialise
from electra.model.sizes import EncoderConfig
from electra.model.store import (
    CONFIG,
    OWN_LAYOUT,
    TOKENS_READ,
    Contents,
    ModelFolder,
    RowLength,
    copy_state,
    filled,
    lay_out,
    open_model,
    room_for,
    with_dropout,
    write_model,
)
from electra.schema import Within, check, check_arguments
from electra.seeds import torch_generator
from electra.tasks.data.columns import OwnTaskConfig
from electra.tasks.families.family import Family, ForeignModel, TaskBatch
from electra.tasks.families.table import build_family, describe_family, recognise
from electra.text.tokenizer import Tokenizer

RANDOM = "none"
"""In place of a model: an encoder that has learned nothing, to compare with."""
TASK_KEY = "electra_task"
"""Key of config.json that says what the model was fine-tuned for."""
KIND = "fine-tuned model"
"""What its manifest calls it."""
_TASK_KEYS = ("task", "max_length", "family", "settings")


class TaskFacts(TypedDict):
    """What config.json says of a task: all that is needed to use the model, and what is told of it."""

    task: str
    max_length: RowLength
    family: str
    settings: dict[str, Any]
    main_score: NotRequired[str | None]
    score: NotRequired[float | None]
    split: NotRequired[str | None]
    seed: NotRequired[int | None]
    start: NotRequired[str | None]
    imported_from: NotRequired[dict[str, Any]]
    tokens_read: NotRequired[Annotated[int, Within(0)] | None]
    input: NotRequired[dict[str, Any]]


class Judged(NamedTuple):
    """The model's results for a batch."""

    losses_U: Tensor | None
    """The loss of each unit; None if its targets are unknown."""
    outputs: list[Any]
    """One for each row; empty while training."""


class TaskModel(nn.Module):
    """An encoder that several tasks share; each has a head of its own."""

    def __init__(self, encoder: Encoder, families: Mapping[str, Family[Any]], *, seed: int = 0) -> None:
        super().__init__()
        assert families, "no task to have a head for"
        self.encoder = encoder
        self.families = dict(families)
        self.heads = nn.ModuleDict()
        for task, family in families.items():
            head = family.head(encoder.config)
            generator = torch_generator(seed, "head", task)
            initialise(head, std=encoder.config.initializer_range, generator=generator)
            assert _key(task) not in self.heads, f"two tasks have names like {task}"
            self.heads[_key(task)] = head

    def head(self, task: str) -> nn.Module:
        """The head of a task."""
        return self.heads[_key(task)]

    def positions(self, task: str) -> Positions:
        """Whose hidden states the head of a task reads."""
        return self.families[task].positions

    # Wrappers for several processes only see calls of the module, so one call gives both losses and outputs.
    def forward(self, batch: TaskBatch, task: str) -> Judged:
        """Losses while training; else outputs, and losses where the targets are known."""
        hidden_BLD = self.encoder(
            batch.input_ids_BL,
            token_type_ids_BL=batch.token_type_ids_BL,
            attention_mask_BL=batch.attention_mask_BL,
            positions=self.positions(task),
        )
        family, head = self.families[task], self.head(task)
        if self.training:
            return Judged(family.losses(head, hidden_BLD, batch), [])
        is_known = all(row.targets for row in batch.rows)
        losses_U = family.losses(head, hidden_BLD, batch) if is_known else None
        with torch.no_grad():
            return Judged(losses_U, family.outputs(head, hidden_BLD, batch))


def _key(task: str) -> str:
    """A valid name for a module: without dots, and unlike `train` and other attributes of modules."""
    return "task_" + re.sub(r"\W", "_", task)


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A model that was trained for a task, and what is needed to use it."""

    model: TaskModel
    task: str
    tokenizer: Tokenizer
    max_length: int
    """Tokens of a row in training."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of it: scores, seed, where it came from."""

    @property
    def family(self) -> Family[Any]:
        """The kind of its task, with the labels."""
        return self.model.families[self.task]


def save_model(tuned: FineTuned, folder: Path) -> None:
    """Write a folder that appears when it is whole; one of the same name is replaced."""
    with files.appearing_whole(folder) as unfinished:
        write_tuned(tuned, unfinished)
        facts = {"kind": KIND, "task": tuned.task, "family": tuned.family.name}
        files.write_manifest(unfinished, facts)


def write_tuned(tuned: FineTuned, folder: Path) -> None:
    """Fill a folder with all files of a model but the manifest."""
    encoder, head, family = tuned.model.encoder, tuned.model.head(tuned.task), tuned.family
    about = {"task": tuned.task, "max_length": tuned.max_length, **describe_family(family), **tuned.facts}
    state = encoder.state_dict()
    contents = lay_out(encoder.config, {f"encoder.{name}": one for name, one in state.items()}, "encoder")
    is_own = contents.values["model_type"] == OWN_LAYOUT
    values = {**contents.values, TASK_KEY: about}
    if is_own or family.transformers_obstacle(encoder.config) is not None:
        contents = Contents(values=values, tensors=contents.tensors, head=head.state_dict())
    else:
        foreign = family.to_transformers(head)
        scope = names.ENCODER_SCOPE["discriminator"].transformers
        contents = Contents(
            values={**values, **foreign.config, "architectures": [foreign.architecture]},
            tensors={**names.encoder_to_transformers(state, scope=scope), **foreign.tensors},
        )
    write_model(folder, contents, tuned.tokenizer)
    if not is_own:
        family.write_beside(folder, max_length=tuned.max_length)


def task_of(folder: ModelFolder) -> dict[str, Any] | None:
    """What a folder says of its task, by our key or by its class of transformers; None if it has none."""
    about: dict[str, Any] | None = folder.values.get(TASK_KEY)
    if about is not None:
        where = str(folder.path / CONFIG)
        check(about, TaskFacts, where=where, key=TASK_KEY)
        check_arguments(about.get("input", {}), OwnTaskConfig, where=where, key=f"{TASK_KEY}.input")
        return about
    if TASK_KEY in folder.values or folder.is_own_layout or folder.is_onnx:
        return None
    architectures = folder.values.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return None
    # Of most folders this says enough, without reading their weights.
    if architectures[0] in names.ARCHITECTURES.values():
        return None
    foreign = ForeignModel(
        where=str(folder.path / CONFIG),
        architecture=str(architectures[0]),
        values=folder.values,
        tensors=folder.tensors,
    )
    found = recognise(foreign)
    if found is None:
        return None
    longest = folder.config.max_position_embeddings
    return {
        "task": found.family.kind,
        # Tokenizers of transformers that know no limit name a number of thirty digits.
        "max_length": min(folder.tokenizer_length or longest, longest),
        "main_score": found.main_score,
        **describe_family(found.family),
    }


def load_model(source: str | Path | ModelFolder) -> FineTuned:
    """The model that `save_model` or transformers wrote into a folder, on the CPU."""
    folder = source if isinstance(source, ModelFolder) else open_model(source)
    about = task_of(folder)
    if about is None:
        raise InputError(
            f"{folder.path} is an encoder that was not fine-tuned: its {CONFIG} has no key {TASK_KEY!r} and "
            "names no class for a task. Train it for one first, with `electra finetune`, or let it choose "
            "between words: --options"
        )
    family = build_family(about, where=f"{folder.path / CONFIG}, {TASK_KEY}")
    encoder, where = folder.encoder(), str(folder.path)
    with room_for(folder.tensors, folder.head_tensors, where=where):
        model = TaskModel(encoder, {about["task"]: family})
    head = model.head(about["task"])
    copy_state(_head_state(folder, family, head), head, where=where)
    return FineTuned(
        model=model.eval(),
        task=about["task"],
        tokenizer=folder.tokenizer,
        max_length=about["max_length"],
        facts={key: value for key, value in about.items() if key not in _TASK_KEYS},
    )


def _head_state(folder: ModelFolder, family: Family[Any], head: nn.Module) -> dict[str, Tensor]:
    """The weights of the head, from whichever file has them."""
    if folder.head_tensors or family.transformers_obstacle(folder.config) is not None:
        return folder.head_tensors
    tensors = folder.tensors
    if missing := family.to_transformers(head).tensors.keys() - tensors.keys():
        raise InputError(f"{folder.weights_path} lacks {min(missing)}: it holds no head for its task")
    try:
        return family.from_transformers(tensors)
    except InputError as error:
        raise InputError(f"{folder.weights_path}: {error}") from error


def copy_head(tuned: FineTuned, model: TaskModel, task: str) -> bool:
    """Start a task with the head of another one if both are of one kind with the same labels; whether so."""
    head = model.head(task)
    state = model.families[task].kept_head(tuned.model.head(tuned.task).state_dict(), tuned.family)
    if state is None:
        return False
    shapes = [{name: tensor.shape for name, tensor in one.items()} for one in (state, head.state_dict())]
    if shapes[0] == shapes[1]:
        copy_state(state, head, where=tuned.task)
        return True
    return False


def random_encoder(config: EncoderConfig, *, seed: int) -> Encoder:
    """An encoder that has learned nothing."""
    encoder = Encoder(config)
    initialise(encoder, std=config.initializer_range, generator=torch_generator(seed, "encoder"))
    return encoder


@dataclass(frozen=True, kw_only=True)
class StartModel:
    """A model to begin with, of which every seed gets a copy."""

    path: str
    """A run, a folder, or "none" for one that has learned nothing."""
    like: str
    """The model whose shape one that has learned nothing takes."""
    config: EncoderConfig
    state: Mapping[str, Tensor] | None
    """The weights of the encoder; None: random ones."""
    tokenizer: Tokenizer
    sha256: str
    """Checksum of all weights of the encoder; of the word "none", if they are random."""
    tuned: FineTuned | None
    """The whole model, if it was fine-tuned before."""
    head: nn.Module | None
    """That of a pre-trained discriminator; None if it has none."""
    tokens_read: int | None
    """Tokens that the encoder has read in pre-training; None if nobody knows."""

    def model(self, families: Mapping[str, Family[Any]], *, seed: int) -> TaskModel:
        """The encoder with new heads; one that was trained for the same before is kept.

        That is a head for the same labels or, where a family goes on with it, the head of pre-training.
        """
        if self.state is None:
            encoder = random_encoder(self.config, seed=seed)
        else:
            encoder = filled(lambda: Encoder(self.config), self.state, where=self.path)
        if self.tuned is not None:
            families = {task: family.continued(self.tuned.family) for task, family in families.items()}
        elif self.state is not None:
            families = {task: family.begun(self.head, where=self.path) for task, family in families.items()}
        model = TaskModel(encoder, families, seed=seed)
        if self.tuned is not None:
            for task in families:
                copy_head(self.tuned, model, task)
        elif self.head is not None:
            for task, family in families.items():
                if (state := family.first_head(self.head)) is not None:
                    copy_state(state, model.head(task), where=self.path)
        return model

    def description(self) -> str:
        """The start in a few words."""
        if self.path == RANDOM:
            return f"random, in the shape of {self.like}"
        return self.path if self.tuned is None else f"{self.path}, fine-tuned for {self.tuned.task} before"


def find_start(path: str, *, like: str, dropout: float | None) -> StartModel:
    """Read and check the model once, before anything else is done with it."""
    if path == RANDOM and not like:
        raise InputError("--model none needs --like RUN|DIR: the model whose shape and tokenizer it has")
    if path != RANDOM and like:
        raise InputError(f"--like is for --model none only, and --model is {path}: leave one of them out")
    folder = open_model(like if path == RANDOM else path)
    tokenizer, config = folder.tokenizer, with_dropout(folder.config, dropout)
    if path == RANDOM:
        # Its weights are read all the same: a config alone may ask for any amount of memory.
        folder.encoder_state()
        sha256, state, tuned, head = hashlib.sha256(RANDOM.encode()).hexdigest(), None, None, None
        tokens_read: int | None = 0
    else:
        tuned = load_model(folder) if task_of(folder) is not None else None
        encoder = folder.encoder() if tuned is None else tuned.model.encoder
        head = folder.head() if tuned is None and folder.role == "discriminator" else None
        state = encoder.state_dict()
        sha256 = state_hash(state)
        tokens_read = folder.tokens_read if tuned is None else tuned.facts.get(TOKENS_READ)
    return StartModel(
        path=path,
        like=like,
        config=config,
        state=state,
        tokenizer=tokenizer,
        sha256=sha256,
        tuned=tuned,
        head=head,
        tokens_read=tokens_read,
    )


def zero_shot(path: str, family: Family[Any], *, task: str) -> FineTuned:
    """A pre-trained model for a family that goes on with its head, as it is before any training."""
    start = find_start(path, like="", dropout=None)
    if start.tuned is not None:
        raise InputError(
            f"--options are for a pre-trained model, and {path} was fine-tuned for {start.tuned.task}: leave "
            "them out, or name the run that it was made from"
        )
    return FineTuned(
        model=start.model({task: family}, seed=0).eval(),
        task=task,
        tokenizer=start.tokenizer,
        max_length=min(family.max_length, start.config.max_position_embeddings),
        facts={"main_score": "accuracy"},
    )


def state_hash(state: Mapping[str, Tensor]) -> str:
    """Of all weights, with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
