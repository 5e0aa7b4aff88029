"""Tensors and facts of a step -> RUN/checkpoints/step-N/, written in the background -> the newest whole one.

    step-00001000/                 model.safetensors, optimizer.safetensors, state.json, manifest.json
    step-00001000/                 the same with model-00001-of-00004.safetensors and so on
    step-00001000.tmp-PID/         being written or removed, or left so by a process that was killed
    step-00001000.replaced/        for a moment, where a step is saved again: one of the two is always there

A folder gets its name only when it is whole and on the disk, and older ones are removed only after that.
Every byte that is read back is checked against the manifest. A tensor that has several names, such as
embeddings that two networks share, is stored once.

Where each of several processes holds some rows of the weights (fsdp), each writes a file of its own at the
same time as the others, and reads the rows that it needs. The first process seals and publishes the folder
when all files are on the disk. Any number of processes can read what any other number has written
(docs/decisions/0017).

The last checkpoint is that of the highest step. Which one is best is said by `best_step` in the last one's
state.json, not in a file of its own that could tell another story; it is kept for as long as it is the best.
"""

import concurrent.futures
import dataclasses
import errno
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from electra import files
from electra.errors import InputError
from electra.show import megabytes
from electra.tensors import SUFFIX, Rows, TensorFiles, read_tensors, write_tensors
from electra.train.distributed import Channel, World, local_values, rows_held

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Tensors as they were at one moment, in the CPU's memory and nobody else's."""

    tensors: dict[str, Tensor]
    """Each tensor under the first of its names."""
    shared: dict[str, str]
    """Every further name -> the first name."""
    rows: dict[str, Rows] = field(default_factory=dict)
    """Which rows there are of those that are spread over processes."""

    @property
    def num_bytes(self) -> int:
        """What the tensors take, in memory and on the disk."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def snapshot(tensors: Mapping[str, Tensor]) -> Snapshot:
    """Copy the tensors now, so that training can go on with them."""
    assert not any(map(rows_held, tensors.values())), "no process has them whole"
    copies: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first_name: dict[object, str] = {}
    for name, tensor in tensors.items():
        # state_dict() makes a new tensor object for each name: only the memory tells that they are one.
        memory = (tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        first = first_name.setdefault(memory, name)
        if first == name:
            copies[name] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
        else:
            shared[name] = first
    return Snapshot(tensors=copies, shared=shared)


def snapshot_of_part(tensors: Mapping[str, Tensor], *, with_whole: bool) -> Snapshot:
    """Copy what this process holds of tensors that are spread; of those that all have, if it is told to."""
    copies: dict[str, Tensor] = {}
    rows: dict[str, Rows] = {}
    for name, tensor in tensors.items():
        held = rows_held(tensor)
        if held is not None and held.count:
            rows[name] = held
        if name in rows or (held is None and with_whole):
            copies[name] = local_values(tensor).detach().to("cpu", copy=True)
    return Snapshot(tensors=copies, shared={}, rows=rows)


KIND = "checkpoint"
FORMAT_VERSION, SPREAD_VERSION = 1, 2
"""One file for all tensors of a kind, or one of each process."""
REPLACED = ".replaced"
_STATE = "state.json"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint, read back."""

    step: int
    tensors: dict[str, Mapping[str, Tensor]]
    """As saved: file -> name -> tensor. In the CPU's memory, or of several processes that read together in
    files, from which each takes its rows."""
    facts: dict[str, Any]
    """As saved, and as JSON gives them back: tuples are lists, keys are strings."""
    path: Path


@dataclass(frozen=True, kw_only=True)
class Content:
    """What is to be written, safe from changes."""

    step: int
    tensors: dict[str, Snapshot]
    state: bytes
    best_step: int | None
    num_bytes: int
    """What it takes on the disk, with the parts of other processes."""


def fill_folder(folder: Path, content: Content) -> None:
    """Every file of a checkpoint, each on the disk before the manifest is."""
    folder.mkdir()
    for name, tensors in content.tensors.items():
        write_tensors(folder / (name + SUFFIX), tensors.tensors, shared=tensors.shared)
    _seal_folder(folder, content, FORMAT_VERSION, known={})


def write_part(folder: Path, content: Content, channel: Channel) -> dict[str, files.SealedFile]:
    """The files of this process in a checkpoint of several, on the disk -> what to seal of each."""
    written = {}
    for group, tensors in content.tensors.items():
        name = f"{group}-{channel.rank + 1:05}-of-{channel.size:05}{SUFFIX}"
        write_tensors(folder / name, tensors.tensors, rows=tensors.rows)
        written[name] = files.sealed(folder / name)
    return written


def _seal_folder(
    folder: Path, content: Content, version: int, *, known: Mapping[str, files.SealedFile]
) -> None:
    files.write_file(folder / _STATE, lambda file: file.write(content.state))
    facts = {"kind": KIND, "format_version": version, "step": content.step}
    files.write_manifest(folder, facts, known=known)


def publish_folder(unfinished: Path, path: Path) -> None:
    """Give a whole folder its name; a folder cannot be put in the place of another in one step."""
    if path.exists():
        replaced = path.with_name(path.name + REPLACED)
        shutil.rmtree(replaced, ignore_errors=True)
        path.rename(replaced)
    unfinished.rename(path)
    for folder in (path.parent, path.parent.parent):
        files.fsync(folder)


def read_checkpoint(step: int, path: Path, channel: Channel | None = None) -> Checkpoint:
    """A checkpoint whose every byte is as it was sealed.

    With a channel several processes read it, each of which compares its share of the files: it is whole if
    no process raises.
    """
    manifest = files.read_manifest(path, kind=KIND)
    version = manifest.get("format_version")
    if version not in (FORMAT_VERSION, SPREAD_VERSION):
        raise InputError(
            f"{path} has format {version}, this program reads {FORMAT_VERSION} to {SPREAD_VERSION}"
        )
    hashed = {name: facts["sha256"] for name, facts in manifest["files"].items() if name.endswith(SUFFIX)}
    unhashed = {name for number, name in enumerate(sorted(hashed)) if not _is_ours(number, channel)}
    is_one_file = version == FORMAT_VERSION and channel is None
    # A single file is hashed while it is read.
    if damaged := list(files.damaged_files(path, manifest, unhashed=hashed if is_one_file else unhashed)):
        raise InputError("; ".join(damaged))
    if manifest.get("step") != step:
        raise InputError(f"{path} holds step {manifest.get('step')}: the folder was renamed")
    tensors: dict[str, Mapping[str, Tensor]]
    if is_one_file:
        tensors = {
            name.removesuffix(SUFFIX): read_tensors(path / name, sha256=sha256)
            for name, sha256 in hashed.items()
        }
    else:
        groups: dict[str, list[Path]] = {}
        for name in sorted(hashed):
            groups.setdefault(_PART.sub("", name.removesuffix(SUFFIX)), []).append(path / name)
        # Processes that each write their rows never share: a name of more would be a copy of more to read.
        may_share = version == FORMAT_VERSION
        tensors = {group: TensorFiles(paths, may_share=may_share) for group, paths in groups.items()}
        if channel is None:
            tensors = {group: dict(found) for group, found in tensors.items()}
    facts = files.read_json(path / _STATE)
    if not isinstance(facts, dict):
        raise InputError(f"{path / _STATE} holds no JSON object")
    return Checkpoint(step=step, tensors=tensors, facts=facts, path=path)


def read_by_first(world: World, read: Callable[[], Checkpoint | None]) -> Checkpoint | None:
    """What the first process reads, for all processes, each of which holds all weights.

    The others may be on machines with an older copy of the run folder, or none: one that is in an object
    store, or on a disk whose news take a while to get around. So they read nothing.
    """
    held: list[Checkpoint] = []

    def outline() -> tuple[Checkpoint, dict[str, dict[str, tuple[str, torch.Size, torch.dtype]]]] | None:
        if (checkpoint := read()) is None:
            return None
        held.append(checkpoint)
        kinds = {}
        for group, named in checkpoint.tensors.items():
            # A tensor of several names is sent, and takes memory, once.
            first_name: dict[int, str] = {}
            kinds[group] = {
                name: (first_name.setdefault(id(tensor), name), tensor.shape, tensor.dtype)
                for name, tensor in named.items()
            }
        return dataclasses.replace(checkpoint, tensors={}), kinds

    if (found := world.first_says(outline)) is None:
        return None
    checkpoint, kinds = found
    for group, named in kinds.items():
        tensors: dict[str, Tensor] = {}
        for name, (first, shape, dtype) in named.items():
            if first == name:
                tensors[name] = (
                    held[0].tensors[group][name].contiguous() if held else torch.empty(shape, dtype=dtype)
                )
                world.send_from_first(tensors[name])
            else:
                tensors[name] = tensors[first]
        checkpoint.tensors[group] = tensors
    return checkpoint


def _is_ours(number: int, channel: Channel | None) -> bool:
    return channel is None or number % channel.size == channel.rank


_PART = re.compile(r"-\d{5,}-of-\d{5,}$")
_FOLDER_NAME = re.compile(r"step-(\d{8,})(\.replaced)?")
_UNFINISHED = "step-*.tmp-*"


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When to save checkpoints, and which of them to keep."""

    save_every: int = 1000
    """Steps between two checkpoints."""
    keep_last: int = 2
    """Newest checkpoints to keep beside the best one; with two, a damaged one does not cost the run."""
    keep_every: int = 0
    """Keep the checkpoint of every so many steps for ever; 0 keeps none of them."""

    def __post_init__(self) -> None:
        for key, least in (("save_every", 1), ("keep_last", 1), ("keep_every", 0)):
            if getattr(self, key) < least:
                raise InputError(f"{key} is {getattr(self, key)}, expected {least} or more")

    @property
    def most_at_once(self) -> int:
        """Checkpoints on the disk while one is being written, including the best; keep_every adds more."""
        return self.keep_last + 2


class CheckpointStore:
    """The checkpoints of one run. Only one process at a time may save, unless they do it `together`."""

    def __init__(self, folder: Path, config: CheckpointConfig, *, together: World | None = None) -> None:
        """`together`: processes that each hold a part of every tensor. All of them make the same calls."""
        self.folder, self.config = folder, config
        self._channel = None if together is None else together.channel()
        self._writer = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: concurrent.futures.Future[None] | None = None
        self._damaged: set[Path] = set()

    def save(self, step: int, tensors: Mapping[str, Mapping[str, Tensor]], facts: Mapping[str, Any]) -> None:
        """Copy everything now and write it in the background; raises the failure of the save before.

        Once it is whole, checkpoints that need not be kept are removed, and so are those of later steps, from
        which the run has gone back. Facts may name a `best_step`, which is kept.
        """
        assert facts.get("step", step) == step, f"facts of step {facts['step']} for step {step}"
        assert all(name.isidentifier() for name in tensors), f"not names of files: {list(tensors)}"
        self.wait()
        state, channel = files.to_json(dict(facts)), self._channel
        if channel is None:
            copies = {name: snapshot(group) for name, group in tensors.items()}
            num_bytes = sum(copy.num_bytes for copy in copies.values())
        else:
            copies = {
                name: snapshot_of_part(group, with_whole=channel.rank == 0) for name, group in tensors.items()
            }
            whole = (tensor for group in tensors.values() for tensor in group.values())
            num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in whole)
        content = Content(
            step=step,
            tensors=copies,
            state=state,
            best_step=facts.get("best_step"),
            num_bytes=num_bytes + len(state),
        )
        self._pending = self._writer.submit(self._write, content)

    @property
    def is_saving(self) -> bool:
        """Whether this process is writing a checkpoint, and not only waiting for others that do."""
        is_waiting = self._channel is not None and self._channel.is_waiting
        return self._pending is not None and not self._pending.done() and not is_waiting

    def check(self) -> None:
        """Raise the failure of a finished save; does not wait, so it can be called after every step."""
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on the disk; raises if it failed."""
        if self._pending is None:
            return
        # Forgotten only when it is done: an interrupt while waiting must not hide it from the next call.
        concurrent.futures.wait([self._pending])
        done, self._pending = self._pending, None
        done.result()

    def close(self) -> None:
        """Wait for the last save and end the background thread."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (InputError, ConnectionError) as failure:
            if error is None:
                raise
            error.add_note(str(failure))

    def steps(self) -> list[int]:
        """Steps with a checkpoint, whole or damaged."""
        return sorted({step for step, _ in self._newest_first()})

    def load_latest(self, on_problem: Callable[[str], None]) -> Checkpoint | None:
        """The newest whole checkpoint, or None; `on_problem` hears about everything that was passed over."""
        self.wait()
        for path in sorted(self.folder.glob(_UNFINISHED)):
            on_problem(f"{path} was left unfinished when a process was killed: ignored")
        problems = []
        for step, path in self._found():
            try:
                return self._read(step, path)
            except ConnectionError:
                # No damage: another process is lost.
                raise
            except (InputError, OSError) as error:
                problems.append(f"checkpoint {path.name} is damaged: {error}")
                on_problem(problems[-1])
                self._damaged.add(path)
        if problems:
            raise InputError(
                f"{self.folder} has checkpoints, but none is whole; restore one from a copy, or move the "
                "folder away to begin again at step 0:\n  " + "\n  ".join(problems)
            )
        return None

    def latest_facts(self) -> dict[str, Any]:
        """The facts of the newest checkpoint that has them as they were saved; empty if none has."""
        for _, path in self._newest_first():
            try:
                manifest = files.read_manifest(path, kind=KIND)
                facts = files.read_json(path / _STATE)
                is_whole = files.sha256(path / _STATE) == manifest["files"][_STATE]["sha256"]
            except (InputError, OSError, KeyError):
                continue
            if is_whole and isinstance(facts, dict):
                return facts
        return {}

    def load(self, step: int) -> Checkpoint:
        """The checkpoint of one step; raises if it is missing or damaged."""
        self.wait()
        for found, path in self._found():
            if found == step:
                return self._read(step, path)
        raise InputError(f"{self.folder} has no checkpoint of step {step}, only of {self.steps()}")

    def tidy(self, checkpoint: Checkpoint) -> None:
        """Remove what a save that failed or was killed after this checkpoint was whole could not remove.

        Only if it is the newest: beside a damaged one nothing is removed before there is a new one.
        """
        if self._newest_first()[0][1] == checkpoint.path:
            self._remove_leftovers()
            self._prune(checkpoint.step, checkpoint.facts.get("best_step"))

    def require_space(self, num_bytes: int) -> None:
        """Raise if the disk has less free space than this."""
        if (free := self._free_bytes()) < num_bytes:
            raise InputError(
                f"checkpoints need {megabytes(num_bytes)} in {self.folder}, {megabytes(free)} are free: "
                "make room, keep fewer (checkpoint.keep_last, checkpoint.keep_every) or write to another disk"
            )

    def _free_bytes(self) -> int:
        return shutil.disk_usage(
            next(path for path in (self.folder, *self.folder.parents) if path.exists())
        ).free

    def _found(self) -> list[tuple[int, Path]]:
        """The same folders for all who read together, whatever a network disk shows each of them."""
        found = self._newest_first()
        if self._channel is None:
            return found
        names = self._channel.first_says([(step, path.name) for step, path in found])
        return [(step, self.folder / name) for step, name in names]

    def _read(self, step: int, path: Path) -> Checkpoint:
        """One checkpoint; who reads it together with others raises if any of them finds damage."""
        if self._channel is None:
            return read_checkpoint(step, path)
        checkpoint, damage = None, ""
        try:
            checkpoint = read_checkpoint(step, path, self._channel)
        except (InputError, OSError) as error:
            damage = str(error)
        damages = list(filter(None, self._channel.exchange(damage)))
        if checkpoint is None or damages:
            raise InputError("; ".join(dict.fromkeys(damages)))
        return checkpoint

    def _newest_first(self) -> list[tuple[int, Path]]:
        """Checkpoint folders; one that was about to be replaced comes after its replacement."""
        matches = [_FOLDER_NAME.fullmatch(path.name) for path in self.folder.glob("step-*")]
        found = sorted(((int(match[1]), not match[2], match[0]) for match in matches if match), reverse=True)
        return [(step, self.folder / name) for step, _, name in found]

    def _write(self, content: Content) -> None:
        path = self.folder / f"step-{content.step:08}"
        try:
            if self._channel is None:
                self._write_alone(path, content)
            else:
                self._write_together(path, content, self._channel)
        except ConnectionError:
            # Another process is lost: what is unfinished is left to whoever saves next.
            raise
        except (OSError, SafetensorError) as error:
            raise InputError(self._failure(path, content, error)) from error
        if self._channel is None or self._channel.rank == 0:
            self._damaged.discard(path)
            self._prune(content.step, content.best_step)

    def _remove_leftovers(self) -> None:
        # Their process ids mean nothing: a container reuses them.
        for leftover in self.folder.glob(_UNFINISHED):
            shutil.rmtree(leftover, ignore_errors=True)

    def _make_room(self, content: Content) -> None:
        # Useless, and the room may be needed.
        self._remove_leftovers()
        # Before the first byte, because a full disk would also stop others, such as the metrics log.
        if self._free_bytes() < content.num_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.folder.mkdir(parents=True, exist_ok=True)

    def _write_alone(self, path: Path, content: Content) -> None:
        unfinished = _unfinished(path)
        try:
            self._make_room(content)
            fill_folder(unfinished, content)
            publish_folder(unfinished, path)
        except (OSError, SafetensorError):
            shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _write_together(self, path: Path, content: Content, channel: Channel) -> None:
        """Every process its part; what fails in one fails in all of them."""
        is_first, unfinished = channel.rank == 0, _unfinished(path)
        known: dict[str, files.SealedFile] = {}

        def begin() -> str:
            if is_first:
                self._make_room(content)
                unfinished.mkdir()
            return unfinished.name

        def publish() -> None:
            if is_first:
                _seal_folder(unfinished, content, SPREAD_VERSION, known=known)
                publish_folder(unfinished, path)

        try:
            folder = path.with_name(_agreed(begin, channel)[0])
            for written in _agreed(lambda: write_part(folder, content, channel), channel):
                known |= written
            _agreed(publish, channel)
        except ConnectionError:
            raise
        except OSError:
            if is_first:
                shutil.rmtree(unfinished, ignore_errors=True)
            raise

    def _failure(self, path: Path, content: Content, error: Exception) -> str:
        kept = next((f"{older.name} is kept" for _, older in self._newest_first()), "there is no earlier one")
        return (
            f"checkpoint {path} is not saved: {error}. It needs {megabytes(content.num_bytes)}, "
            f"{megabytes(self._free_bytes())} are free; {kept}. Make room and run the same command again"
        )

    def _prune(self, step: int, best_step: int | None) -> None:
        whole = [
            (found, path)
            for found, path in self._newest_first()
            if found <= step and path not in self._damaged and path.suffix != REPLACED
        ]
        kept = {path for _, path in whole[: self.config.keep_last]}
        kept |= {path for found, path in whole if found == best_step}
        if self.config.keep_every:
            kept |= {path for found, path in whole if found % self.config.keep_every == 0}
        try:
            for _, path in self._newest_first():
                if path not in kept:
                    # Renamed first, so that a half-removed one does not look like a damaged checkpoint.
                    shutil.rmtree(path.rename(_unfinished(path)))
        except OSError as error:
            saved = self.folder / f"step-{step:08}"
            raise InputError(f"{saved} is saved, but older ones cannot be removed: {error}") from error


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.tmp-{os.getpid()}")


def _agreed(act: Callable[[], Result], channel: Channel) -> list[Result]:
    """What each process's act gave; an OSError in all of them if it failed in any."""
    result, failure = None, ""
    try:
        result = act()
    except (OSError, SafetensorError) as error:
        failure = f"process {channel.rank} of {channel.size}: {error}"
    answers = channel.exchange((result, failure))
    if failures := [text for _, text in answers if text]:
        raise OSError("; ".join(failures))
    return [result for result, _ in answers]
