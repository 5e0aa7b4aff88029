import contextlib
import gc
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (extra: cluster)")

import patient_ray
import pieces
from electra import cluster as clusters
from electra.errors import InputError
from local_cluster import TEST_SECONDS, require_started

pytestmark = pytest.mark.timeout(TEST_SECONDS)

SUPPORT = Path(patient_ray.__file__).parent


@pytest.fixture(scope="module")
def local():
    """One for all tests here: starting it takes longer than what they do."""
    before = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{before}:{SUPPORT}" if before else str(SUPPORT)
    try:
        with contextlib.ExitStack() as stack:
            try:
                cluster = stack.enter_context(clusters.connected("local"))
            except ChildProcessError as error:
                require_started(str(error))
                raise
            yield cluster
    finally:
        os.environ["PYTHONPATH"] = before
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            # Ray forgets the processes that it has ended.
            gc.collect()


@pytest.mark.slow
def test_results_come_in_order_with_the_name_of_their_node(local):
    heard = []
    found = list(local.work(pieces.double, range(20), on_done=lambda item, node: heard.append((item, node))))
    assert found == [(number, 2 * number) for number in range(20)]
    assert sorted(item for item, _ in heard) == list(range(20))
    assert {node for _, node in heard} == {node.name for node in local.nodes}
    assert dict(local.work(pieces.doubled_with, range(5), shared={"more": 7}, ordered=False)) == {
        number: 2 * number + 7 for number in range(5)
    }
    assert list(local.work(pieces.double, [])) == []


@pytest.mark.slow
def test_items_are_taken_as_they_are_needed(local):
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield number

    work = local.work(pieces.double, items())
    assert next(work) == (0, 0)
    at_a_time = sum(node.room(1, 0) for node in local.nodes)
    assert len(taken) <= 6 * at_a_time + 1
    work.close()
    # The cluster is as good as new.
    assert next(local.work(pieces.double, [21])) == (21, 42)


@pytest.mark.slow
def test_mistakes_of_the_user_arrive_as_they_are(local):
    with pytest.raises(InputError, match=r"^corpus.txt:3: not a number; write one$"):
        list(local.work(pieces.refuse, range(10)))


@pytest.mark.slow
def test_other_errors_arrive_shortened_with_the_node(local):
    with pytest.raises(ChildProcessError) as raised:
        list(local.work(pieces.fail, range(10)))
    said = str(raised.value)
    assert local.nodes[0].name in said
    assert "ZeroDivisionError" in said
    assert "pieces.py" in said
    assert len(said.splitlines()) <= 10


@pytest.mark.slow
def test_a_piece_whose_worker_is_killed_is_done_again(local, tmp_path, capsys):
    assert list(local.work(pieces.die_once, range(6), shared=str(tmp_path))) == [(n, n) for n in range(6)]
    assert (tmp_path / "died").exists()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("done again") == 1


@pytest.mark.slow
def test_a_piece_that_kills_every_worker_ends_in_an_error(local, capsys):
    with pytest.raises(ChildProcessError) as raised:
        list(local.work(pieces.die, range(3)))
    assert local.nodes[0].name in str(raised.value)
    assert "the last thing that it said" in str(raised.value)
    assert capsys.readouterr().err.count("done again") == clusters.ATTEMPTS - 1


@pytest.mark.slow
def test_more_than_any_node_has_is_refused(local):
    with pytest.raises(InputError, match="1000 cores"):
        list(local.work(pieces.double, range(3), cpus=1000))
    with pytest.raises(InputError, match="GPUs"):
        list(local.work(pieces.double, range(3), gpus=1000))


@pytest.mark.slow
def test_a_local_cluster_is_for_this_machine_and_this_user_only(local):
    assert [node.address for node in local.nodes] == ["127.0.0.1"]
    _, (_, log) = next(local.work(pieces.where, [0]))
    logs = Path(log).parent
    # Ray lets everybody into its own folder; it lies in one that only we may enter.
    assert any(folder.stat().st_mode & 0o077 == 0 for folder in logs.parents)
    session = str(logs.parent.name)
    places = listening(session)
    assert places
    assert [place for place in places if not re.match(r"(127\.|\[::1\]|\[::ffff:127\.)", place)] == []
    secret = clusters._token()
    assert not [path for path in logs.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


def listening(session: str) -> list[str]:
    """Addresses that the processes of a session of Ray, and this one, listen at."""
    mine = {os.getpid()}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode(errors="replace")
            if session in words or session in str((folder / "fd" / "2").readlink()):
                mine.add(int(folder.name))
        except OSError:
            continue
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line.split()[3] for line in lines if any(f"pid={pid}," in line for pid in mine)]


@pytest.mark.parametrize(
    "address", ["", "ray://", "ray://host", "ray://host:x", "ray://host:0", "10.0.0.1:6379"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="local"), clusters.connected(address):
        pass


def test_an_address_where_nobody_answers_is_refused_at_once():
    with pytest.raises(InputError, match="ray status"), clusters.connected("ray://127.0.0.1:1"):
        pass
    with (
        pytest.raises(InputError, match="ray status"),
        clusters.connected("ray://no.such.host.invalid:10001"),
    ):
        pass


DIED_AT_ONCE = "RuntimeError: Starting Ray client server failed. See its log"
DIED_LATER = "RuntimeError: Proxy failed to Connect to backend! Check its log"


class DyingServers:
    """Ray whose head node starts a server for a client that dies, a few times."""

    def __init__(self, deaths, complaint=DIED_AT_ONCE):
        self.deaths, self.complaint = deaths, complaint
        self.asked = self.ended = 0

    def init(self, **options):
        self.asked += 1
        if self.asked <= self.deaths:
            raise ConnectionAbortedError(f"Initialization failure from server:\n{self.complaint}")

    def shutdown(self):
        self.ended += 1


@pytest.mark.parametrize("complaint", [DIED_AT_ONCE, DIED_LATER])
def test_a_head_node_whose_server_for_us_died_is_asked_again(complaint, capsys):
    ray = DyingServers(deaths=2, complaint=complaint)
    clusters._init(ray, "ray://10.0.0.1:10001", {})
    assert (ray.asked, ray.ended) == (3, 2)
    assert capsys.readouterr().err.count("trying again") == 2


@pytest.mark.parametrize(
    ("ray", "asked"),
    [(DyingServers(deaths=9), clusters.ATTEMPTS), (DyingServers(deaths=9, complaint="another Python"), 1)],
)
def test_it_is_not_asked_for_ever_nor_when_it_refuses(ray, asked):
    with pytest.raises(InputError, match="10001"):
        clusters._init(ray, "ray://10.0.0.1:10001", {})
    assert ray.asked == asked


def test_ray_is_not_imported_without_the_option():
    code = (
        "import sys; from electra import cluster; import electra.run.prepare; "
        "assert 'ray' not in sys.modules, 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_versions_change_with_the_code(monkeypatch, tmp_path):
    before = clusters.versions(["numpy"])
    assert before.keys() == {"Python", "electra", "ray", "numpy"}
    assert before == clusters.versions(["numpy"])
    (tmp_path / "cluster.py").write_text("another")
    monkeypatch.setattr(clusters, "__file__", str(tmp_path / "cluster.py"))
    assert clusters.versions()["electra"] != before["electra"]
    assert clusters.versions(["no-such-package"])["no-such-package"] == "not installed"


def test_messages_are_shortened():
    text = "\n".join(["\x1b[31mfirst\x1b[0m", *("x" * 1000 for _ in range(50)), "last", ""])
    lines = clusters.shortened(text).splitlines()
    assert lines[-1] == "last"
    assert len(lines) == 8
    assert max(map(len, lines)) < 310
