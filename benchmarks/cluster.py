"""What a cluster costs where there is nothing to gain: `prepare --cluster local` beside plain `prepare`.

    python benchmarks/cluster.py FILE_OR_FOLDER [...] --tokenizer DIR [--rounds 3]

Both make the same dataset on the cores of this machine with a given tokenizer, in turns, each in a process of
its own; the files are compared byte for byte. `rows` is the time from the tokenizer to the manifest, `whole`
is that of the command, with what Ray needs to start and to end. Medians, fastest and slowest of all rounds.
"""

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_TURN = """
import json, sys
from electra.text.dataset import PrepareConfig, make_dataset

made = make_dataset(PrepareConfig(**json.loads(sys.argv[1])))
print(json.dumps({"rows": made.rows_seconds, "megabytes": made.manifest["counts"]["text_bytes"] / 1e6}))
"""
_CONTESTANTS = {"plain": {}, "cluster": {"cluster": "local"}}


def turn(keys: dict[str, object]) -> dict[str, float]:
    """Seconds of one command, and the megabytes that it read."""
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _TURN, json.dumps(keys)], check=True, stdout=subprocess.PIPE, text=True
    )
    return {**json.loads(done.stdout), "whole": time.perf_counter() - begun}


def digest(folder: Path) -> str:
    """Changes with any byte of any file."""
    content = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return content.hexdigest()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in _CONTESTANTS}
    digests = set()
    with tempfile.TemporaryDirectory() as place:
        for number in range(given.rounds):
            for name, keys in _CONTESTANTS.items():
                out = Path(place) / f"{name}-{number}"
                turns[name].append(
                    turn({"corpus": given.corpus, "tokenizer": given.tokenizer, "out": str(out), **keys})
                )
                digests.add(digest(out))
    if len(digests) != 1:
        sys.exit("the datasets differ")
    print(f"{turns['plain'][0]['megabytes']:.1f} MB of text, {given.rounds} rounds, all datasets equal")
    medians = {}
    for what in ("rows", "whole"):
        for name in _CONTESTANTS:
            seconds = [one[what] for one in turns[name]]
            medians[name] = statistics.median(seconds)
            print(f"{what:<6} {name:<8} {medians[name]:7.1f} s  ({min(seconds):.1f} to {max(seconds):.1f})")
        print(f"{what:<6} speed of the cluster: {medians['plain'] / medians['cluster']:.2f} x plain")


if __name__ == "__main__":
    main()
