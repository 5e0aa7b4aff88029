"""A fine-tuned model <-> a folder: in transformers layout with label names, wherever transformers can say it.

config.json         sizes and labels as transformers has them; the key `electra_task` is ours
model.safetensors   the encoder, and the head if transformers has one that computes the same
head.safetensors    else the head, by our names: transformers sees the encoder alone
tokenizer files, and a manifest, written last
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from electra import files
from electra.errors import InputError
from electra.model import names
from electra.model.encoder import Encoder
from electra.model.sizes import transformers_obstacle
from electra.tasks import encoders, transformers_heads
from electra.tasks.encoders import CONFIG, OWN_LAYOUT, WEIGHTS
from electra.tasks.families import build_family, describe_family
from electra.tasks.family import Family
from electra.tasks.model import TaskModel
from electra.tasks.sentence_transformers import add_sentence_transformer
from electra.tasks.similarity import Similarity
from electra.text.tokenizer import Tokenizer

TASK_KEY = "electra_task"
HEAD_WEIGHTS = "head.safetensors"
KIND = "fine-tuned model"


@dataclass(frozen=True, kw_only=True)
class FineTuned:
    """A model that was trained for a task, and what is needed to use it."""

    model: TaskModel
    task: str
    tokenizer: Tokenizer
    max_length: int
    """Tokens of a row in training."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else was told of it: scores, seed, where it came from."""

    @property
    def family(self) -> Family[Any]:
        """The kind of its task, with the labels."""
        return self.model.families[self.task]


def save_model(tuned: FineTuned, folder: Path) -> None:
    """Write a folder that appears when it is whole; one of the same name is replaced."""
    encoder, head, family = tuned.model.encoder, tuned.model.head(tuned.task), tuned.family
    about = {"task": tuned.task, "max_length": tuned.max_length, **describe_family(family), **tuned.facts}
    foreign = transformers_heads.to_transformers(family, head)
    if transformers_obstacle(encoder.config) is not None:
        config, tensors = _as_ours(encoder)
        foreign = None
    else:
        config, tensors = _as_transformers(encoder, foreign)
    with files.appearing_whole(folder) as unfinished:
        files.write_json(unfinished / CONFIG, {**config, TASK_KEY: about})
        _write_tensors(unfinished / WEIGHTS, tensors)
        if foreign is None and head.state_dict():
            _write_tensors(unfinished / HEAD_WEIGHTS, head.state_dict())
        tuned.tokenizer.save(unfinished)
        if isinstance(family, Similarity) and config["model_type"] != OWN_LAYOUT:
            add_sentence_transformer(unfinished, pooling=family.pooling, max_length=tuned.max_length)
        files.write_manifest(unfinished, {"kind": KIND, "task": tuned.task, "family": family.name})


def load_model(path: str | Path) -> FineTuned:
    """The model in a folder that `save_model` wrote, on the CPU."""
    folder = encoders.model_folder(str(path))
    about = encoders.read_values(folder).get(TASK_KEY)
    if not isinstance(about, dict):
        raise InputError(
            f"{folder} is an encoder that was not fine-tuned: its {CONFIG} has no key {TASK_KEY!r}. "
            "Train it for a task first, with `electra finetune`"
        )
    _check_intact(folder)
    family = build_family(about, where=f"{folder / CONFIG}, {TASK_KEY}")
    encoder, tokenizer = encoders.load_encoder(str(folder))
    known = ("task", "max_length", "family", "settings")
    model = TaskModel(encoder, {about["task"]: family})
    head = model.head(about["task"])
    encoders.copy_state(_read_head(folder, family, head), head, where=str(folder))
    return FineTuned(
        model=model.eval(),
        task=about["task"],
        tokenizer=tokenizer,
        max_length=about["max_length"],
        facts={key: value for key, value in about.items() if key not in known},
    )


def copy_head(tuned: FineTuned, model: TaskModel, task: str) -> bool:
    """Start a task with the head of another one, if both are of one kind with the same labels; whether so."""
    family, head = model.families[task], model.head(task)
    state = tuned.model.head(tuned.task).state_dict()
    shapes = [{name: tensor.shape for name, tensor in one.items()} for one in (state, head.state_dict())]
    agree = (family.name, family.labels()) == (tuned.family.name, tuned.family.labels())
    if agree and shapes[0] == shapes[1]:
        encoders.copy_state(state, head, where=tuned.task)
        return True
    return False


def _as_transformers(
    encoder: Encoder, foreign: transformers_heads.ForeignHead | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = names.to_transformers_config(encoder.config)
    plain = names.encoder_to_transformers(encoder.state_dict())
    if foreign is None:
        return {**config, "architectures": ["ElectraModel"]}, plain
    scope = names.ENCODER_SCOPE["discriminator"].transformers
    tensors = {**{f"{scope}{name}": tensor for name, tensor in plain.items()}, **foreign.tensors}
    return {**config, **foreign.config, "architectures": [foreign.architecture]}, tensors


def _as_ours(encoder: Encoder) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = {
        **dataclasses.asdict(encoder.config),
        "model_type": OWN_LAYOUT,
        "not_transformers_because": transformers_obstacle(encoder.config),
    }
    return config, {f"encoder.{name}": tensor for name, tensor in encoder.state_dict().items()}


def _read_head(folder: Path, family: Family[Any], head: nn.Module) -> dict[str, Tensor]:
    """The weights of the head, from whichever file has them."""
    if (folder / HEAD_WEIGHTS).is_file():
        return encoders.read_tensor_file(folder / HEAD_WEIGHTS)
    foreign = transformers_heads.to_transformers(family, head)
    if foreign is None:
        return {}
    tensors = encoders.read_tensors(folder)
    missing = foreign.tensors.keys() - tensors.keys()
    if missing:
        raise InputError(f"{folder / WEIGHTS} lacks {min(missing)}: it holds no head for its task")
    state = transformers_heads.from_transformers(family, tensors)
    encoders.copy_state(state, head, where=str(folder))
    again = transformers_heads.to_transformers(family, head)
    assert again is not None
    # Trained further by transformers, its two layers need no longer be our one.
    for name, tensor in again.tensors.items():
        if not torch.equal(tensor, tensors[name]):
            raise InputError(
                f"{folder / WEIGHTS}: {name} is not as we write it, so the head is not ours any more. Use it "
                "with transformers, or start from its encoder with `electra finetune`"
            )
    return state


def _check_intact(folder: Path) -> None:
    """That the weights are those that were written."""
    if not (folder / files.MANIFEST).is_file():
        return
    manifest = files.read_manifest(folder, kind=KIND)
    for problem in files.damaged_files(folder, manifest):
        # What others add, such as a card, does not hurt.
        if not problem.endswith("not in the manifest"):
            raise InputError(f"{problem}: copy the folder again, or train again")


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(whole, path, metadata={"format": "pt"})
