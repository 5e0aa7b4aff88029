import os
from pathlib import Path

import hypothesis
import pytest

# Test processes share the cores: with more threads than cores, OpenMP's waiting takes most of the time. And
# sums come out in the same order on each machine. Set before torch is imported, and inherited by the commands
# that tests start.
os.environ["OMP_NUM_THREADS"] = "1"

# An example may take as long as a busy machine needs: a time is for benchmarks, not for tests.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# Fixtures of models in folders, which predict, formats and serve share (tests/support/model_folders.py).
pytest_plugins = ["model_folders"]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and of the authors' dumps. A newcomer's checkout does not have it."""
    folder = Path(os.environ.get("ELECTRA_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "oracles").is_dir():
        pytest.skip("no shared folder with the authors' dumps and real corpora (ELECTRA_SHARED or ../shared)")
    return folder
