import subprocess
import sys

PROGRAM = """
import os, signal, time
from electra.processes import Workers

def add(left, right):
    return left + right

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    with Workers(2) as pool:
        sums = pool.map(add, range(4), range(4))
        for _ in range(25):
            os.killpg(0, signal.SIGINT)
            time.sleep(0.02)
        print(*sums)
"""


def test_ctrl_c_at_any_moment_of_their_start_leaves_workers_alone(tmp_path):
    # From a file: spawned workers import the program again.
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        start_new_session=True,
    )
    assert done.stdout.split() == ["0", "2", "4", "6"]
    assert done.stderr == ""
    assert done.returncode == 0
