import pytest
import torch

from electra.train.checkpoint import CheckpointConfig, CheckpointStore


def save_steps(store: CheckpointStore, *steps: int, size: int = 60) -> None:
    for step in steps:
        tensors = {
            "model": {"weight": torch.full((size,), float(step))},
            "optimizer": {"age": torch.tensor(step)},
        }
        store.save(step, tensors, {"step": step, "tokens": 10 * step})
    store.wait()


@pytest.fixture
def save():
    """Save small checkpoints whose content tells their step."""
    return save_steps


@pytest.fixture
def store(tmp_path):
    """A store with checkpoints of steps 1 and 2."""
    with CheckpointStore(tmp_path / "checkpoints", CheckpointConfig(keep_last=2)) as store:
        save_steps(store, 1, 2)
        yield store


@pytest.fixture
def problems():
    """Takes what a store complains about."""
    return []
