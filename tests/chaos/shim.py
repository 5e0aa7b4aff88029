"""Faults of disks and clocks, put between the program and Python's own calls: no FUSE, no root.

What a program asks of a disk is counted: to open a file for writing, to write, to sync, to rename, to make a
folder. At the operation that the fault names, the disk is full, fails or is slow.
"""

import builtins
import errno
import io
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["count", "full", "broken", "slow", "clock"]
_NUMBERS = {"full": errno.ENOSPC, "broken": errno.EIO}
SLOW_SECONDS = 0.01
WORST_JUMP = 400 * 24 * 3600.0
"""Seconds that a clock may be set forward or back."""


@dataclass
class Fault:
    """What fails, and at which operation in a folder."""

    kind: Kind
    folder: Path
    noted: Path
    """Takes the number of operations so far; of those that fail, at the first that did."""
    at: int = 0
    seed: int = 0
    num_operations: int = 0

    def install(self) -> None:
        """Put it between this process and the system."""
        if self.kind == "clock":
            return self._install_clock()
        for name in ("fsync", "replace", "rename", "mkdir"):
            setattr(os, name, self._counted(getattr(os, name)))
        self._install_open()
        self._install_safetensors()
        return None

    def operation(self) -> None:
        """One more; some of them fail."""
        self.num_operations += 1
        if self.kind == "slow":
            time.sleep(SLOW_SECONDS)
        # A full disk stays full, a broken place is one that the next attempt may avoid.
        failed = self.num_operations == self.at or (self.kind == "full" and 0 < self.at < self.num_operations)
        if self.kind == "count" or failed:
            with _open(self.noted, "w") as file:
                file.write(str(self.num_operations))
        if failed and self.kind in _NUMBERS:
            number = _NUMBERS[self.kind]
            raise OSError(number, os.strerror(number))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            if not isinstance(arguments[0], int) and not self._is_here(arguments[0]):
                return call(*arguments, **named)
            self.operation()
            return call(*arguments, **named)

        return counted

    def _is_here(self, path: Any) -> bool:
        return str(path).startswith(str(self.folder))

    def _install_open(self) -> None:
        def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
            if not set(mode) & set("wax+") or isinstance(file, int) or not self._is_here(file):
                return _open(file, mode, *arguments, **named)
            self.operation()
            return _Written(_open(file, mode, *arguments, **named), self)

        io.open = builtins.open = opened

    def _install_safetensors(self) -> None:
        # Written by Rust, past all of this.
        import safetensors.torch

        save_file = safetensors.torch.save_file

        def saved(tensors: Any, path: Any, *arguments: Any, **named: Any) -> Any:
            if self._is_here(path):
                self.operation()
            return save_file(tensors, path, *arguments, **named)

        safetensors.torch.save_file = saved

    def _install_clock(self) -> None:
        rng = random.Random(self.seed)
        now = time.time

        def jumping() -> float:
            return now() + rng.uniform(-WORST_JUMP, WORST_JUMP)

        time.time = jumping


_open = io.open


class _Written:
    """A file whose every write is an operation."""

    def __init__(self, file: Any, fault: Fault) -> None:
        self._file, self._fault = file, fault

    def write(self, content: Any) -> Any:
        self._fault.operation()
        return self._file.write(content)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> "_Written":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
