"""What several processes on this machine take for a step, beside what `electra plan` would say of them.

    python benchmarks/processes.py [--size tiny] [--batch_size 32] [--processes 1 2 4] [--json FILE]

Three things are measured, each in processes of its own with one thread each, joined by gloo over loopback:

    computing   the step of `electra pretrain` in one process, at the rows that each process would get
    link        two processes that all-reduce a few bytes, which gives the latency, and as many bytes as there
                are gradients, which gives the bandwidth
    measured    the step of all processes together (DDP), at the same batch

Predicted is computing + communication by `electra.pretraining.communication`, with nothing computed while
bytes are sent: here the cores do both. More processes than cores take turns, which lengthens both by
processes / cores. Each figure is the fastest of some repetitions: slower ones shared the machine with
something else. Where neighbours never rest, give the --cores that they leave.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from electra.bench import growth, pretraining
from electra.bench.turns import describe_machine, take
from electra.pretraining.communication import Link, communication
from electra.pretraining.cost import count_weights

_SMALL, _REPEATS, _WARM_UP = 4, 15, 3
_PROBE = "--probe"


def step_seconds(folder, point, *, steps):
    """The fastest step of a point, measured as `electra bench growth` does."""
    data = growth.write_data(folder, point, steps=steps)
    words = ["bench", "growth", "--contestant=step", f"--material={data}", f"--growth.steps={steps}"]
    words += ["--growth.processes=1", *point.words()]
    turn = take(words, name=growth.described(point), launcher=growth.launcher(point.processes))
    return min(turn.seconds)


def probe_link(processes, num_bytes):
    """Seconds of an all-reduce of few bytes, and of many."""
    together = ("--standalone", f"--nproc-per-node={processes}")
    command = [sys.executable, "-m", "torch.distributed.run", *together, __file__, _PROBE, str(num_bytes)]
    done = subprocess.run(command, check=True, timeout=120, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def all_reduce(num_bytes):
    """What a process of `probe_link` does; the first one prints."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    found = []
    for size in (_SMALL, num_bytes):
        numbers = torch.zeros(max(1, size // 4))
        seconds = []
        for _ in range(_WARM_UP + _REPEATS):
            distributed.barrier()
            begun = time.perf_counter()
            distributed.all_reduce(numbers)
            seconds.append(time.perf_counter() - begun)
        found.append(min(seconds[_WARM_UP:]))
    if distributed.get_rank() == 0:
        print(json.dumps(found))
    distributed.destroy_process_group()


def link_of(few, many, num_bytes):
    """The link that explains two all-reduces of two processes: each sends two messages of half the bytes."""
    return Link(latency=few / 2, bandwidth=num_bytes / max(many - few, 1e-9))


def measure(options, folder):
    """All figures."""
    base = growth.Point(
        size=options.size, batch_size=options.batch_size, seq_length=options.seq_length, vocab_size=8192
    )
    config, encoder = pretraining.sizes(base.step(steps=1))
    weights = count_weights(config, encoder, length=base.seq_length)
    gradients = 4 * weights.total
    few, many = probe_link(2, gradients)
    link = link_of(few, many, gradients)
    rows = []
    for processes in options.processes:
        local = growth.Point(
            size=base.size,
            batch_size=base.batch_size // processes,
            seq_length=base.seq_length,
            vocab_size=base.vocab_size,
        )
        together = growth.Point(
            size=base.size,
            batch_size=base.batch_size,
            seq_length=base.seq_length,
            vocab_size=base.vocab_size,
            processes=processes,
        )
        computing = step_seconds(folder, local, steps=options.steps)
        sent = communication(
            weights,
            devices=processes,
            link=link,
            parallel="ddp",
            computing=computing,
            micro_batches=1,
            overlaps=False,
        )
        turns = max(1.0, processes / options.cores)
        rows.append(
            {
                "processes": processes,
                "computing": computing,
                "sending": sent.waited,
                "turns": turns,
                "predicted": turns * (computing + sent.waited),
                "measured": computing
                if processes == 1
                else step_seconds(folder, together, steps=options.steps),
                "all_reduce": None if processes == 1 else probe_link(processes, gradients)[1],
            }
        )
    return {
        "machine": describe_machine(),
        "load": os.getloadavg()[0],
        "gradients": gradients,
        "link": {"bandwidth": link.bandwidth, "latency": link.latency},
        "rows": rows,
    }


def print_table(result, options):
    """The figures for a person."""
    link = result["link"]
    print(
        f"{options.size}, {options.batch_size} rows of {options.seq_length} tokens a step; "
        f"{options.cores:g} cores, load {result['load']:.1f}"
    )
    print(
        f"link of two processes: {link['bandwidth'] / 1e9:.2f} GB/s, {1e6 * link['latency']:.0f} "
        f"microseconds; gradients {result['gradients'] / 1e6:.1f} MB"
    )
    print("processes  computing  + sending  x turns  = predicted  measured  their ratio  all-reduce alone")
    for row in result["rows"]:
        alone = "-" if row["all_reduce"] is None else f"{1e3 * row['all_reduce']:.1f} ms"
        print(
            f"{row['processes']:9}  {1e3 * row['computing']:6.1f} ms  {1e3 * row['sending']:6.1f} ms  "
            f"{row['turns']:7.1f}  {1e3 * row['predicted']:8.1f} ms  {1e3 * row['measured']:5.1f} ms  "
            f"{row['predicted'] / row['measured']:11.2f}  {alone:>16}"
        )


def main():
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size", default="tiny", choices=("tiny", "small", "base"))
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--seq_length", type=int, default=128)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--steps", type=int, default=10, help="timed steps of each measurement")
    parser.add_argument("--cores", type=float, default=float(len(os.sched_getaffinity(0))))
    parser.add_argument("--json", type=Path)
    parser.add_argument(_PROBE, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe is not None:
        all_reduce(options.probe)
        return
    for processes in options.processes:
        if processes < 1 or options.batch_size % processes:
            raise SystemExit(f"{processes} processes cannot share {options.batch_size} rows evenly")
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="electra-bench-") as folder:
        result = measure(options, Path(folder))
    print_table(result, options)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
