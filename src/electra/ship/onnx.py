"""A run or a model's folder -> model.onnx, checked against torch, and what is needed to use it.

export_onnx(Path("RUN"), out, part="discriminator", precision="fp32", max_length=None).describe()
electra.load(out, engine="onnx").detect(["The chef ate the meal."])
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors.torch

from electra import files
from electra.errors import InputError
from electra.model.encoder import Encoder
from electra.model.heads import GeneratorHead
from electra.ship.importing import ARCHITECTURES, Role
from electra.ship.loading import load
from electra.ship.onnx_check import OnnxCheck, check_graph
from electra.ship.onnx_engine import ONNX_KEY, WORD_TABLE, OnnxFacts
from electra.ship.onnx_graph import Graph, write_fp32, write_int8
from electra.ship.reading import Reader
from electra.tasks import encoders
from electra.tasks.encoders import CONFIG, GRAPH
from electra.tasks.layout import HEAD_WEIGHTS, TASK_KEY

Precision = Literal["fp32", "int8"]


class Chosen(NamedTuple):
    """What of a model is exported."""

    folder: Path
    reader: Reader
    graph: Graph


def export_onnx(
    source: Path, out: Path, *, part: Role, precision: Precision, max_length: int | None
) -> OnnxCheck:
    """Write the graph, the config, the tokenizer and the head into a folder, and compare with torch.

    Of a fine-tuned model, `discriminator` is the whole of it and `encoder` is it without its head.
    `max_length`: tokens to read at once; by default as many as in training, as far as that is known.
    """
    folder, reader, graph = choose(source, part, max_length=max_length)
    write = {"fp32": write_fp32, "int8": write_int8}[precision]
    write(graph, out / GRAPH)
    check = check_graph(
        out / GRAPH, graph, reader.tokenizer, precision=precision, max_length=reader.max_length
    )
    facts = OnnxFacts(part=part, precision=precision, max_length=reader.max_length, outputs=check.outputs)
    values = {**config_of(folder, part), ONNX_KEY: dataclasses.asdict(facts)}
    files.write_json(out / CONFIG, values)
    write_head(graph, out)
    reader.tokenizer.save(out)
    return check


def choose(source: Path, part: Role, *, max_length: int | None) -> Chosen:
    """The network that is asked for, or what the model has in its place."""
    model = load(source, max_length=max_length)
    folder = encoders.model_folder(str(source))
    reader, head, family = model.reader, None, None
    if model.tuned is not None and part == "discriminator":
        head, family = model.tuned.model.head(model.tuned.task), model.tuned.family
    elif part != "encoder":
        network = model.discriminator if part == "discriminator" else model.generator
        if network is None:
            raise InputError(
                f"{source} has no {part} with its head. It can {', '.join(model.abilities)}: "
                "--part encoder exports the encoder alone"
            )
        if network.reader is not reader:
            folder = folder.parent / part
        reader, head = network.reader, network.head
    assert isinstance(reader.encoder, Encoder)
    return Chosen(folder, reader, Graph(reader.encoder, head, family).eval())


def config_of(folder: Path, part: Role) -> dict[str, Any]:
    """The config of the source; that of an encoder alone says nothing of a head."""
    values = encoders.read_values(folder)
    if part != "encoder":
        return values
    of_head = (TASK_KEY, "id2label", "label2id", "problem_type")
    return {
        **{key: value for key, value in values.items() if key not in of_head},
        "architectures": [ARCHITECTURES["encoder"]],
    }


def write_head(graph: Graph, out: Path) -> None:
    """Write the weights that stay in torch."""
    state = {} if graph.head is None else dict(graph.head.state_dict())
    if isinstance(graph.head, GeneratorHead):
        state[WORD_TABLE] = graph.encoder.embeddings.word_embeddings.weight
    if state:
        whole = {name: tensor.detach().contiguous().clone() for name, tensor in state.items()}
        safetensors.torch.save_file(whole, out / HEAD_WEIGHTS, metadata={"format": "pt"})
