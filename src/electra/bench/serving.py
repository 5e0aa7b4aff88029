"""Texts like SST-2's -> texts/s of our classifier beside transformers' pipeline, with the same weights.

predict      `Model.classify` on all texts at once, as in `electra predict`, which batches them by length
batches      the same, with only as many texts at a time as the pipeline gets
server       `electra serve` in a process of its own, with several clients that keep their connections open; a
             request has as many texts as a batch of the pipeline
onnx         `predict` on onnxruntime
int8         the same with 8-bit weights
int8_server  `server` with those
pipeline     transformers' pipeline("text-classification", batch_size=...)
"""

import http.client
import json
import re
import subprocess
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import numpy as np

from electra import files
from electra.bench.turns import (
    ELECTRA,
    Contest,
    MemoryWatch,
    Turn,
    Work,
    chosen,
    encoder_products,
    time_steps,
)
from electra.demo import corpus
from electra.demo.corpus import DocumentedPackage
from electra.errors import InputError, import_extra
from electra.formats.onnx import Precision, export_onnx
from electra.model.encoder import Encoder, initialise
from electra.model.sizes import EncoderConfig, transformers_obstacle
from electra.model.store import open_model
from electra.prediction.load import Engine, load
from electra.seeds import numpy_generator, torch_generator
from electra.tasks.data.glue import load_glue
from electra.tasks.families.classification import Classification
from electra.tasks.families.family import TextExample
from electra.tasks.model import FineTuned, TaskModel, save_model
from electra.text import tokenizer as tokenizers
from electra.text.tokenizer import TokenizerConfig
from electra.train import devices

CONTESTANTS = ("predict", "batches", "server", "onnx", "int8", "int8_server", "pipeline")
_MODEL, _TEXTS = "model", "texts.json"
_GRAPHS: dict[str, Precision] = {"onnx": "fp32", "int8": "int8"}
"""Folder -> the precision of the graph in it."""
_MAX_LENGTH, _VOCAB_SIZE = 128, 8192
_WORDS_SHAPE, _WORDS_SCALE, _LONGEST = 4.9, 4.0, 47
"""Gamma distribution with the mean and spread of words in SST-2's dev texts, and the longest of them."""
_WARMUP_PASSES = 1


@dataclass(frozen=True, kw_only=True)
class ServeBenchConfig:
    """Benchmark of classifying texts."""

    model: str | None = None
    """Folder of a fine-tuned classifier. Default: one with random weights."""
    data: str | None = None
    """Folder of SST-2, for its dev texts. Default: Python's documentation, cut to similar lengths."""
    size: Literal["tiny", "small", "base"] = "small"
    """Model size, for random weights."""
    texts: int = 872
    """Number of texts to classify."""
    batch_size: int = 32
    """Texts per batch of the pipeline and per request."""
    clients: int = 8
    """Clients of the server at the same time."""
    repeats: int = 3
    """Turns per contestant."""
    passes: int = 2
    """Timed passes over all texts per turn, after one that is not timed."""

    def __post_init__(self) -> None:
        for key in ("texts", "batch_size", "clients", "repeats", "passes"):
            if getattr(self, key) < 1:
                raise InputError(f"serve.{key} is {getattr(self, key)}, expected 1 or more")


def contest(settings: ServeBenchConfig, folder: Path) -> Contest:
    """The contest; writes the texts, and a model if none is given, into the folder."""
    texts = dev_texts(settings)
    files.write_json(folder / _TEXTS, texts)
    if settings.model is None:
        write_classifier(folder / _MODEL, texts, settings)
    model = load(model_folder(settings, folder))
    if "classify" not in model.abilities or model.tuned is None:
        raise InputError(
            f"serve.model is {settings.model}, which cannot classify: give a fine-tuned classifier"
        )
    config = model.tuned.model.encoder.config
    obstacle = transformers_obstacle(config)
    left_out = {} if obstacle is None else {"pipeline": obstacle}
    try:
        import_extra("onnxruntime", extra="onnx")
    except InputError as error:
        left_out |= dict.fromkeys(("onnx", "int8", "int8_server"), str(error))
    else:
        write_graphs(model_folder(settings, folder), folder)
    tokens = round(model.tokenizer.encode(texts).lengths.mean() + 2) * settings.batch_size
    contestants = tuple(name for name in CONTESTANTS if name not in left_out)
    return Contest(
        title=f"classifying {len(texts)} texts, {settings.batch_size} at a time, {settings.clients} clients",
        contestants=contestants,
        ours=tuple(name for name in contestants if name != "pipeline"),
        left_out=left_out,
        step="pass",
        unit="texts",
        units_per_step=len(texts),
        products=encoder_products(config, tokens=tokens),
        repeats=settings.repeats,
    )


def take_turn(settings: ServeBenchConfig, name: str, folder: Path) -> Turn:
    """Classify all texts several times."""
    texts: list[str] = files.read_json(folder / _TEXTS)
    model, size = model_folder(settings, folder), settings.batch_size
    pieces = [texts[first : first + size] for first in range(0, len(texts), size)]
    if name.endswith("server"):
        words = [f"--model={model}"] if name == "server" else [f"--model={folder / 'int8'}", "--engine=onnx"]
        return server_turn(words, pieces, clients=settings.clients, passes=settings.passes)
    ways: dict[str, Callable[[], Work]] = {
        "predict": lambda: our_pass(model, [texts]),
        "batches": lambda: our_pass(model, pieces),
        "onnx": lambda: graph_pass(folder, "onnx", texts),
        "int8": lambda: graph_pass(folder, "int8", texts),
        "pipeline": lambda: pipeline_pass(model, texts, batch_size=size),
    }
    return time_steps(chosen(ways, name)(), count=settings.passes, warmup=_WARMUP_PASSES)


def dev_texts(settings: ServeBenchConfig) -> list[str]:
    """The texts of SST-2, or others of similar lengths."""
    if settings.data is None:
        return prose(settings.texts)
    examples = load_glue("sst2", Path(settings.data)).examples("dev")
    found = [example.text for example in examples if isinstance(example, TextExample)]
    return found[: settings.texts]


def prose(count: int) -> list[str]:
    """Consecutive pieces of Python's own manual, which every installation has."""
    manual = DocumentedPackage(
        package="python",
        version="",
        root=Path(sysconfig.get_path("stdlib")),
        files=("pydoc_data/topics.py",),
    )
    words = [word for passage in corpus.passages(sources=[manual]) for word in passage.text.split()]
    drawn = numpy_generator(0, "lengths").gamma(_WORDS_SHAPE, _WORDS_SCALE, count)
    ends = np.cumsum(np.clip(drawn.round(), 2, _LONGEST).astype(int))
    pieces = np.split(np.resize(np.array(words), ends[-1]), ends[:-1])
    return [" ".join(piece) for piece in pieces]


def write_classifier(folder: Path, texts: Sequence[str], settings: ServeBenchConfig) -> None:
    """Write a classifier with random weights in the form of `electra finetune`; transformers loads it too."""
    tokenizer = tokenizers.train(texts, TokenizerConfig(vocab_size=_VOCAB_SIZE))
    config = EncoderConfig.preset(settings.size, vocab_size=tokenizer.vocab_size)
    model = TaskModel(Encoder(config), {"sst2": Classification(("negative", "positive"))})
    initialise(model, std=config.initializer_range, generator=torch_generator(0, "bench"))
    save_model(FineTuned(model=model, task="sst2", tokenizer=tokenizer, max_length=_MAX_LENGTH), folder)


def write_graphs(model: Path, folder: Path) -> None:
    """Export the classifier for onnxruntime."""
    for name, precision in _GRAPHS.items():
        (folder / name).mkdir()
        export_onnx(model, folder / name, part="discriminator", precision=precision, max_length=None)


def model_folder(settings: ServeBenchConfig, folder: Path) -> Path:
    """The folder of the given model, where transformers finds it too, or of the one that was made."""
    return folder / _MODEL if settings.model is None else open_model(settings.model).path


def our_pass(folder: Path, pieces: Sequence[list[str]], *, engine: Engine = "torch") -> Work:
    """Our model in this process."""
    devices.set_up_allocator()
    model = load(folder, engine=engine, precision="auto")
    return Work(lambda: [model.classify(piece) for piece in pieces], model.precision)


def graph_pass(folder: Path, name: str, texts: list[str]) -> Work:
    """Our model on onnxruntime."""
    return our_pass(folder / name, [texts], engine="onnx")._replace(precision=_GRAPHS[name])


def pipeline_pass(folder: Path, texts: list[str], *, batch_size: int) -> Work:
    """transformers' pipeline, used as in its documentation."""
    transformers = import_extra("transformers", extra="hf")
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    names = {dtype: name for name, dtype in devices.DTYPES.items()}
    return Work(
        lambda: classify(texts, batch_size=batch_size, truncation=True, max_length=_MAX_LENGTH),
        names.get(classify.model.dtype),
    )


def server_turn(words: Sequence[str], pieces: Sequence[list[str]], *, clients: int, passes: int) -> Turn:
    """The server in a process of its own, reached over loopback; the memory is the server's."""
    bodies = [json.dumps({"texts": piece}).encode() for piece in pieces]
    with running_server(words) as (greeting, process), MemoryWatch(process.pid) as watch:
        address = urlsplit(greeting.split()[0]).netloc
        precision = re.search(r" in (fp32|bf16|fp16|int8)\b", greeting)
        connections = [http.client.HTTPConnection(address, timeout=600) for _ in range(clients)]
        with ThreadPoolExecutor(clients) as pool:
            shares = [bodies[number::clients] for number in range(clients)]
            turn = time_steps(
                Work(lambda: list(pool.map(ask, connections, shares))), count=passes, warmup=_WARMUP_PASSES
            )
        for connection in connections:
            connection.close()
    return turn._replace(memory=watch.most, precision=precision[1] if precision else None)


def ask(connection: http.client.HTTPConnection, bodies: Sequence[bytes]) -> None:
    """Send requests one after the other on one connection."""
    for body in bodies:
        connection.request("POST", "/classify", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
        if response.status != http.client.OK:
            raise InputError(
                f"electra serve answered {response.status}: {answer[:200].decode(errors='replace')}"
            )


@contextmanager
def running_server(words: Sequence[str]) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """`electra serve` on a free port: the line that it greets with, which begins with its address, and its
    process.
    """
    command = [*ELECTRA, "serve", *words, "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("http://"):
                    yield line, process
                    break
            else:
                raise InputError("electra serve exited before it had an address; its output is above")
        finally:
            process.terminate()
            process.wait()
