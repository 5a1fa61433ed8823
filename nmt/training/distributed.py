"""torchrun's environment: which process this is, of how many, on which device."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # torch names it in its documentation alone

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer than this for the others gives up: one of them is gone."""


@dataclass(frozen=True)
class World:
    """One process among those that train together."""

    rank: int
    size: int
    device: torch.device
    control: distributed.ProcessGroup | None = None
    """For what hosts agree on without waiting for their GPUs; None where all is on the CPU."""

    @property
    def main(self) -> bool:
        """Whether this process writes files and tells progress."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks, in place."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def start_sum(self, values: torch.Tensor) -> distributed.Work:
        """Begin to sum over all ranks in place, in the background; `wait` on what comes back before using it."""
        work: distributed.Work = distributed.all_reduce(values, async_op=True)
        return work

    def any(self, flag: bool) -> bool:
        """Whether any rank says yes. GPUs go on computing."""
        if self.size == 1:
            return flag
        values = torch.tensor(float(flag))
        distributed.all_reduce(values, group=self.control)
        return bool(values)

    def minimum(self, value: int) -> int:
        """The least of all ranks' values."""
        if self.size == 1:
            return value
        values = torch.tensor(value)
        distributed.all_reduce(values, distributed.ReduceOp.MIN, group=self.control)
        return int(values)

    def same(self, value: int) -> bool:
        """Whether all ranks have the same value."""
        return self.minimum(value) == -self.minimum(-value)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def world(store: str | None = None) -> Iterator[World]:
    """The world of torchrun's RANK, WORLD_SIZE and LOCAL_RANK; alone without them. NCCL on GPUs, gloo elsewhere.

    `store` is an init_method such as `file:///...`, in place of torchrun's rendezvous.
    """
    rank = int(os.environ.get("RANK", "0"))
    size = int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    control = None
    if size > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        own = loopback_store(rank, size) if store is None and os.environ.get("MASTER_ADDR") == LOOPBACK else None
        distributed.init_process_group(
            backend, init_method=None if own else store or "env://", store=own, rank=rank, world_size=size,
            timeout=TIMEOUT,
        )  # fmt: skip
        if backend == "nccl":
            control = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    try:
        yield World(rank, size, device, control)
    finally:
        if size > 1:
            distributed.destroy_process_group()


def loopback_store(rank: int, size: int) -> TCPStore:
    """The store that the ranks of one machine meet over, at torchrun's $MASTER_PORT of loopback alone.

    Left to itself, a TCPStore listens on all of the machine's addresses.
    """
    port, listening = int(os.environ["MASTER_PORT"]), None
    if rank == 0:
        with socket.create_server((LOOPBACK, port)) as server:
            listening = server.detach()
    return TCPStore(LOOPBACK, port, size, rank == 0, TIMEOUT, master_listen_fd=listening)


def lost_the_others(error: BaseException) -> bool:
    """Whether an error only says that another process is gone or does not answer. gloo tells it in words alone."""
    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
