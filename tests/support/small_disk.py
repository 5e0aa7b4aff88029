"""A disk of a few megabytes, which fills up as real ones do; only root can mount it."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(folder: Path, *, size: str) -> Iterator[Path]:
    """A new folder with room for so much; the test is skipped where nothing can be mounted."""
    if shutil.which("mount") is None:
        pytest.skip("a small disk cannot be mounted here (no mount)")
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here (root only): {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # Lazily: arrays of this process may still be mapped from there.
        subprocess.run(["umount", "--lazy", folder], check=True)


def resize(folder: Path, *, size: str) -> None:
    """Give a mounted disk more room."""
    subprocess.run(["mount", "-o", f"remount,size={size}", folder], check=True)
