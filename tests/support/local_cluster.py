"""Commands with `--cluster local`, in a process of their own: Ray leaves things behind where it was."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 900
"""Seconds for a whole command: tests share the machine."""
TEST_SECONDS = 2 * PATIENCE
_TYPED = "import sys; from electra.cli import main; sys.exit(main())"


def require_started(complaint: str) -> None:
    """Skip where Ray's own processes did not come up in time, of which nothing can be learned about ours."""
    if "Ray did not start" in complaint:
        pytest.skip(f"Ray did not start on this machine: {complaint.strip().splitlines()[-1][:200]}")


def begin(*words: object, code: str = _TYPED) -> subprocess.Popen[str]:
    """`electra WORDS`, or another program, with a Ray that is more patient with its own processes."""
    pytest.importorskip("ray", reason="Ray is not installed (extra: cluster)")
    paths = filter(None, [os.environ.get("PYTHONPATH"), str(Path(__file__).parent)])
    return subprocess.Popen(
        [sys.executable, "-c", f"import patient_ray\n{code}", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    """What it says until it ends, with this exit code."""
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    require_started(err)
    assert process.returncode == code, err
    return subprocess.CompletedProcess(process.args, code, out, err)


def typed_on_cluster(*words: object) -> subprocess.CompletedProcess[str]:
    """`electra WORDS --cluster local`, as a person types it; it must succeed."""
    return finish(begin(*words, "--cluster", "local"))
