import os
from pathlib import Path

import pytest

# Test processes share the cores: with more threads than cores, OpenMP's waiting takes most of the time. And
# sums come out in the same order on each machine. Set before torch is imported, and inherited by the commands
# that tests start.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and of the authors' dumps. A newcomer's checkout does not have it."""
    folder = Path(os.environ.get("ELECTRA_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "oracles").is_dir():
        pytest.skip("no shared folder with the authors' dumps and real corpora (ELECTRA_SHARED or ../shared)")
    return folder


@pytest.fixture(scope="session")
def assert_published():
    """Compares a vector with the published one: all-MiniLM-L6-v2 of "hello world", its first numbers."""
    digits = ("-0.034478", "0.03102", "0.00673", "0.02611", "-0.039362")
    # A vector of length 1 that fp32 has computed in six layers, theirs and ours: each within eight units of
    # its rounding (2**-24). Ours is within two of what double precision gives.
    rounding = 2 * 8 * 2**-24

    def compare(vector):
        for found, published in zip(vector, digits, strict=False):
            half_a_digit = 0.5 * 10.0 ** -len(published.partition(".")[2])
            assert float(found) == pytest.approx(float(published), abs=half_a_digit + rounding, rel=0)

    return compare
