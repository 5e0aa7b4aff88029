"""`electra prepare` beside `tokenizers` alone: MB/s and peak memory, in one run on one machine.

    python benchmarks/prepare.py CORPUS [--repeats 3] [--copies 10] [--json FILE]

The alternative gets the text in memory and only tokenizes it (`encode_batch`, all cores); ours starts as
a command, reads and decompresses files, splits, hashes, deduplicates, tokenizes, builds examples and
writes rows with checksums. Both use the same tokenizer, which is trained once before. Repeats are
interleaved. Memory is the sum over the process tree, sampled twenty times a second, for the corpus and
for a larger one of altered copies.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path

import tokenizers

from electra.text.corpus import open_corpus
from electra.text.tally import Tally

_BATCH_DOCUMENTS = 256


def documents(corpus):
    """The documents of a corpus, as `prepare` sees them."""
    opened = open_corpus([corpus], encoding=None, text_field="text")
    return opened.documents(Tally(), lambda problem: print(problem, file=sys.stderr))


def tree_memory(pid):
    """(RSS, PSS) in bytes of a process and its descendants; PSS counts shared pages once."""
    resident = proportional = 0
    for process in [pid, *descendants(pid)]:
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith("Rss:"):
                resident += int(line.split()[1]) * 1024
            elif line.startswith("Pss:"):
                proportional += int(line.split()[1]) * 1024
    return resident, proportional


def descendants(pid):
    """Process ids below `pid`."""
    found = []
    for path in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            children = path.read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def run_prepare(corpus, out, *options):
    """Run the command -> seconds, peak RSS, peak PSS."""
    shutil.rmtree(out, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "electra",
        "prepare",
        "--corpus",
        str(corpus),
        "--out",
        str(out),
        *options,
    ]
    begun = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peaks = [0, 0]
    stopped = threading.Event()

    def watch():
        while not stopped.wait(0.05):
            peaks[:] = map(max, zip(peaks, tree_memory(process.pid), strict=True))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    seconds = time.monotonic() - begun
    stopped.set()
    watcher.join()
    if code:
        raise SystemExit(f"electra prepare failed with exit code {code}")
    return seconds, *peaks


def run_encode_batch(tokenizer, texts):
    """Tokenize texts that are in memory with the library alone -> seconds."""
    rest = iter(texts)
    begun = time.monotonic()
    while batch := list(islice(rest, _BATCH_DOCUMENTS)):
        tokenizer.encode_batch(batch, add_special_tokens=False)
    return time.monotonic() - begun


def write_copies(corpus, path, copies):
    """A larger corpus: every copy of a document differs by its first word, so that none is a duplicate."""
    with path.open("w", encoding="utf-8") as file:
        for copy in range(copies):
            for document in documents(corpus):
                file.write(json.dumps({"text": f"Copy{copy} {document}"}, ensure_ascii=False) + "\n")


def main():
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("corpus")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--copies", type=int, default=10, help="size of the larger corpus; 0 leaves it out")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="electra-bench-") as name:
        folder = Path(name)
        result = measure(options, folder)
    print_table(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def measure(options, folder):
    """All figures."""
    training = run_prepare(options.corpus, folder / "trained")
    given = ("--tokenizer", str(folder / "trained" / "tokenizer"))
    texts = list(documents(options.corpus))
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    library = tokenizers.Tokenizer.from_file(str(folder / "trained" / "tokenizer" / "tokenizer.json"))
    ours, theirs = [], []
    for _ in range(options.repeats):
        theirs.append(run_encode_batch(library, texts))
        ours.append(run_prepare(options.corpus, folder / "data", *given))
    del texts
    result = {
        "megabytes": megabytes,
        "with_vocabulary": {"seconds": training[0], "rss": training[1], "pss": training[2]},
        "prepare_seconds": [seconds for seconds, _, _ in ours],
        "encode_batch_seconds": theirs,
        "prepare_rss": max(rss for _, rss, _ in ours),
        "prepare_pss": max(pss for _, _, pss in ours),
    }
    if options.copies:
        write_copies(options.corpus, folder / "large.jsonl", options.copies)
        for label, more in (("large", given), ("large_with_vocabulary", ())):
            seconds, rss, pss = run_prepare(folder / "large.jsonl", folder / "data", *more)
            result[label] = {
                "megabytes": megabytes * options.copies,
                "seconds": seconds,
                "rss": rss,
                "pss": pss,
            }
    return result


def print_table(result):
    """The figures for a person."""
    ours, theirs = (statistics.median(result[key]) for key in ("prepare_seconds", "encode_batch_seconds"))
    size = result["megabytes"]
    print(f"{size:.0f} MB of text, medians of {len(result['prepare_seconds'])} interleaved repeats")
    print(f"  electra prepare, tokenizer given   {ours:6.1f} s  {size / ours:6.1f} MB/s")
    print(f"  tokenizers encode_batch alone      {theirs:6.1f} s  {size / theirs:6.1f} MB/s")
    print(f"  ratio                              {theirs / ours:6.2f}")
    for label, run in (
        ("tokenizer given", {"rss": result["prepare_rss"], "pss": result["prepare_pss"], "megabytes": size}),
        ("vocabulary trained", {**result["with_vocabulary"], "megabytes": size}),
        ("tokenizer given", result.get("large")),
        ("vocabulary trained", result.get("large_with_vocabulary")),
    ):
        if run:
            timing = f", {run['seconds']:.0f} s" if "seconds" in run else ""
            print(
                f"  peak memory, {run['megabytes']:5.0f} MB, {label:<18} "
                f"RSS {run['rss'] / 1e6:.0f} MB, PSS {run['pss'] / 1e6:.0f} MB{timing}"
            )


if __name__ == "__main__":
    main()
