"""A run config that names a cluster -> the same run on its nodes, begun anew when some are lost."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from electra import config
from electra.cluster import Node, connected
from electra.errors import INTERRUPTED, InputError
from electra.pretraining.config import PretrainRunConfig
from electra.store.remote import is_url
from electra.train import on_cluster
from electra.train.checkpoint import CheckpointStore
from electra.train.distributed import World
from electra.train.session import CHECKPOINTS

_OK, _BAD_INPUT = 0, 2


def pretrain_on_nodes(settings: PretrainRunConfig) -> int:
    """Train to the end of the budget on the cluster that is named; the exit code of the command."""
    assert settings.cluster is not None
    if World.from_environment().size > 1:
        raise InputError("--cluster starts the processes itself: leave out torchrun, or --cluster")
    if is_url(settings.out):
        raise InputError(
            f"--out {settings.out}: with --cluster it must be a folder that all nodes share; only --data may "
            "be in an object store"
        )
    data, out = absolute(settings.data), absolute(settings.out)
    own = dataclasses.replace(
        settings,
        data=data,
        out=out,
        start=absolute(settings.start) if Path(settings.start).exists() else settings.start,
        cluster=None,
        cluster_workers=None,
        max_restarts=None,
    )
    with connected(settings.cluster) as cluster:

        def check(nodes: Sequence[Node]) -> None:
            # Data in an object store is compared by every node that fetches it.
            place = None if is_url(data) else Path(data)
            on_cluster.require_same_folders(cluster, nodes, data=place, out=Path(out))

        return on_cluster.run_command(
            cluster,
            ["pretrain"],
            yaml.safe_dump(config.to_dict(own), sort_keys=False),
            seats=partial(
                on_cluster.choose_seats,
                workers=settings.cluster_workers,
                batch_size=settings.train.batch_size,
                on_gpus=settings.train.device in ("auto", "cuda"),
            ),
            check=check,
            max_restarts=on_cluster.RESTARTS if settings.max_restarts is None else settings.max_restarts,
            ends=(_OK, _BAD_INPUT, INTERRUPTED),
        )


def trained_on_nodes(settings: PretrainRunConfig) -> dict[str, Any]:
    """The same for a program: what the last checkpoint says, or an error if it did not end well."""
    code = pretrain_on_nodes(settings)
    if code == INTERRUPTED:
        raise KeyboardInterrupt(f"{settings.out} can be resumed")
    if code == _BAD_INPUT:
        raise InputError(f"{settings.out}: the processes on the cluster refused it, see what they said")
    if code != _OK:
        raise ChildProcessError(f"the processes on the cluster ended with code {code}: see their messages")
    return CheckpointStore(Path(settings.out) / CHECKPOINTS, settings.checkpoint).latest_facts()


def absolute(path: str) -> str:
    """A path that means the same in any working directory."""
    return path if not path or is_url(path) else str(Path(path).absolute())
