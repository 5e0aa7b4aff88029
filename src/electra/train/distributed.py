"""The processes that train together -> one: sums over all, decisions that all take alike.

`torchrun` starts the processes and tells each its number through the environment. A process by itself is a
world of one, for which all of this costs nothing.
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
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Number among the processes of this machine: which GPU is whose."""

    @classmethod
    def from_environment(cls) -> "World":
        """As torchrun says; a world of one without it."""
        rank, size, local_rank = (
            int(os.environ.get(name, default))
            for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_RANK", 0))
        )
        return cls(rank=rank, size=size, local_rank=local_rank)

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and speaks to a person."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connected to the other processes."""
        if self.size == 1:
            yield
            return
        # Beside NCCL one for numbers of the host: no GPU has to stop for them.
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
        """The module with its gradients averaged over processes; `idle_weights`: some may have none.

        With fsdp each process holds a part of the weights; `layers` are put together one at a time. `methods`
        use the weights, too, and are called beside the module itself.
        """
        if self.size == 1:
            return module
        if way == "ddp":
            # Gradients lie where they are sent from, without a copy of them; sending begins with the last
            # layer's, while those of the others are computed.
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
        """Sums over all processes, in float64 and by one message; of the host's or of one device's values."""
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
        """The largest of the processes' values: what one has seen, all know."""
        if self.size == 1:
            return value
        shared = torch.tensor(value, dtype=torch.float64)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX)
        return float(shared)

    def barrier(self) -> None:
        """Wait for all."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Gradients are only added up here; the next pass outside of it sends their sum."""
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
    """A tensor that processes hold parts of, put together; all of them must ask for it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def part_like(tensor: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this process holds of another one."""
    if not isinstance(like, DTensor):
        return tensor
    return distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements)
