"""Processes that train together -> one training: summed gradients and metrics, and common decisions.

`torchrun` starts the processes and gives each its rank through the environment. A process on its own is a
world of size 1, for which none of this costs anything.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

Parallel = Literal["ddp", "fsdp"]


@dataclass(frozen=True, kw_only=True)
class World:
    """The rank of this process, among how many."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of this machine, which decides whose GPU is whose."""

    @classmethod
    def from_environment(cls) -> "World":
        """The world that torchrun describes, or a world of size 1 without it."""
        rank, size, local_rank = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        )
        return cls(rank=rank, size=size, local_rank=local_rank)

    @property
    def writes(self) -> bool:
        """Whether this process writes files and prints messages: the one with rank 0."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect to the other processes."""
        if self.size == 1:
            yield
            return
        # gloo beside NCCL sends numbers of the host, for which no GPU has to stop.
        distributed.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo")
        try:
            yield
        finally:
            distributed.destroy_process_group()

    def wrap(
        self,
        module: nn.Module,
        way: Parallel,
        *,
        layers: Iterable[nn.Module],
        idle_weights: bool,
        methods: Iterable[str] = (),
    ) -> nn.Module:
        """Wrap a module so that its gradients are averaged over processes.

        With `idle_weights` some weights may have no gradient in a step. With fsdp each process holds a part
        of the weights, and `layers` are gathered one at a time. `methods` are called beside the module's
        forward and use its weights, too.
        """
        if self.size == 1:
            return module
        if way == "ddp":
            # Gradients are computed into the buffers they are sent from, without a copy. Those of the last
            # layer are sent while the others are still being computed.
            return DistributedDataParallel(
                module, find_unused_parameters=idle_weights, gradient_as_bucket_view=True
            )
        mesh = init_device_mesh(next(module.parameters()).device.type, (self.size,))
        for part in (*layers, module):
            fully_shard(part, mesh=mesh)
        for method in methods:
            register_fsdp_forward_method(module, method)
        return module

    def add(self, sums: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Add values up over all processes, in float64 and one message; all on the host or on one device."""
        if self.size == 1:
            return dict(sums)
        flat = torch.cat([value.detach().double().flatten() for value in sums.values()])
        distributed.all_reduce(flat)
        pieces = torch.split(flat, [value.numel() for value in sums.values()])
        return {
            name: piece.view(value.shape).to(value.dtype)
            for (name, value), piece in zip(sums.items(), pieces, strict=True)
        }

    def largest(self, value: float) -> float:
        """The largest value of any process, known to all of them afterwards."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX)
        return float(shared)

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Accumulate gradients locally; the next backward pass outside this context sends their sum."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    elif isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)
    else:
        yield


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that processes hold parts of; all of them must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds, split as `like` is."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)


def local_part(tensor: Tensor, like: Tensor) -> Tensor:
    """The same of a tensor that every process has whole: nothing is sent."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
