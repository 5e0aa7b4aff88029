import mmap
import subprocess
import sys
import time

import pytest

from electra.bench.turns import MemoryWatch, descendants, own_memory, own_peak, run
from electra.errors import InputError

MEGABYTES = 60
# Holds the memory until it is told to end, in a process below the one that is watched.
HOLDER = f"held = bytearray({MEGABYTES} << 20); held[:: 1 << 12] = b'x' * len(held[:: 1 << 12]); input()"
PARENT = (
    f"import subprocess, sys; below = subprocess.Popen([sys.executable, '-c', {HOLDER!r}], "
    "stdin=subprocess.PIPE); print(below.pid, flush=True); input(); below.communicate(b'\\n')"
)


def test_what_a_command_prints_and_takes():
    ran = run([sys.executable, "-c", "import time; time.sleep(0.2); print('done')"], name="it")
    assert ran.output == "done\n"
    assert ran.seconds >= 0.2
    assert ran.memory > 10**6


def test_a_failure_is_told():
    with pytest.raises(InputError, match="the thing ended with exit code 3"):
        run([sys.executable, "-c", "import sys; sys.exit(3)"], name="the thing")


def test_a_command_ends_with_us(monkeypatch):
    started = []

    def interrupted(process):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([sys.executable, "-c", "import time; time.sleep(60)"], name="it")
    assert started[0].returncode is not None


def test_memory_below_a_process_counts():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            below = int(process.stdout.readline())
            assert list(descendants(process.pid)) == [below]
            with MemoryWatch(process.pid) as watch:
                deadline = time.monotonic() + 30
                while (watch.most or 0) < MEGABYTES << 20 and time.monotonic() < deadline:
                    time.sleep(0.05)
            process.communicate("\n")
        finally:
            process.terminate()
    assert watch.most >= MEGABYTES << 20


def test_nothing_is_known_of_a_process_that_is_gone():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with MemoryWatch(process.pid) as watch:
        time.sleep(0.1)
    assert watch.most is None


def test_the_peak_stays_when_memory_is_given_back():
    before = own_memory()
    # Not from the allocator, which may have some left of what others gave back.
    with mmap.mmap(-1, MEGABYTES << 20) as held:
        held[:: 1 << 12] = b"x" * (MEGABYTES << 8)
        assert own_memory() - before > (MEGABYTES - 10) << 20
    assert own_memory() - before < (MEGABYTES - 10) << 20
    assert own_peak() - before > (MEGABYTES - 10) << 20
