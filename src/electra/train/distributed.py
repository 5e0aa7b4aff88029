"""Processes that train together -> one training: summed gradients and metrics, and common decisions.

`torchrun` starts the processes and gives each its rank through the environment. A process on its own is a
world of size 1, for which none of this costs anything.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeGuard, TypeVar, cast

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from electra.errors import InputError
from electra.tensors import Rows
from electra.train.signals import ending_if_stuck

# Imported by those who need it: FSDP takes a second, and every command reads this file.
if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

Parallel = Literal["ddp", "fsdp"]
Found = TypeVar("Found")

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for the others: longer than one of them makes an index or compiles for, and not
for ever."""
_PLACE = ("MASTER_ADDR", "MASTER_PORT")
_WAY_OUT = "start several processes with torchrun, or unset the variable for one"


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
        numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        found = {name: os.environ.get(name, default) for name, default in numbers.items()}
        for name, text in found.items():
            if not text.isdecimal():
                raise InputError(f"{name} is {text!r} in the environment, expected a number: {_WAY_OUT}")
        rank, size, local_rank = map(int, found.values())
        if rank >= max(1, size):
            raise InputError(f"RANK is {rank} with WORLD_SIZE {size}, expected less: {_WAY_OUT}")
        if size > 1 and (missing := [name for name in _PLACE if not os.environ.get(name)]):
            raise InputError(f"WORLD_SIZE is {size}, but {missing[0]} is not set: {_WAY_OUT}")
        return cls(rank=rank, size=max(1, size), local_rank=local_rank)

    @property
    def writes(self) -> bool:
        """Whether this process writes files and prints messages: the one with rank 0."""
        return self.rank == 0

    @contextmanager
    def joined(self, device: torch.device) -> Iterator[None]:
        """Connect to the other processes; the wait for one that does not answer has an end."""
        if self.size == 1:
            yield
            return
        try:
            # gloo beside NCCL sends numbers of the host, for which no GPU has to stop.
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            # No patience: nothing is lost yet, and torch asks a hundred times a second whether the others
            # have come, which takes 2 % of a core and does not look idle.
            with ending_if_stuck(patience=0.0):
                distributed.init_process_group(backend, timeout=TIMEOUT)
            with ending_if_stuck():
                try:
                    yield
                finally:
                    distributed.destroy_process_group()
        except RuntimeError as error:
            if not _is_lost_connection(error):
                raise
            raise ConnectionError(
                f"process {self.rank} of {self.size} has lost the others, one of which may have ended or "
                f"hangs: see its messages, then start all of them again to resume "
                f"({' '.join(str(error).split())[:200]})"
            ) from error

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
            # Unless weights may be idle, torch arranges the buffers anew after the first step. Three or more
            # processes then add up in another order, and a resumed run would differ in its first step.
            in_one_order = self.size > 2 and next(module.parameters()).device.type == "cpu"
            return DistributedDataParallel(
                module, find_unused_parameters=idle_weights or in_one_order, gradient_as_bucket_view=True
            )
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

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

    def first_says(self, find: Callable[[], Found]) -> Found:
        """What the first process finds, such as in a folder that it alone may see, told to all.

        If it raises an InputError, all do. For small things, as they are pickled.
        """
        if self.size == 1:
            return find()
        said: list[Found | InputError | None] = [None]
        if self.rank == 0:
            try:
                said = [find()]
            except InputError as error:
                said = [error]
        distributed.broadcast_object_list(said, src=0, device=torch.device("cpu"))
        if isinstance(said[0], InputError):
            raise said[0]
        return cast(Found, said[0])

    def send_from_first(self, tensor: Tensor) -> None:
        """Give a tensor of the host, contiguous and of the same kind everywhere, the first one's values."""
        if self.size > 1 and tensor.numel():
            # As bytes: gloo does not know every type of number.
            distributed.broadcast(tensor.view(-1).view(torch.uint8), src=0)

    def channel(self) -> "Channel":
        """A channel between all processes; all of them must ask for it."""
        assert self.size > 1, "nobody to talk to"
        # gloo on any device: what is said is about files.
        return Channel(self.rank, self.size, distributed.new_group(backend="gloo", timeout=TIMEOUT))


class Channel:
    """Messages between processes beside those of the training, such as from a thread that writes files."""

    def __init__(self, rank: int, size: int, group: distributed.ProcessGroup) -> None:
        self.rank, self.size, self._group = rank, size, group
        self.is_waiting = False
        """Whether this process is waiting for another one's message."""

    def exchange(self, message: Any) -> list[Any]:
        """Everybody's messages, in the order of the processes."""
        messages: list[Any] = [None] * self.size
        self.is_waiting = True
        try:
            distributed.all_gather_object(messages, message, group=self._group)
        except RuntimeError as error:
            raise ConnectionError(
                f"process {self.rank} of {self.size} has lost the others while a checkpoint was written or "
                f"read ({' '.join(str(error).split())[:200]})"
            ) from error
        finally:
            self.is_waiting = False
        return messages

    def first_says(self, message: Any) -> Any:
        """The message of the first process."""
        return self.exchange(message if self.rank == 0 else None)[0]


def _is_lost_connection(error: RuntimeError) -> bool:
    """Whether this is about another process: gloo has no type of its own for that."""
    return isinstance(error, distributed.DistError) or "gloo" in str(error)


def _is_sharded(module: nn.Module) -> "TypeGuard[FSDPModule]":
    # A process on its own has nothing in parts.
    if not distributed.is_initialized():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _is_part(tensor: Tensor) -> "TypeGuard[DTensor]":
    if not distributed.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


@contextmanager
def local_gradients(module: nn.Module) -> Iterator[None]:
    """Accumulate gradients locally; the next backward pass outside this context sends their sum."""
    if isinstance(module, DistributedDataParallel):
        with module.no_sync():
            yield
    elif _is_sharded(module):
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)
    else:
        yield


def whole_tensor(tensor: Tensor) -> Tensor:
    """Gather a tensor that processes hold parts of; all of them must call this."""
    return tensor.full_tensor() if _is_part(tensor) else tensor


def local_values(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor."""
    return tensor.to_local() if _is_part(tensor) else tensor


def rows_held(tensor: Tensor) -> Rows | None:
    """Which rows of a tensor this process holds; None if it holds all of it, as others do."""
    if not _is_part(tensor):
        return None
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    assert tuple(tensor.placements) == (Shard(0),), f"not in rows: {tensor.placements}"
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Rows(first=offset[0], count=shape[0], whole=tensor.shape[0])


def as_part(values: Tensor, like: Tensor) -> Tensor:
    """The rows that this process holds of a tensor that is spread as `like` is -> that tensor."""
    if not _is_part(like):
        return values
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        values, like.device_mesh, like.placements, shape=like.shape, stride=like.stride(), run_check=False
    )


def local_part(tensor: Tensor, like: Tensor) -> Tensor:
    """The part, split as `like` is, of a tensor that every process has whole: nothing is sent."""
    if not _is_part(like):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)
