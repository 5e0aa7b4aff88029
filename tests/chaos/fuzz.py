"""Doors that read foreign bytes, and good files with bytes changed: what comes in is right, or refused.

Every other error would be a traceback for somebody who opened a stranger's file. Seeds are good files, since
random bytes never get past a parser's first line.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from electra import config
from electra.errors import InputError
from electra.prediction.load import load
from electra.pretraining.config import PretrainRunConfig
from electra.tasks.data.catalogue import TaskSource, load_task
from electra.tasks.data.minimal_pairs import load_minimal_pairs
from electra.tensors import read_tensors
from electra.text.tokenizer import load_tokenizer

LONGEST_ERROR = 4000
# What parsers stumble over, beside bytes of no meaning.
TOKENS = (
    *(b'"', b"'", b"{", b"}", b"[", b"]", b":", b",", b"\n", b"\t", b"\r", b"\0", b"\xff", b"\xed\xa0\x80"),
    *(
        b"null",
        b"true",
        b"-1",
        b"1e999",
        b"NaN",
        b"9" * 30,
        b"&a",
        b"*a",
        b"!!python/object:os.system",
        b"\\u",
    ),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"..", b"/", b"%", b"`", b"|", b"- ", b"? ", b"<<: "),
)


@dataclass(frozen=True)
class Door:
    """Files that are good, and the function that reads them."""

    name: str
    folder: Path
    files: tuple[str, ...]
    """Those whose bytes change."""
    read: Callable[[Path], object]


def doors(folder: Path, model: Path) -> Iterator[Door]:
    """Every door, with good files in a folder; `model` is that of a fine-tuned model."""
    (folder / "yaml").mkdir(parents=True)
    (folder / "yaml" / "config.yaml").write_text(YAML)
    yield Door("configuration", folder / "yaml", ("config.yaml",), _read_config)
    for task, files in TASKS.items():
        (folder / task).mkdir()
        for name, content in files.items():
            (folder / task / name).write_text(content)
        yield Door(
            f"task {task}", folder / task, tuple(files), lambda place, task=task: _read_task(task, place)
        )
    (folder / "pairs").mkdir()
    (folder / "pairs" / "pairs.jsonl").write_text(PAIRS)
    yield Door("minimal pairs", folder / "pairs", ("pairs.jsonl",), load_minimal_pairs)
    # Without its manifest, whose checksum would find every change first.
    bare = shutil.copytree(model, folder / "model")
    (bare / "manifest.json").unlink()
    yield Door(
        "weights", bare, ("model.safetensors",), lambda place: read_tensors(place / "model.safetensors")
    )
    names = ("tokenizer.json", "tokenizer_config.json", "vocab.txt")
    yield Door("tokenizer", bare, names, load_tokenizer)
    names = ("config.json", "tokenizer_config.json", "tokenizer.json", "model.safetensors")
    yield Door("model folder", bare, names, _classify)


def fuzz(door: Door, place: Path, rng: random.Random, *, examples: int, seconds: float) -> tuple[int, int]:
    """Change bytes and read -> how many examples there were, and how many were read without complaint.

    What is neither read nor refused is raised, with the example left where it is.
    """
    good = {name: (door.folder / name).read_bytes() for name in door.files}
    end, read, number = time.monotonic() + seconds, 0, 0
    if not place.exists():
        shutil.copytree(door.folder, place)
    while number < examples and time.monotonic() < end:
        number += 1
        name = rng.choice(door.files)
        (place / name).write_bytes(mutated(good[name], rng))
        try:
            door.read(place)
            read += 1
        except InputError as error:
            if len(str(error)) > LONGEST_ERROR:
                raise RuntimeError(f"{door.name}: an error as long as what is wrong") from error
        (place / name).write_bytes(good[name])
    return number, read


def mutated(content: bytes, rng: random.Random) -> bytes:
    """The same with one to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(CHANGES)(content, rng)
    return content


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return content
    # Headers are at the beginning, and are most of what can be misread.
    at = rng.randrange(rng.choice((len(content), min(len(content), 400))))
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def _cut(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _remove(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + content[at + rng.randrange(1, 40) :]


def _insert(content: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(content) + 1)
    return content[:at] + rng.choice(TOKENS) + content[at:]


def _repeat(content: bytes, rng: random.Random) -> bytes:
    at, size = rng.randrange(len(content) + 1), rng.randrange(1, 60)
    return content[:at] + content[at : at + size] * rng.choice((2, 30)) + content[at:]


def _put_number(content: bytes, rng: random.Random) -> bytes:
    """In place of one: sizes are what harms most."""
    places = [at for at, byte in enumerate(content[:20_000]) if 48 <= byte <= 57]
    if not places:
        return content
    at = rng.choice(places)
    return content[:at] + rng.choice((b"-1", b"0", b"1e9", b"99999999999", b'"x"', b"[]")) + content[at + 1 :]


CHANGES = (_flip, _cut, _remove, _insert, _repeat, _put_number)


def _classify(place: Path) -> object:
    return load(place, precision="fp32").classify(["the old river"])


def _read_config(place: Path) -> object:
    words = ["--config", str(place / "config.yaml")]
    return config.read(PretrainRunConfig, words, prog="electra pretrain").draft()


def _read_task(task: str, place: Path) -> object:
    return load_task(task, TaskSource(data=str(place)))


YAML = """objective: single_pass
discriminator_weight: 4.0
model: {size: tiny, backbone: modern, num_hidden_layers: 4}
train:
  max_time: 4m
  batch_size: &size 16
  learning_rate: 2.0e-3
  schedule: trapezoid
log: {log_every: 50}
valid_rows: *size
"""


def _squad(context: str, question: str, answer: str, *, at: int) -> str:
    asked = {"id": question, "question": question, "answers": [{"text": answer, "answer_start": at}]}
    paragraph = {"context": context, "qas": [asked]}
    return json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})


_LEAF = "\t_\t_\t0\troot\t_\t_\n"
TASKS = {
    "sst2": {
        "train.tsv": "sentence\tlabel\nthe old river\t1\na small city\t0\n",
        "dev.tsv": "sentence\tlabel\nthe new model\t1\n",
    },
    "conll2000": {
        "train.txt": "the DT B-NP\nriver NN I-NP\nruns VB B-VP\n\na DT B-NP\ncity NN I-NP\n",
        "test.txt": "the DT B-NP\nmodel NN I-NP\n",
    },
    "conllu": {
        "en-train.conllu": f"# text = a river\n1\ta\ta\tDET{_LEAF}2\triver\triver\tNOUN{_LEAF}",
        "en-dev.conllu": f"1\tcity\tcity\tNOUN{_LEAF}",
    },
    "squad_v1": {
        "train-v1.1.json": _squad("the old river", "which river?", "old", at=4),
        "dev-v1.1.json": _squad("a small city", "which city?", "small", at=2),
    },
}
PAIRS = """{"sentence_good": "the river is old", "sentence_bad": "the river are old", "UID": "agreement"}
{"sentence_good": "a city is small", "sentence_bad": "a city are small", "UID": "agreement"}
"""
