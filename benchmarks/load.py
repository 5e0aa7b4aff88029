"""More clients than a served model has places for -> its answers, their latency, its memory.

    python benchmarks/load.py --model DIR [--clients 200] [--seconds 30] [--queue_size 32] [--path /embed]

Starts `electra serve` on a free port of loopback. Each client keeps one connection and sends its next request
as soon as it has an answer, even if that is 503: a real overload. An answer is lost if the connection ends
without one. The server's memory is measured after a warm-up (a tenth of the time) and at the end. Finally the
server gets SIGTERM and must exit with 0.
"""

import argparse
import asyncio
import collections
import json
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

START = "import sys; from electra.cli import main; sys.exit(main(sys.argv[1:]))"


async def ask(reader, writer, request):
    """Send one request; the status of the answer, and whether the connection stays open."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    await reader.readexactly(int(re.search(r"\r\ncontent-length: (\d+)", head)[1]))
    return int(head.split()[1]), "\r\nconnection: close" not in head


async def client(address, request, end, answers):
    """Send requests until `end`; collect (status, seconds) of each answer, with status 0 for a lost one."""
    while time.monotonic() < end:
        try:
            reader, writer = await asyncio.open_connection(*address)
        except OSError:
            answers.append((0, 0.0))
            return
        try:
            stays_open = True
            while stays_open and time.monotonic() < end:
                start = time.monotonic()
                status, stays_open = await ask(reader, writer, request)
                answers.append((status, time.monotonic() - start))
        except (OSError, asyncio.IncompleteReadError):
            answers.append((0, 0.0))
        finally:
            writer.close()


async def hammer(url, path, body, *, clients, seconds):
    """All answers that `clients` get in `seconds`."""
    address = urlsplit(url)
    content = json.dumps(body).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    ).encode() + content
    answers, end = [], time.monotonic() + seconds
    place = (address.hostname, address.port)
    await asyncio.gather(*(client(place, request, end, answers) for _ in range(clients)))
    return answers


def resident(pid):
    """Bytes of memory that a process uses."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def fetch(url):
    """Body of a GET request."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        return answer.read().decode()


def start_server(options):
    """A server and its address, once it is ready."""
    keys = {"model": options.model, "engine": options.engine, "port": 0, "queue_size": options.queue_size}
    command = [sys.executable, "-c", START, "serve", *(f"--{key}={value}" for key, value in keys.items())]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    line = server.stdout.readline()
    if not line:
        raise SystemExit(server.wait())
    url = line.split()[0]
    for _ in range(600):
        try:
            fetch(f"{url}/health/ready")
            return server, url
        except OSError:
            time.sleep(0.1)
    server.kill()
    raise SystemExit("the server did not become ready within 60 s")


def stop(server):
    """Send SIGTERM; the exit code."""
    server.send_signal(signal.SIGTERM)
    return server.wait(60)


def describe(answers, seconds):
    """Counts and latencies."""
    counts = collections.Counter(status for status, _ in answers)
    took = sorted(1000 * spent for status, spent in answers if status == 200)
    yield "answers", ", ".join(f"{count:,} x {status}" for status, count in sorted(counts.items()) if status)
    yield "lost", f"{counts[0]}"
    yield "answered 200", f"{counts[200] / seconds:.0f} per second"
    if len(took) > 1:
        cuts = statistics.quantiles(took, n=100)
        yield "latency of 200", f"{cuts[49]:.0f} ms median, {cuts[94]:.0f} 95 %, {cuts[98]:.0f} 99 %"


def main():
    """Start a server, load it, report, stop it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--engine", default="torch")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--queue_size", type=int, default=32)
    parser.add_argument("--path", default="/embed")
    parser.add_argument("--text", default="The chef cooked the meal that the guests had asked for.")
    options = parser.parse_args()
    server, url = start_server(options)
    try:
        load = {"path": options.path, "body": {"texts": [options.text]}, "clients": options.clients}
        asyncio.run(hammer(url, **load, seconds=options.seconds / 10))
        before = resident(server.pid)
        answers = asyncio.run(hammer(url, **load, seconds=options.seconds))
        after = resident(server.pid)
        metrics = fetch(f"{url}/metrics")
        code = stop(server)
    finally:
        server.kill()
        server.wait()
    texts, batches = (
        float(re.search(rf"electra_batch_texts_{name} (\S+)", metrics)[1]) for name in ("sum", "count")
    )
    for name, value in describe(answers, options.seconds):
        print(f"  {name:<16}{value}")
    print(f"  {'batch':<16}{texts / batches:.1f} texts on average")
    print(f"  {'memory':<16}{before / 2**20:.0f} MiB after the warm-up, {after / 2**20:.0f} MiB at the end")
    print(f"  {'exit code':<16}{code}")
    statuses = {status for status, _ in answers}
    sys.exit(0 if statuses <= {200, 503} and 200 in statuses and code == 0 else 1)


if __name__ == "__main__":
    main()
