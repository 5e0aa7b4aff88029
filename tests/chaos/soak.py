"""A server for a long time at twice its capacity, with clients of all kinds: `make soak`.

    python tests/chaos/soak.py --seconds 1800 --out soak

Good clients ask and wait, bad ones send what is no request, slow ones take seconds to send or to read, and
vanishing ones leave before the answer. Every answer has to be 200, 4xx or 503, everybody who waits has to get
one, and memory, descriptors and threads of the server have to stay where they are. The exit code is 1 if not.
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from jobs import WORDS

KINDS = {"good": 0.7, "bad": 0.1, "slow": 0.1, "vanishing": 0.1}
"""Clients, and their shares."""
WARM_UP = 0.25
"""Share of the time after which nothing may grow any more."""
MOST_GROWTH = 1.1
MOST_LEFT = 2
TEXTS, WORDS_A_TEXT = 8, 60
PATIENCE = 60.0


@dataclass
class Seen:
    """What happened, as it happened."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kind of client and status, or what came instead."""
    latencies: list[tuple[float, float]] = field(default_factory=list)
    """Of good clients that got 200: when, and how long it took."""
    server: list[dict[str, float]] = field(default_factory=list)

    def lost(self) -> list[str]:
        """What should not have happened."""
        wrong = [
            f"{number} {kind} clients: {what}"
            for (kind, what), number in sorted(self.answers.items())
            if not (what == "left" or what == "200" or what == "503" or what.startswith("4"))
        ]
        later = self.server[int(WARM_UP * len(self.server)) :]
        half = len(later) // 2
        before, after = (
            statistics.median(fact["megabytes"] for fact in part) for part in (later[:half], later[half:])
        )
        if after > MOST_GROWTH * before:
            wrong.append(f"megabytes grew from {before:.0f} to {after:.0f}")
        # These go with the clients of the moment: what counts is what is left when they are gone.
        for key in ("descriptors", "threads"):
            first, last = self.server[0][key], self.server[-1][key]
            if last > first + MOST_LEFT:
                wrong.append(f"{key}: {first:.0f} at first, {last:.0f} when all clients were gone")
        return wrong


class Client:
    """Requests to one server, by hand: proper clients do not do such things."""

    def __init__(self, url: str, seen: Seen, rng: random.Random) -> None:
        address = urlsplit(url)
        self.place = (address.hostname, address.port)
        self.seen, self.rng = seen, rng
        self.began = time.monotonic()

    async def ask(self, kind: str) -> None:
        """One request of one kind; whatever comes of it is noted."""
        act: Callable[[], Coroutine[Any, Any, str]] = getattr(self, f"_{kind}")
        began = time.monotonic()
        try:
            what = await asyncio.wait_for(act(), PATIENCE)
        except TimeoutError:
            what = "no answer"
        except (OSError, asyncio.IncompleteReadError) as error:
            what = type(error).__name__
        self.seen.answers[kind, what] += 1
        if kind == "good" and what == "200":
            self.seen.latencies.append((began - self.began, time.monotonic() - began))

    async def _good(self) -> str:
        reader, writer = await asyncio.open_connection(*self.place)
        try:
            writer.write(self._request(self._body()))
            return await _answer(reader)
        finally:
            writer.close()

    async def _bad(self) -> str:
        body = self.rng.choice(
            (b"{", b"[]", b'{"texts": 5}', b'{"texts": ["x"], "' + b"k" * 100_000 + b'": 1}', b"\xff" * 50)
        )
        request = self.rng.choice(
            (
                self._request(body),
                self._request(body, path="/nowhere"),
                self._request(body, head="Content-Length: 99999999"),
                b"NONSENSE\r\n\r\n",
                self._request(body, host="elsewhere.example"),
            )
        )
        reader, writer = await asyncio.open_connection(*self.place)
        try:
            writer.write(request)
            return await _answer(reader)
        finally:
            writer.close()

    async def _slow(self) -> str:
        request = self._request(self._body())
        reader, writer = await asyncio.open_connection(*self.place, limit=2**12)
        try:
            cuts = sorted(self.rng.randrange(len(request)) for _ in range(4))
            for start, end in zip([0, *cuts], [*cuts, len(request)], strict=True):
                writer.write(request[start:end])
                await asyncio.sleep(self.rng.uniform(0.0, 1.0))
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            return await _answer(reader)
        finally:
            writer.close()

    async def _vanishing(self) -> str:
        _, writer = await asyncio.open_connection(*self.place)
        request = self._request(self._body())
        writer.write(request[: self.rng.choice((len(request), len(request) // 2))])
        await asyncio.sleep(self.rng.uniform(0.0, 0.3))
        writer.transport.abort()
        return "left"

    def _body(self) -> bytes:
        texts = [" ".join(self.rng.choices(WORDS, k=WORDS_A_TEXT)) for _ in range(TEXTS)]
        return json.dumps({"texts": texts}).encode()

    def _request(
        self, body: bytes, *, path: str = "/classify", head: str = "", host: str = "localhost"
    ) -> bytes:
        length = head or f"Content-Length: {len(body)}"
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", length]
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


async def _answer(reader: asyncio.StreamReader) -> str:
    """The status of an answer that came whole."""
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            await reader.readexactly(int(line.split(b":")[1]))
    return head.split()[1].decode()


async def capacity(url: str, *, seconds: float) -> float:
    """Answers a second to good clients of whom there are always some."""
    seen = Seen()
    client = Client(url, seen, random.Random(0))
    end = time.monotonic() + seconds

    async def ask_on() -> None:
        while time.monotonic() < end:
            await client.ask("good")

    began = time.monotonic()
    await asyncio.gather(*(ask_on() for _ in range(8)))
    return seen.answers["good", "200"] / (time.monotonic() - began)


async def soak(url: str, process: int, seen: Seen, *, rate: float, seconds: float, seed: int) -> None:
    """Clients at random moments, so many a second; the server is looked at twice a second."""
    rng = random.Random(seed)
    client = Client(url, seen, rng)
    asked: set[asyncio.Task[None]] = set()

    async def look() -> None:
        while True:
            seen.server.append({"seconds": time.monotonic() - client.began, **facts_of(process)})
            await asyncio.sleep(0.5)

    looking = asyncio.create_task(look())
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(rng.expovariate(rate))
        task = asyncio.create_task(client.ask(rng.choices([*KINDS], [*KINDS.values()])[0]))
        asked.add(task)
        task.add_done_callback(asked.discard)
    await asyncio.gather(*asked)
    await asyncio.sleep(2.0)
    looking.cancel()


def facts_of(process: int) -> dict[str, float]:
    """What a process has of the machine, by Linux."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines() if ":" in line
    )
    return {
        "megabytes": int(status["VmRSS"].split()[0]) / 1000,
        "threads": int(status["Threads"]),
        "descriptors": len(list(Path(f"/proc/{process}/fd").iterdir())),
    }


def write_model(folder: Path) -> None:
    """An ELECTRA-small that classifies, with random weights."""
    from electra.model.encoder import Encoder, initialise
    from electra.model.sizes import EncoderConfig
    from electra.seeds import torch_generator
    from electra.tasks.families.classification import Classification
    from electra.tasks.model import FineTuned, TaskModel, save_model
    from electra.text import tokenizer as tokenizers
    from electra.text.tokenizer import TokenizerConfig

    tokenizer = tokenizers.train(WORDS * 50, TokenizerConfig(vocab_size=300))
    encoder = Encoder(EncoderConfig.preset("small", vocab_size=tokenizer.vocab_size))
    model = TaskModel(encoder, {"task": Classification(("bad", "good"), ("accuracy",))})
    initialise(model, std=0.02, generator=torch_generator(0))
    save_model(FineTuned(model=model, task="task", tokenizer=tokenizer, max_length=128), folder)


def plot(seen: Seen, path: Path) -> None:
    """Latency and what the server had of the machine, over time."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(4, 1, figsize=(8, 8), sharex=True, layout="constrained")
    every = max(1.0, seen.server[-1]["seconds"] / 60)
    spans: dict[int, list[float]] = {}
    for when, took in seen.latencies:
        spans.setdefault(int(when / every), []).append(took)
    minutes = [number * every / 60 for number in sorted(spans)]
    for label, share in (("median", 0.5), ("p99", 0.99)):
        axes[0].plot(minutes, [quantile(spans[number], share) for number in sorted(spans)], label=label)
    axes[0].set_ylabel("seconds to 200")
    axes[0].legend()
    for axis, key in zip(axes[1:], ("megabytes", "descriptors", "threads"), strict=True):
        axis.plot([fact["seconds"] / 60 for fact in seen.server], [fact[key] for fact in seen.server])
        axis.set_ylabel(key)
    for axis in axes:
        axis.set_ylim(bottom=0)
    axes[-1].set_xlabel("minutes")
    figure.savefig(path)


def quantile(values: list[float], share: float) -> float:
    """The value below which that share lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--load", type=float, default=2.0, help="clients for each one it could answer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder of the report")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    model = given.out / "model"
    if not model.exists():
        write_model(model)
    command = [sys.executable, "-m", "electra", "serve", "--model", str(model), "--port", "0"]
    with (given.out / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    seen = Seen()
    try:
        url = server.stdout.readline().split()[0]
        able = asyncio.run(capacity(url, seconds=10))
        rate = given.load * able
        print(
            f"it can answer {able:.1f} requests a second; {rate:.1f} come, for {given.seconds:.0f} s",
            flush=True,
        )
        asyncio.run(soak(url, server.pid, seen, rate=rate, seconds=given.seconds, seed=given.seed))
    finally:
        server.terminate()
        code = server.wait(120)
    wrong = seen.lost() + ([f"the server ended with {code}"] if code else [])
    logged = (given.out / "server.log").read_text()
    wrong += ["a traceback in the log"] if "Traceback" in logged else []
    times = [took for _, took in seen.latencies]
    report = {
        "seconds": given.seconds,
        "capacity": able,
        "rate": rate,
        "answers": {f"{kind} {what}": number for (kind, what), number in sorted(seen.answers.items())},
        "requests": sum(seen.answers.values()),
        "seconds_to_200": {"median": quantile(times, 0.5), "p99": quantile(times, 0.99)},
        "log_bytes": len(logged),
        "server": {
            key: [min(values), max(values)]
            for key in ("megabytes", "descriptors", "threads")
            if (values := [fact[key] for fact in seen.server])
        },
        "wrong": wrong,
    }
    (given.out / "soak.json").write_text(json.dumps(report, indent=1) + "\n")
    plot(seen, given.out / "soak.svg")
    print(json.dumps(report, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
