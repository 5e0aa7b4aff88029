import json
import mmap
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch

from electra.bench import turns
from electra.bench.turns import (
    WARMUP_STEPS,
    Contest,
    MemoryWatch,
    Ran,
    Turn,
    Work,
    best_flops,
    best_of,
    busy_neighbours,
    chosen,
    copy_speed,
    descendants,
    describe_peak,
    encoder_products,
    machine_line,
    measure_peak,
    own_memory,
    own_peak,
    processor_flags,
    ratio,
    run_command,
    run_contest,
    take,
    time_steps,
)
from electra.errors import InputError
from electra.model.sizes import EncoderConfig
from electra.train import devices


@pytest.fixture
def stage(monkeypatch):
    """Contestants that say what they are told to, and a machine that gets faster from round to round."""
    calls = []

    def run(words, *, name):
        calls.append(name)
        memory = 100 * len(calls) if name == "ours" else None
        turn = Turn([float(len(calls))], memory=memory, precision="fp32" if name == "plain" else None)
        return Ran(f"a library's remark\n{json.dumps(turn._asdict())}\n", 1.0, None)

    monkeypatch.setattr(turns, "run_command", run)
    peaks = iter([{"fp32": 1.0, "copy": 7.0}, {"fp32": 2.0, "copy": 6.0}])
    monkeypatch.setattr(turns, "measure_peak", lambda products: next(peaks))
    return calls


def test_contestants_take_turns_and_the_best_peak_counts(stage, capsys):
    contest = Contest(
        title="something", contestants=("ours", "plain"), unit="tokens", units_per_step=3.0, repeats=2
    )
    result = run_contest(contest, lambda name: ["bench", name])
    assert stage == ["ours", "plain", "ours", "plain"]
    assert result["seconds"] == {"ours": [1.0, 3.0], "plain": [2.0, 4.0]}
    assert result["memory"] == {"ours": 300, "plain": None}
    assert result["peak"] == {"fp32": 2.0, "copy": 7.0}
    assert result["units_per_step"] == 3.0
    assert result["precision"] == {"ours": None, "plain": "fp32"}
    assert result["beside"] == {}
    assert {"cpu", "cores", "threads", "flags"} <= set(result["machine"])
    said = capsys.readouterr()
    assert [line.split(", ")[1] for line in said.err.splitlines()] == stage
    assert not said.out


def test_neighbours_join_each_round_and_leave_a_share_of_the_speed(stage, monkeypatch, capsys):
    company = []

    @contextmanager
    def neighbours(number):
        company.append(number)
        yield

    monkeypatch.setattr(turns, "busy_neighbours", neighbours)
    contest = Contest(
        title="something",
        contestants=("ours", "plain"),
        unit="tokens",
        units_per_step=3.0,
        repeats=2,
        neighbours=(1, 2),
    )
    result = run_contest(contest, lambda name: ["bench", name])
    assert stage == ["ours", "plain"] * 6
    assert company == [0, 0, 1, 1, 2, 2] * 2
    # The turns take 1, 2, 3, ... seconds.
    assert result["seconds"] == {"ours": [1.0, 7.0], "plain": [2.0, 8.0]}
    assert result["beside"]["1"]["seconds"] == {"ours": [3.0, 9.0], "plain": [4.0, 10.0]}
    assert result["beside"]["2"]["seconds"] == {"ours": [5.0, 11.0], "plain": [6.0, 12.0]}
    left = result["beside"]["1"]["left"]["ours"]
    assert left == pytest.approx({"value": 4 / 6, "min": 1 / 3, "max": 7 / 9, "rounds": 2})
    assert "plain beside 2" in capsys.readouterr().err


def test_an_interruption_leaves_the_rounds_that_are_whole(stage, monkeypatch, capsys):
    contest = Contest(
        title="something", contestants=("ours", "plain"), unit="tokens", units_per_step=3.0, repeats=5
    )
    take = turns.run_command

    def until(last):
        def run(words, *, name):
            if len(stage) == last:
                raise KeyboardInterrupt
            return take(words, name=name)

        return run

    monkeypatch.setattr(turns, "run_command", until(3))
    result = run_contest(contest, lambda name: ["bench", name])
    assert stage == ["ours", "plain", "ours"]
    assert (result["repeats"], result["interrupted"]) == (1, True)
    assert result["seconds"] == {"ours": [1.0], "plain": [2.0]}
    assert "1 of 5 rounds" in capsys.readouterr().err


def test_nothing_is_left_of_the_first_round(stage, monkeypatch):
    def run(words, *, name):
        raise KeyboardInterrupt

    monkeypatch.setattr(turns, "run_command", run)
    contest = Contest(title="x", contestants=("ours",), unit="tokens", units_per_step=1.0, repeats=2)
    with pytest.raises(KeyboardInterrupt):
        run_contest(contest, lambda name: ["bench", name])


def is_running(pid):
    """Not gone, nor waiting for its parent to ask how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("error", [InputError, KeyboardInterrupt])
def test_neighbours_end_with_the_turn_however_it_ends(error):
    found = []

    def turn(error=None):
        with busy_neighbours(2):
            found[:] = descendants(os.getpid())
            assert len(found) == 2
            assert all(map(is_running, found))
            if error:
                raise error

    turn()
    assert not any(map(is_running, found))
    with pytest.raises(error):
        turn(error)
    assert not any(map(is_running, found))


def test_without_neighbours_no_process_is_started():
    with busy_neighbours(0):
        assert not list(descendants(os.getpid()))


def test_a_neighbour_that_ends_too_early_is_told(monkeypatch):
    monkeypatch.setattr(turns, "_LONGEST_COMPANY", 0.0)

    def turn():
        with busy_neighbours(1):
            (found,) = descendants(os.getpid())
            wait_for(lambda: not is_running(found))

    with pytest.raises(InputError, match="neighbour ended"):
        turn()


def test_a_neighbour_that_cannot_start_is_told(monkeypatch):
    monkeypatch.setattr(turns, "_SPIN", "import there_is_no_such_module")
    with pytest.raises(InputError, match="did not start"), busy_neighbours(1):
        pass


def test_neighbours_of_a_command_that_was_killed_end_by_themselves():
    # A parent that leaves its neighbour behind.
    leave = (
        "import os, subprocess, sys; print(subprocess.Popen([sys.executable, '-c', sys.argv[1], '60', "
        "str(os.getpid())], stdout=subprocess.DEVNULL).pid)"
    )
    output = subprocess.run(
        [sys.executable, "-c", leave, turns._SPIN], capture_output=True, check=True
    ).stdout
    wait_for(lambda: not is_running(int(output)))


def test_a_ratio_has_the_range_of_its_rounds():
    slow = {"seconds": {"plain": [4.0, 4.0, 9.0, 9.0]}, "rounds": {"plain": [4.0, 9.0]}}
    fast = {"seconds": {"ours": [1.0, 2.0, 3.0]}, "rounds": {"ours": [2.0, 3.0]}}
    assert ratio(slow, "plain", fast, "ours") == {"value": 3.25, "min": 2.0, "max": 3.25, "rounds": 2}


def test_a_contestant_that_fails_ends_the_contest(capfd):
    with pytest.raises(InputError, match=r"plain.*\b2\b"):
        take(["coffee"], name="plain")
    assert "coffee" in capfd.readouterr().err


def test_who_is_not_known_is_refused():
    assert chosen({"ours": 1}, "ours") == 1
    with pytest.raises(InputError, match=r"somebody.*ours, plain"):
        chosen({"ours": 1, "plain": 2}, "somebody")


@pytest.mark.parametrize("count", [1, 4])
def test_the_first_steps_are_not_counted(count):
    calls = []
    turn = time_steps(Work(lambda: calls.append(None), "bf16"), count=count)
    assert len(turn.seconds) == count
    assert turn.precision == "bf16"
    assert len(calls) == count + WARMUP_STEPS
    assert turn.memory > 10**6


def test_a_slow_contestant_takes_fewer_steps(monkeypatch):
    clock = iter(range(0, 10_000, 15))
    monkeypatch.setattr("time.perf_counter", lambda: float(next(clock)))
    assert time_steps(Work(lambda: None), count=40).seconds == [15.0] * 3


MEGABYTES = 60
# Holds the memory until it is told to end, in a process below the one that is watched.
HOLDER = f"held = bytearray({MEGABYTES} << 20); held[:: 1 << 12] = b'x' * len(held[:: 1 << 12]); input()"
PARENT = (
    f"import subprocess, sys; below = subprocess.Popen([sys.executable, '-c', {HOLDER!r}], "
    "stdin=subprocess.PIPE); print(below.pid, flush=True); input(); below.communicate(b'\\n')"
)


def test_what_a_command_prints_and_takes():
    ran = run_command([sys.executable, "-c", "import time; time.sleep(0.2); print('done')"], name="it")
    assert ran.output == "done\n"
    assert ran.seconds >= 0.2
    assert ran.memory > 10**6


def test_a_failure_is_told():
    with pytest.raises(InputError, match=r"the thing.*\b3\b"):
        run_command([sys.executable, "-c", "import sys; sys.exit(3)"], name="the thing")


def test_a_command_ends_with_us(monkeypatch):
    started = []

    def interrupted(process):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_command([sys.executable, "-c", "import time; time.sleep(60)"], name="it")
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


def test_the_best_of_the_model_s_products_and_of_a_square_one_counts(monkeypatch):
    rates = {devices.square_product(torch.device("cpu")): 3.0, (8, 4, 4): 5.0, (8, 4, 16): 4.0}
    asked = []

    def products_speed(counts, device, precision, *, seconds):
        (product,) = counts
        asked.append((precision, product))
        return rates[product] * (10 if precision == "bf16" else 1)

    monkeypatch.setattr(devices, "products_speed", products_speed)
    monkeypatch.setattr(turns, "copy_speed", lambda seconds: 9e9)
    found = measure_peak([(8, 4, 4), (8, 4, 16)])
    assert found == {"fp32": 5.0, "bf16": 50.0, "copy": 9e9}
    assert len(asked) == 2 * len(rates)
    assert best_flops(found) == 50.0


def test_the_products_are_those_of_a_layer():
    config = EncoderConfig.preset("tiny")
    assert encoder_products(config, tokens=7) == ((7, 128, 384), (7, 128, 128), (7, 128, 512), (7, 512, 128))


def test_what_is_measured_here_is_a_rate(monkeypatch):
    monkeypatch.setattr(turns, "copy_speed", partial(copy_speed, size=1 << 20))
    found = measure_peak([], seconds=0.0)
    assert found.keys() == {"fp32", "bf16", "copy"}
    assert all(value > 1e6 for value in found.values())


def test_a_copy_counts_what_is_read_and_what_is_written(monkeypatch):
    clock = iter([0.0, 1.0, 3.0, 9.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    assert copy_speed(seconds=1.0, size=1 << 20) == pytest.approx(2 * (1 << 20) / 2)


def test_each_kind_of_peak_has_its_own_best_moment():
    assert best_of([{"fp32": 1.0, "copy": 5.0}, {"fp32": 2.0, "copy": 4.0}]) == {"fp32": 2.0, "copy": 5.0}


def test_the_processor_is_told_with_its_instructions():
    machine = {"cpu": "EPYC", "cores": 2, "threads": 1, "flags": ["avx2", "avx512f"]}
    assert machine_line(machine, "bf16") == "EPYC (avx2 avx512f), 2 cores, 1 threads, bf16"
    assert "flags unknown" in machine_line({**machine, "flags": []})
    assert set(processor_flags()) <= set(turns._FLAGS)


def test_it_is_told_in_words():
    assert describe_peak({"fp32": 180e9, "bf16": 8e9, "copy": 12.4e9}) == (
        "peak here: 180 GFLOP/s in fp32, 8 GFLOP/s in bf16; 12 GB/s copied"
    )
