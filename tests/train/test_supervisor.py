import signal
import sys

import pytest

from electra.train.signals import supervise

# Counts its starts in a file, and ends with the next of the given exit codes.
CRASHING = """
import sys
from pathlib import Path
path, codes = Path(sys.argv[1]), sys.argv[2].split(",")
starts = int(path.read_text()) if path.exists() else 0
path.write_text(str(starts + 1))
sys.exit(int(codes[starts]))
"""


@pytest.mark.parametrize(
    ("codes", "max_restarts", "code", "starts"),
    [
        ("0", 3, 0, 1),
        ("1,1,0", 3, 0, 3),
        ("2,0", 3, 2, 1),
        ("1,1,1,1", 2, 1, 3),
    ],
    ids=["no crash", "crashes", "an end", "too many"],
)
def test_it_starts_again_after_crashes_only(tmp_path, capfd, codes, max_restarts, code, starts):
    command = [sys.executable, "-c", CRASHING, str(tmp_path / "starts"), codes]
    assert supervise(command, max_restarts=max_restarts, ends=(0, 2), first_pause=0.01) == code
    assert int((tmp_path / "starts").read_text()) == starts
    assert capfd.readouterr().err.count("restart") == starts - 1


def test_it_gives_the_signals_back():
    before = signal.getsignal(signal.SIGTERM)
    supervise([sys.executable, "-c", ""], max_restarts=1, ends=(0,))
    assert signal.getsignal(signal.SIGTERM) is before
