import os
import shutil
import signal
import tempfile
from pathlib import Path

import hypothesis
import pytest

# Test processes share the cores: with more threads than cores, OpenMP's waiting takes most of the time. Set
# before torch is imported, and inherited by the commands that tests start.
os.environ["OMP_NUM_THREADS"] = os.environ.get("ELECTRA_TEST_THREADS", "1")

# What is compared bit for bit must not depend on a measurement.
os.environ.setdefault("ELECTRA_AUTO_CORES", "1")

# Not in the home folder, which may not be writable.
os.environ.setdefault("HF_HOME", str(Path(tempfile.gettempdir()) / f"electra-tests-{os.getuid()}"))

# A job in the background is begun with SIGINT ignored, and so would be the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED = Path(os.environ.get("ELECTRA_SHARED") or Path(__file__).parents[2] / "shared")
NO_SHARED = "no shared folder with the authors' dumps and real corpora (ELECTRA_SHARED or ../shared)"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NO_BROWSER = f"no browser on the PATH ({', '.join(BROWSERS)})"
# Variables that make torch, oneDNN and MKL behave like those of another processor.
PROCESSOR = ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")


def has_shared() -> bool:
    return (SHARED / "oracles").is_dir()


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def pytest_report_header() -> list[str]:
    """What a reader of a failure must know of the machine; under xdist it is said once."""
    import torch

    from electra.train import devices
    from electra.train.distributed import World

    machine = devices.describe_machine()
    told = [f"{name}={os.environ[name]}" for name in PROCESSOR if name in os.environ]
    capability = ", ".join([torch.backends.cpu.get_cpu_capability(), *told])
    precision = devices.choose_precision("auto", torch.device("cpu"), World())
    return [
        f"processor: {machine['cpu']}, cores: {machine['cores']}, threads of a test: {machine['threads']}",
        f"torch {torch.__version__}, CPU capability: {capability}, precision auto: {precision}",
        f"shared folder: {SHARED if has_shared() else NO_SHARED}",
        f"browser: {find_browser() or NO_BROWSER}",
    ]


def pytest_collection_modifyitems(items) -> None:
    """A test that `make test` leaves out says why it has to be long, and gets the time for it."""
    for item in items:
        mark = item.get_closest_marker("long")
        if mark is None:
            continue
        if not mark.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: say pytest.mark.long(reason=...)")
        if item.get_closest_marker("timeout") is None:
            # At a load of 13, three of them took more than the ten minutes that are for all tests.
            item.add_marker(pytest.mark.timeout(1800))


# An example may take as long as a busy machine needs: a time is for benchmarks, not for tests.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# In tests/support: models in folders, which predict, formats and serve share; and what ends what tests start.
pytest_plugins = ["model_folders", "processes"]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora and of the authors' dumps. A newcomer's checkout does not have it."""
    if not has_shared():
        pytest.skip(NO_SHARED)
    return SHARED


@pytest.fixture(scope="session")
def browser_path() -> str:
    """A browser that Playwright can drive."""
    found = find_browser()
    if found is None:
        pytest.skip(NO_BROWSER)
    return found


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


@pytest.fixture
def two_threads(monkeypatch):
    """One more than tests have, so that there is something to spread, or to choose."""
    import torch

    monkeypatch.delenv("ELECTRA_AUTO_CORES")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
