"""A soak of seconds; `make soak` is one of half an hour."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import soak


@pytest.mark.slow
def test_a_server_at_twice_its_capacity_answers_everybody(tmp_path):
    script = Path(__file__).with_name("soak.py")
    command = [sys.executable, script, "--seconds", "5", "--out", tmp_path / "soak"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert report["answers"]["good 200"]
    assert (tmp_path / "soak" / "soak.svg").is_file()


def test_what_went_wrong_is_seen():
    seen = soak.Seen()
    seen.answers = {("good", "200"): 5, ("bad", "422"): 1, ("good", "503"): 2, ("vanishing", "left"): 3}
    steady = {"megabytes": 400.0, "descriptors": 20, "threads": 8}
    seen.server = [steady] * 8
    assert seen.lost() == []
    seen.answers |= {("good", "500"): 1, ("slow", "no answer"): 2}
    seen.server = [steady] * 8 + [{**steady, "megabytes": 500.0, "descriptors": 90}] * 8
    assert seen.lost() == [
        "1 good clients: 500",
        "2 slow clients: no answer",
        "megabytes grew from 400 to 500",
        "descriptors: 20 at first, 90 when all clients were gone",
    ]
