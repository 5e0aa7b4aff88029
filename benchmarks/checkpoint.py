"""What checkpoints cost: the share of a run's time that saving takes at the default interval.

    python benchmarks/checkpoint.py DATA [--size small] [--batch_size 32] [--seconds 150] [--every 16]

Runs the command `electra pretrain` on DATA (made by `electra prepare`) for a bounded time, saving far more
often than by default, and reads from its metrics.jsonl how long each step took, from the end of one to the
end of the next. Steps are sorted by how long ago the last save was: the first ones wait while everything is
copied, and share the cores with the thread that writes. What they take more than the later ones, by medians
over all saves of the run, is the cost of a save; divided by the time of a default interval it is the share
that is lost. The run is made in a folder below the current one, and removed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from electra.train.checkpoint import CheckpointConfig

_WARM_UP_STEPS = 5


def step_seconds(run):
    """Step -> seconds since the end of the step before, what happened between the two included."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    ends = {line["step"]: line["seconds"] for line in lines if line["kind"] == "train"}
    return {step: ends[step] - ends[step - 1] for step in ends if step - 1 in ends}


def train(options, run):
    """Train for the time that is given, and save every few steps."""
    keys = {
        "data": options.data,
        "out": run,
        "model.size": options.size,
        "train.batch_size": options.batch_size,
        "train.max_time": f"{options.seconds}s",
        "checkpoint.save_every": options.every,
        "log.log_every": 1,
        "log.evaluate_every": 10**9,
        "valid_rows": 0,
    }
    command = [
        sys.executable,
        "-m",
        "electra",
        "pretrain",
        *(f"--{key}={value}" for key, value in keys.items()),
    ]
    # Bounded also where the machine is so slow that the run does not see the end of its time.
    subprocess.run(command, check=True, timeout=options.seconds + 120, stdout=subprocess.DEVNULL)


def cost_of_a_save(seconds, every):
    """Medians: an undisturbed step, and by how much each of the steps after a save is longer."""
    places = {place: [] for place in range(every)}
    for step, taken in seconds.items():
        if step > max(every, _WARM_UP_STEPS):
            places[(step - 1) % every].append(taken)
    if min(map(len, places.values())) < 2:
        raise SystemExit(f"only {len(seconds)} steps were taken: give more --seconds, or a lower --every")
    # By the middle of an interval the writing is over, or saving has become the whole work.
    late = [taken for place in range(every // 2, every) for taken in places[place]]
    usual = statistics.median(late)
    return usual, [statistics.median(places[place]) - usual for place in range(every // 2)]


def main():
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", default="small")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=150)
    parser.add_argument("--every", type=int, default=16, help="steps from one save to the next")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="electra-bench-", dir=Path.cwd()) as folder:
        run = Path(folder) / "run"
        train(options, run)
        seconds = step_seconds(run)
        last = max((run / "checkpoints").glob("step-*"))
        megabytes = sum(path.stat().st_size for path in last.iterdir()) / 1e6
    usual, longer = cost_of_a_save(seconds, options.every)
    interval = CheckpointConfig().save_every
    result = {
        "steps": len(seconds),
        "megabytes": megabytes,
        "step_seconds": usual,
        "longer_by_seconds": longer,
        "save_seconds": sum(longer),
        "default_interval": interval,
        "share": sum(longer) / (interval * usual + sum(longer)),
    }
    print_table(result, options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def print_table(result, options):
    """The figures for a person."""
    saves = result["steps"] // options.every
    print(f"{options.size}, batch {options.batch_size}: {result['steps']} steps, {saves} saves, medians")
    print(f"  a checkpoint                    {result['megabytes']:8.1f} MB")
    print(f"  a step, undisturbed             {result['step_seconds']:8.3f} s")
    for place, longer in enumerate(result["longer_by_seconds"], start=1):
        print(f"  step {place:2} after a save, longer by {longer:8.3f} s")
    print(f"  a save costs                    {result['save_seconds']:8.3f} s")
    print(f"  lost with a save every {result['default_interval']:,}    {result['share']:8.3%} of the time")


if __name__ == "__main__":
    main()
