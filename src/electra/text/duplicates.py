"""Documents -> hashes -> which of them were met before, in bounded memory.

Sorted runs of hashes, merged as they grow (a log-structured set): eight bytes a document, and runs above a
bound live in files that are mapped, not loaded. Among ten million documents two different ones share a 64-bit
hash with a probability of three in a million.
"""

import hashlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

Hashes = npt.NDArray[np.uint64]

_LARGEST_RUN_IN_MEMORY = 1 << 21


def hash_document(document: str) -> int:
    """64 bits of a document's contents: they find duplicates and choose what is held out."""
    return int.from_bytes(hashlib.blake2b(document.encode(), digest_size=8).digest(), "little")


class SeenHashes:
    """A growing set of 64-bit hashes, asked and extended in batches."""

    def __init__(self, folder: Path, *, largest_run_in_memory: int = _LARGEST_RUN_IN_MEMORY) -> None:
        self._folder = folder
        self._largest_run_in_memory = largest_run_in_memory
        self._runs: list[Hashes] = []
        self._num_files = 0

    def first_time(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """True where a hash is neither known nor earlier in this batch; the batch is known afterwards."""
        distinct, first_places = np.unique(hashes, return_index=True)
        known = np.zeros(len(distinct), np.bool_)
        for run in self._runs:
            places = np.minimum(np.searchsorted(run, distinct), len(run) - 1)
            known |= run[places] == distinct
        fresh = np.zeros(len(hashes), np.bool_)
        fresh[first_places[~known]] = True
        if not known.all():
            self._add(distinct[~known])
        return fresh

    def _add(self, run: Hashes) -> None:
        # Merging only runs of comparable size moves each hash a logarithmic number of times. A run in a file
        # is not merged again: that would take its size in memory.
        while self._runs and len(self._runs[-1]) <= min(2 * len(run), self._largest_run_in_memory):
            run = np.sort(np.concatenate([self._runs.pop(), run]))
        self._runs.append(self._in_file(run) if len(run) > self._largest_run_in_memory else run)

    def _in_file(self, run: Hashes) -> Hashes:
        path = self._folder / f"seen-{self._num_files}.npy"
        self._num_files += 1
        np.save(path, run)
        mapped: Hashes = np.load(path, mmap_mode="r")
        # The mapping keeps the data; without a name it goes away with the process, however that ends.
        path.unlink()
        return mapped
