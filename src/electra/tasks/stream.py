"""Examples and a fine-tuned model -> predictions, piece by piece and in order, for files of any size.

A piece is some examples as they follow each other in the file. One core computes it, of this machine or of a
node of a cluster, and always in the same way: wherever pieces are computed, the file of predictions has the
same bytes, as far as the processors round alike. A few pieces are in memory at a time.

What is finished is kept beside the file that is going to be written, so that a command that was stopped goes
on there (`Unfinished`):

    .OUT.part        the predictions of the first pieces
    .OUT.part.json   of which model and examples, how many pieces, and how many bytes these are
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from electra import files
from electra.tasks.families.family import Example, Prediction
from electra.tasks.inference import predict_examples
from electra.tasks.model import FineTuned, load_model, save_model
from electra.tasks.precision import Precision, computing, convert
from electra.train import devices
from electra.train.cores import num_cores, spread

PIECE_EXAMPLES = 128
"""Enough to sort by length, and few enough to keep all cores busy to the end."""
_KEEP_EVERY_SECONDS = 1.0
"""How often it is written down how far a file is."""

Piece = list[Example]
Predictions = list[Prediction]


def pieces_of(examples: Iterable[Example]) -> Iterator[Piece]:
    """Examples in pieces of equal size, but for the last one."""
    rest = iter(examples)
    while piece := list(islice(rest, PIECE_EXAMPLES)):
        yield piece


def predict_piece(
    tuned: FineTuned, piece: Piece, *, device: torch.device, precision: Precision
) -> Predictions:
    """What a model on that device says of a piece."""
    with computing(device, precision):
        return predict_examples(tuned.model, tuned.task, piece, tuned.tokenizer, max_length=tuned.max_length)


def predict_here(
    tuned: FineTuned, pieces: Iterable[Piece], *, device: torch.device, precision: Precision
) -> Iterator[tuple[Piece, Predictions]]:
    """Pieces with their predictions, a piece for each core of this machine."""
    say = partial(predict_piece, tuned, device=device, precision=precision)
    # Not a sequence: then a single piece is computed by one core as well.
    return spread(lambda piece: (piece, say(piece)), iter(pieces), cores=num_cores(device))


def packed(tuned: FineTuned) -> dict[str, bytes]:
    """The files of a model, by their place in its folder."""
    with tempfile.TemporaryDirectory(prefix="electra-model-") as place:
        folder = Path(place) / "model"
        save_model(tuned, folder)
        return files.read_folder(folder)


@dataclass(frozen=True, kw_only=True)
class SentModel:
    """A model as it travels to nodes that do not see its folder."""

    content: Mapping[str, bytes]
    """Its files, with its weights as they were read: they are rounded where it computes."""
    sha256: str
    device: str
    precision: Precision

    def unpack(self) -> FineTuned:
        """The model, where it is going to compute."""
        with tempfile.TemporaryDirectory(prefix="electra-model-") as folder:
            files.write_folder(Path(folder), self.content)
            tuned = load_model(folder)
        if self.precision != "fp32":
            convert([tuned.model], self.precision)
        tuned.model.to(torch.device(self.device))
        return tuned


_UNPACKED: dict[str, FineTuned] = {}
"""The model of this process on a node: it predicts one piece after the other with it."""


def predict_on_node(piece: Piece, sent: SentModel) -> Predictions:
    """What the model says of a piece, in a process that knows nothing of this one."""
    if sent.sha256 not in _UNPACKED:
        devices.set_up_allocator()
        _UNPACKED.clear()
        _UNPACKED[sent.sha256] = sent.unpack()
    tuned = _UNPACKED[sent.sha256]
    device = next(tuned.model.parameters()).device
    # As here, one core for a piece, however many a node lends us.
    torch.set_num_threads(1)
    return predict_piece(tuned, piece, device=device, precision=sent.precision)


class Unfinished:
    """A file that grows piece by piece, and gets its name when it is whole."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self._path, self._facts = path, dict(facts)
        self._part = path.with_name(f".{path.name}.part")
        self._state = path.with_name(f".{path.name}.part.json")
        self._stack = contextlib.ExitStack()
        self._kept_at = time.monotonic()
        self.num_pieces = 0
        """Those that are in it."""

    def __enter__(self) -> "Unfinished":
        self._path.parent.mkdir(parents=True, exist_ok=True)
        busy = f"{self._path} is being written by another `electra predict`: wait, or choose another --out"
        with self._stack:
            self._stack.enter_context(files.locked(self._part, busy=busy))
            self._file = self._stack.enter_context(self._part.open("r+b"))
            self.num_pieces, size = self._known()
            self._file.truncate(size)
            self._file.seek(size)
            # Whatever is known of another file of this name ends here.
            self._keep()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._stack:
            self._keep()
            if kind is None:
                self._part.replace(self._path)
            elif not self.num_pieces:
                self._part.unlink()
            if kind is None or not self.num_pieces:
                self._state.unlink()

    def add(self, content: bytes) -> None:
        """Write the next piece."""
        self._file.write(content)
        self.num_pieces += 1
        if time.monotonic() - self._kept_at > _KEEP_EVERY_SECONDS:
            self._keep()

    def _keep(self) -> None:
        """Write down how far the file is, once that much of it is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        done = {"pieces": self.num_pieces, "bytes": self._file.tell()}
        files.write_json(self._state, {"facts": self._facts, **done})
        self._kept_at = time.monotonic()

    def _known(self) -> tuple[int, int]:
        """Pieces and bytes that are there already; none of a file of something else."""
        if not self._state.is_file():
            return 0, 0
        known = files.read_json(self._state)
        is_same = isinstance(known, dict) and known.get("facts") == self._facts
        if not is_same or self._part.stat().st_size < known["bytes"]:
            return 0, 0
        return int(known["pieces"]), int(known["bytes"])
