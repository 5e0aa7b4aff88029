"""Processes on a cluster as far as it goes without one: seats, folders, and what an actor does."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from electra import files
from electra.cluster import Node
from electra.errors import InputError
from electra.train import on_cluster
from electra.train.on_cluster import (
    Worker,
    choose_seats,
    interface_of,
    is_handled,
    require_same_folders,
)


def node(name, cpus, gpus=0):
    return Node(id=name, name=name, address=f"10.0.0.{len(name)}", cpus=cpus, gpus=gpus)


def seats(nodes, *, workers=None, batch_size=24, on_gpus=True):
    chosen = choose_seats(nodes, workers=workers, batch_size=batch_size, on_gpus=on_gpus)
    return [(seat.node.name, seat.cpus, seat.gpus) for seat in chosen]


def test_without_gpus_every_node_has_one_process_with_the_cores_of_the_smallest():
    assert seats([node("a", 8), node("b", 4), node("c", 8)]) == [("a", 4, 0), ("b", 4, 0), ("c", 4, 0)]


def test_a_number_of_processes_is_spread_over_the_cores():
    assert seats([node("a", 4), node("b", 2)], workers=3) == [("a", 2, 0), ("a", 2, 0), ("b", 2, 0)]
    # What is left of the nodes takes as many as before, as long as it has the cores.
    assert seats([node("a", 4)], workers=3) == [("a", 1, 0)] * 3
    assert seats([node("b", 2)], workers=3) == [("b", 1, 0)] * 2


def test_every_gpu_has_a_process_unless_the_run_is_on_cpus():
    nodes = [node("a", 16, 2), node("b", 16, 1), node("head", 4)]
    assert seats(nodes) == [("a", 1, 1), ("a", 1, 1), ("b", 1, 1)]
    assert seats(nodes, workers=2) == [("a", 1, 1), ("a", 1, 1)]
    assert seats(nodes, on_gpus=False) == [("a", 4, 0), ("b", 4, 0), ("head", 4, 0)]


@pytest.mark.parametrize(("batch_size", "number"), [(8, 4), (6, 3), (7, 1), (5, 5)])
def test_as_many_as_the_batch_can_be_divided_by(batch_size, number):
    nodes = [node(name, 1) for name in "abcde"]
    assert len(seats(nodes, batch_size=batch_size)) == number


def test_no_room_is_no_seat():
    assert seats([]) == []
    assert seats([node("a", 0)]) == []


class TwoNodes:
    """A cluster whose second node may see other folders."""

    nodes = (node("a", 1), node("b", 1))

    def __init__(self, see=lambda path: path):
        self.see = see

    def each(self, nodes, function, data, out, token):
        yield "a", function(data, out, token)
        yield "b", function(self.see(data), self.see(out), token)


@pytest.fixture
def data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}")
    return tmp_path / "data"


def test_folders_that_all_nodes_share_are_left_as_they_were(tmp_path, data):
    out = tmp_path / "new" / "run"
    require_same_folders(TwoNodes(), TwoNodes.nodes, data=data, out=out)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(("which", "says"), [("data", "other data"), ("run", "does not see")])
def test_a_node_with_another_folder_is_named_and_nothing_is_left_behind(tmp_path, data, which, says):
    other = tmp_path / "elsewhere"
    other.mkdir()
    cluster = TwoNodes(see=lambda path: str(other) if path.endswith(which) else path)
    with pytest.raises(InputError, match=rf"node b.*{says}") as caught:
        require_same_folders(cluster, cluster.nodes, data=data, out=tmp_path / "new" / "run")
    assert "node a" not in str(caught.value)
    assert not (tmp_path / "new").exists()
    assert list(other.iterdir()) == []


def test_a_folder_that_has_the_token_but_not_the_marks_is_another_one(tmp_path, data):
    """As a copy would be, or a cache that is behind."""
    copy = tmp_path / "copy"
    copy.mkdir()

    class Copied(TwoNodes):
        def each(self, nodes, function, data, out, token):
            (copy / token).touch()
            yield "b", function(data, str(copy), token)

    with pytest.raises(InputError, match=r"node b.*another folder"):
        require_same_folders(Copied(), Copied.nodes, data=data, out=tmp_path / "run")


def test_the_interface_of_an_address_is_found():
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") == ""


def until_it_ends(worker):
    lines = []
    while True:
        report = worker.look()
        lines += report.lines
        if report.code is not None:
            return lines, report.code


@pytest.mark.slow
def test_an_actor_says_what_its_process_says_and_how_it_ends():
    worker = Worker()
    port, interface = worker.place("127.0.0.1")
    assert 0 < port < 1 << 16
    assert interface == "lo"
    worker.start(["pretrain"], "sed: 3\n", {"SOME": "thing"})
    lines, code = until_it_ends(worker)
    assert code == 2
    assert {stream for stream, _ in lines} == {"stderr"}
    assert "sed" in lines[0][1]
    worker.signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_signal_that_asks_for_a_checkpoint_does_not_end_a_process_that_is_not_ready_for_it():
    worker = Worker()
    worker.start(["pretrain"], "sed: 3\n", {})
    # It has hardly begun to import anything.
    worker.signal(signal.SIGUSR1)
    lines, code = until_it_ends(worker)
    assert (code, "sed" in lines[0][1]) == (2, True)


def test_it_is_known_whether_a_process_handles_a_signal():
    assert is_handled(os.getpid(), signal.SIGINT)
    before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    try:
        assert not is_handled(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, lambda *_: None)
        assert is_handled(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


class Told:
    """An actor that remembers the signals it was sent."""

    def __init__(self):
        self.numbers = []
        self.signal = self

    def remote(self, number):
        self.numbers.append(number)


def test_one_process_is_asked_to_save_and_all_are_asked_to_stop():
    told = [Told(), Told()]

    class Ready(TwoNodes):
        ray = None

        def actor(self, kind, node, **needs):
            return told[self.nodes.index(node)]

    chosen = choose_seats(Ready.nodes, workers=None, batch_size=2, on_gpus=False)
    passed = on_cluster._Passed()
    crew = on_cluster._Crew(Ready(), chosen, passed, restarts=0, lost_at=None)
    passed.pending += [signal.SIGUSR1, signal.SIGTERM]
    crew._pass_on()
    assert [one.numbers for one in told] == [[signal.SIGUSR1, signal.SIGTERM], [signal.SIGTERM]]


ORPHAN = """
import os, subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-c",
     "import time; from electra.train import on_cluster; on_cluster.end_with_parent(); time.sleep(600)"],
    stdin=subprocess.PIPE,
)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.slow
def test_a_process_ends_when_its_actor_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 300
    while is_running(child):
        assert time.monotonic() < end
        time.sleep(0.05)


def is_running(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # One whose parent has not asked for its end yet.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize(("restarts", "waits"), [(None, False), ("0", False), ("1", True)])
def test_only_a_process_that_follows_a_lost_one_waits_for_the_lock(monkeypatch, restarts, waits):
    if restarts is not None:
        monkeypatch.setenv("ELECTRA_CLUSTER_WORKER", restarts)
    assert on_cluster.is_worker() is (restarts is not None)
    assert bool(on_cluster.lock_seconds()) is waits


def test_a_lock_is_waited_for_as_long_as_it_is_told(tmp_path):
    with files.locked(tmp_path / "lock", busy="busy"):
        with (
            pytest.raises(InputError, match="busy"),
            files.locked(tmp_path / "lock", busy="busy", seconds=0.3),
        ):
            pass
        holder = threading.Thread(target=hold_soon, args=(tmp_path / "lock",))
        holder.start()
    holder.join(timeout=300)
    assert not holder.is_alive()


def hold_soon(path):
    with files.locked(path, busy="busy", seconds=300):
        pass
