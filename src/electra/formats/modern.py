"""A modern encoder with its head -> what transformers loads: ModernBERT, or classes of its own.

Without normalised queries and keys it is a ModernBERT (model.modernbert). No class of transformers has what
ours has with them, so the folder then brings its own: `modeling_electra_modern.py`, which `auto_map` in
its config.json names and transformers runs if it is told `trust_remote_code=True`. So it does for heads that
ModernBERT has not: those that judge a text by the mean of its hidden states, which ModernBERT would normalise
once more, and a detection head that looks at [CLS].
"""

import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from electra.model import modernbert
from electra.model.heads import detection_head_of
from electra.model.names import Role
from electra.model.sizes import EncoderConfig
from electra.model.store import OWN_CODE, Contents, ModelFolder, write_model
from electra.tasks.families.classification import Regression
from electra.tasks.families.family import Family, PooledFamily
from electra.tasks.families.similarity import add_sentence_transformer
from electra.tasks.families.table import describe_family
from electra.tasks.model import TASK_KEY, load_model

CODE = Path(__file__).with_name("for-transformers") / "modeling_electra_modern.py"
"""No module of ours: it is copied, and imported by transformers alone."""
PREFIX = "ElectraModern"
"""What the names of its classes begin with."""
ARCHITECTURES: dict[Role, str] = {
    "discriminator": f"{PREFIX}ForPreTraining",
    "generator": f"{PREFIX}ForMaskedLM",
    "encoder": f"{PREFIX}Model",
}
_AUTO = (
    *("Model", "ForPreTraining", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"),
    *("ForQuestionAnswering", "ForMultipleChoice"),
)


def auto_class(architecture: str) -> str:
    """The automatic class of transformers that loads one of ours."""
    return f"AutoModel{architecture.removeprefix(PREFIX).removeprefix('Model')}"


def write_modern(model: ModelFolder, role: Role | None, folder: Path, *, max_length: int) -> str:
    """Fill a folder that is there; the name of the class that loads it. No role: a fine-tuned model."""
    if role is None:
        return _write_tuned(model, folder)
    encoder, head = model.encoder().state_dict(), {} if role == "encoder" else model.head_state()
    kind = detection_head_of(head)
    values = _values(model, role, {} if kind == "plain" else {"discriminator_head": kind})
    if values["model_type"] == modernbert.MODEL_TYPE:
        tensors = modernbert.to_tensors(encoder, head, role)
    else:
        tensors = _scoped(encoder, role) | {f"{role}_head.{name}": one for name, one in head.items()}
    _write(folder, Contents(values=values, tensors=tensors), model)
    if role == "encoder":
        add_sentence_transformer(folder, pooling="mean", max_length=max_length)
    return str(values["architectures"][0])


def _write_tuned(model: ModelFolder, folder: Path) -> str:
    tuned = load_model(model)
    head, family = tuned.model.head(tuned.task), tuned.family
    about = {"task": tuned.task, "max_length": tuned.max_length, **describe_family(family), **tuned.facts}
    state = tuned.model.encoder.state_dict()
    by_mean = isinstance(family, PooledFamily) and family.head_pooling == "mean"
    values = _values(model, "encoder", {"classifier_pooling": "mean"} if by_mean else {})
    is_modernbert = values["model_type"] == modernbert.MODEL_TYPE
    if family.transformers_obstacle(tuned.model.encoder.config) is not None:
        tensors = modernbert.to_tensors(state, {}, "encoder") if is_modernbert else _scoped(state, "encoder")
    else:
        foreign = family.to_transformers(head)
        kind = foreign.architecture.removeprefix("Electra")
        # How ELECTRA's class for choices comes to a state is no question here.
        more = {key: value for key, value in foreign.config.items() if not key.startswith("summary_")}
        values |= {**more, "architectures": [f"{'ModernBert' if is_modernbert else PREFIX}{kind}"]}
        weight, bias = linear_head(family, head)
        if is_modernbert:
            values |= modernbert.LINEAR_HEAD
            tensors = modernbert.with_linear_head(state, weight, bias)
        else:
            own = {"classifier.weight": weight, "classifier.bias": bias}
            tensors = {**_scoped(state, "discriminator"), **own}
    # As it is, too: by our names, and a regression's before it is led back to its range.
    contents = Contents(values={**values, TASK_KEY: about}, tensors=tensors, head=head.state_dict())
    _write(folder, contents, model)
    family.write_beside(folder, max_length=tuned.max_length)
    return str(values["architectures"][0])


def linear_head(family: Family[Any], head: nn.Module) -> tuple[Tensor, Tensor]:
    """Weight and bias of a head that is one linear layer."""
    state = head.state_dict()
    assert "dense.weight" not in state, "heads of two layers come from transformers' ELECTRA alone"
    if "output.weight" not in state:
        # The plain head of questions.
        weight, bias = (
            torch.cat([state[f"span.{place}.{kind}"] for place in ("start", "end")])
            for kind in ("weight", "bias")
        )
        return weight, bias
    weight, bias = state["output.weight"], state["output.bias"]
    if isinstance(family, Regression):
        scale = family.high - family.low
        return weight * scale, bias * scale + family.low
    return weight, bias


def _scoped(encoder: dict[str, Tensor], role: Role) -> dict[str, Tensor]:
    """The encoder's weights under its name in a model with a head."""
    return encoder if role == "encoder" else {f"encoder.{name}": one for name, one in encoder.items()}


def _values(model: ModelFolder, role: Role, only_own: Mapping[str, str]) -> dict[str, Any]:
    """What config.json says of a network; `only_own`: what our classes alone can be told of its head."""
    config: EncoderConfig = model.config
    if modernbert.obstacle(config) is None and not only_own:
        values = modernbert.to_config(config, pad_token_id=model.tokenizer.pad_id)
        if role == "discriminator":
            values |= {"id2label": {"0": "replaced"}, "label2id": {"replaced": 0}}
        return {**values, modernbert.ROLE_KEY: role, "architectures": [modernbert.ARCHITECTURES[role]]}
    classes = {auto_class(f"{PREFIX}{kind}"): f"{CODE.stem}.{PREFIX}{kind}" for kind in _AUTO}
    return {
        **dataclasses.asdict(config),
        "model_type": OWN_CODE,
        "auto_map": {"AutoConfig": f"{CODE.stem}.{PREFIX}Config", **classes},
        "architectures": [ARCHITECTURES[role]],
        "pad_token_id": model.tokenizer.pad_id,
        **only_own,
    }


def _write(folder: Path, contents: Contents, model: ModelFolder) -> None:
    write_model(folder, contents, model.tokenizer)
    if contents.values["model_type"] == OWN_CODE:
        shutil.copyfile(CODE, folder / CODE.name)
