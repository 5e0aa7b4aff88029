"""What a checkpoint of a sharded model costs each process in memory, while it is saved.

    python benchmarks/checkpoint_memory.py [--processes 4] [--size base] [--vocab_size 30522] [--json FILE]

Processes with gloo on this machine hold the encoder of a size by FSDP2, with both moments of AdamW, and save
it as a run does. Of each process: what it holds before the save, and the most that it held at any moment of
it (resident memory, of which Linux keeps the peak). The folder is made below the current one, and removed.
"""

import argparse
import json
import os
import socket
import tempfile
import time
from pathlib import Path

import torch

from electra.model.encoder import Encoder, Layer
from electra.model.sizes import EncoderConfig
from electra.train.checkpoint import CheckpointConfig, CheckpointStore
from electra.train.distributed import World
from electra.train.state import TrainState


def memory(key):
    """A line of /proc/self/status, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 1000


def save(options, folder):
    """Build, shard, give the moments a place, save; what it took."""
    world = World.from_environment()
    torch.set_num_threads(1)
    with world.joined(torch.device("cpu")):
        model = Encoder(EncoderConfig.preset(options.size, vocab_size=options.vocab_size))
        layers = [part for part in model.modules() if isinstance(part, Layer)]
        world.wrap(model, "fsdp", layers=layers, idle_weights=False)
        optimizer = torch.optim.AdamW(list(model.named_parameters()))
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        optimizer.zero_grad()
        state = TrainState(model=model, optimizer=optimizer, step=1)
        with CheckpointStore(folder, CheckpointConfig(), together=world) as store:
            world.barrier()
            before = memory("VmRSS")
            # The peak is counted from here.
            Path("/proc/self/clear_refs").write_text("5")
            began = time.perf_counter()
            store.save(1, state.tensors(), state.facts())
            store.wait()
            seconds = time.perf_counter() - began
            peak = memory("VmHWM")
    return {"process": world.rank, "before_mb": before, "peak_mb": peak, "seconds": seconds}


def fork(options, folder, rank, port):
    """A process of the world, and where to read what it says."""
    listen, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        return child, listen
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank)}
    os.environ |= {**place, "WORLD_SIZE": str(options.processes)}
    code = 1
    try:
        os.write(tell, json.dumps(save(options, folder)).encode())
        code = 0
    finally:
        os._exit(code)


def main():
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--size", default="base")
    parser.add_argument("--vocab_size", type=int, default=30522)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="electra-bench-", dir=Path.cwd()) as folder:
        children = [fork(options, Path(folder) / "run", rank, port) for rank in range(options.processes)]
        codes = [os.waitpid(child, 0)[1] for child, _ in children]
        if any(codes):
            raise SystemExit(f"a process failed: {codes}")
        found = [json.loads(os.read(listen, 10_000)) for _, listen in children]
        saved = sum(path.stat().st_size for path in Path(folder).rglob("*.safetensors")) / 1e6
    print(f"{options.size}, {options.processes} processes, a checkpoint of {saved:,.0f} MB")
    print("process   before   peak of the save   more by   seconds")
    for one in found:
        before, peak = one["before_mb"], one["peak_mb"]
        print(f"{one['process']:7} {before:8,.0f} {peak:18,.0f} {peak - before:9,.0f} {one['seconds']:9.1f}")
    first, least = found[0]["peak_mb"], min(one["peak_mb"] for one in found[1:])
    print(f"process 0 holds at most {first / least:.2f} x of what any other does")
    if options.json:
        options.json.write_text(json.dumps({"saved_mb": saved, "processes": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
