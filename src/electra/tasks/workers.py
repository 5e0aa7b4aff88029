"""`--cluster` and `--cluster_gpus` of a command on tasks -> checked, and the cluster that does its pieces."""

import math
from contextlib import AbstractContextManager, nullcontext

from electra.cluster import Cluster, check_address, connected
from electra.errors import InputError


def check_workers(cluster: str | None, gpus: float) -> None:
    """Refuse an address that cannot be one, or GPUs without it."""
    if cluster is not None:
        check_address(cluster)
    if not (math.isfinite(gpus) and gpus >= 0):
        raise InputError(f"cluster_gpus is {gpus}, expected 0 or more")
    if gpus and cluster is None:
        raise InputError(f"cluster_gpus is {gpus:g}, but there is no cluster: give --cluster, too")


def clustered(cluster: str | None) -> AbstractContextManager[Cluster | None]:
    """The cluster that was asked for, if one was."""
    return nullcontext() if cluster is None else connected(cluster)
