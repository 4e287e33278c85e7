"""The processes of a run: one, or as many as `torchrun` started, one a GPU. Plain PyTorch distributed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flowshade.device import choose_device
from flowshade.errors import FlowshadeError

PATIENCE = timedelta(days=2)
"""How long processes wait for each other: one may still be sampling the teacher."""
BUCKET = 2**23
"""Numbers that travel together: few messages, and little memory for their copy (32 MiB)."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among those of the run."""

    device: torch.device
    rank: int = 0
    count: int = 1
    control: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)
    """Carries what processes agree on beside their tensors, on the CPU, so that no GPU is waited for."""

    @property
    def first(self) -> bool:
        """Whether this process writes and prints what is written and printed once."""
        return self.rank == 0

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """This process's part of a list."""
        return items[self.rank :: self.count]

    def wait(self) -> None:
        """Until all processes have come here."""
        if self.count > 1:
            dist.barrier(group=self.control)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes, the same in each."""
        if self.count > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.count
        return values

    def average(self, tensors: Iterable[Tensor]) -> None:
        """Puts the means over processes in the tensors' places; they have one type, and the same shapes everywhere."""
        if self.count == 1:
            return
        for bucket in buckets(list(tensors)):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.all_reduce(flat)
            flat /= self.count
            for tensor, part in zip(bucket, flat.split([tensor.numel() for tensor in bucket]), strict=True):
                tensor.copy_(part.view(tensor.shape))

    def spread(self, tensors: Iterable[Tensor]) -> None:
        """Puts the first process's values in the tensors' places."""
        for tensor in tensors if self.count > 1 else ():
            dist.broadcast(tensor, src=0)

    def of_first(self, *values: float) -> list[float]:
        """The first process's numbers, in every process: what it decides for all, such as when time is up."""
        numbers = torch.tensor(values, dtype=torch.float64)
        if self.count > 1:
            dist.broadcast(numbers, src=0, group=self.control)
        return numbers.tolist()

    def gather(self, value: T) -> list[T]:
        """What each process gives, by rank, in every process."""
        if self.count == 1:
            return [value]
        gathered: list[T | None] = [None] * self.count
        dist.all_gather_object(gathered, value, group=self.control)
        return gathered  # pyright: ignore[reportReturnType]

    def jointly(self, work: Callable[..., T], *given: object) -> T:
        """`work(*given)`, which may fail in one process and must not wait for others itself; then it fails in all.

        Raises:
            FlowshadeError: the work failed in another process.
            Exception: it failed in this one.
        """
        if self.count == 1:
            return work(*given)
        result, error = None, None
        try:
            result = work(*given)
        except Exception as caught:  # noqa: BLE001 - raised below, once the others know
            error = caught
        failed = torch.zeros(self.count)
        failed[self.rank] = error is not None
        dist.all_reduce(failed, group=self.control)
        if error is not None:
            raise error
        if failed.any():
            ranks = ", ".join(str(rank) for rank in failed.nonzero().flatten().tolist())
            raise FlowshadeError(f"process {ranks} of {self.count} failed, so this one stops too; see its message.")
        return result  # pyright: ignore[reportReturnType]

    def shard(self, network: nn.Module) -> None:
        """Spreads a network's weights, gradients and optimiser over the processes, in place (FSDP2).

        Its weights are whole during a call of the network and during its backward pass, and nowhere else: use them
        through the call alone. Gradients are averaged over processes. A network that is spread already stays as it is.
        """
        if self.count > 1:
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import FSDPModule, fully_shard

            if isinstance(network, FSDPModule):
                return
            mesh = init_device_mesh(self.device.type, (self.count,))
            fully_shard(network, mesh=mesh, reshard_after_forward=True)


@contextmanager
def joined(device: str | None) -> Iterator[Processes]:
    """Joins the processes that `torchrun` started, one a GPU (NCCL) or on the CPU (gloo); alone without it.

    Args:
        device: what was asked for; with several processes only its kind matters.
    """
    count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = choose_device(device)
    if count == 1:
        yield Processes(device=chosen)
        return
    if chosen.type == "cuda":
        chosen = choose_device(f"cuda:{int(os.environ['LOCAL_RANK'])}")
        torch.cuda.set_device(chosen)
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", timeout=PATIENCE)
    control = dist.new_group(backend="gloo", timeout=PATIENCE)
    assert isinstance(control, dist.ProcessGroup), "all processes are in it"
    yield Processes(device=chosen, rank=rank, count=count, control=control)
    # Not after a failure: it might wait for what others will never send. The process ends, and torchrun the others.
    dist.destroy_process_group()


def buckets(tensors: Sequence[Tensor], size: int = BUCKET) -> Iterator[list[Tensor]]:
    """Runs of tensors that together hold at most `size` numbers, or are one tensor of more."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(one.numel() for one in bucket) + tensor.numel() > size:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
