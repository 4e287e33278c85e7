"""The processes of a run: one, or as many as `torchrun` started, one a GPU. Plain PyTorch distributed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from flowshade.device import choose_device

PATIENCE = timedelta(days=2)
"""How long processes wait for each other: one may still be sampling the teacher."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """This process among those of the run."""

    device: torch.device
    rank: int = 0
    count: int = 1

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
            dist.barrier()

    def mean(self, values: Tensor) -> Tensor:
        """The mean over processes, the same in each."""
        if self.count > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.count
        return values

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
    try:
        yield Processes(device=chosen, rank=rank, count=count)
    finally:
        dist.destroy_process_group()
