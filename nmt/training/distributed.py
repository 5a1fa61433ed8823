"""The processes of a training: rank, number and device from torchrun's environment, and their collectives."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # documented, but not exported

LOOPBACK = "127.0.0.1"
TIMEOUT = timedelta(minutes=10)
"""A rank that waits longer than this for another rank fails."""


@dataclass(frozen=True)
class World:
    """One process of a training, and the collectives over all of them."""

    rank: int
    size: int
    device: torch.device
    control: distributed.ProcessGroup | None = None
    """A gloo group for values on the host, which need not wait for GPUs; None on CPUs."""

    @property
    def main(self) -> bool:
        """Whether this process writes the files and reports progress."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks in place and return the tensor."""
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def start_sum(self, values: torch.Tensor) -> distributed.Work:
        """Start a sum over all ranks in place; call `wait` on the returned work before using the tensor."""
        return cast("distributed.Work", distributed.all_reduce(values, async_op=True))

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank, without waiting for GPUs."""
        return self.minimum(not flag) == 0

    def minimum(self, value: int) -> int:
        """Return the minimum over all ranks."""
        if self.size == 1:
            return value
        values = torch.tensor(value)
        distributed.all_reduce(values, distributed.ReduceOp.MIN, group=self.control)
        return int(values)

    def same(self, value: int) -> bool:
        """Return whether all ranks have the same value."""
        return self.minimum(value) == -self.minimum(-value)

    def barrier(self) -> None:
        """Wait until every rank calls this."""
        if self.size > 1:
            distributed.barrier()


@contextmanager
def join_world(store: str | None = None) -> Iterator[World]:
    """Join the processes of torchrun's RANK, WORLD_SIZE and LOCAL_RANK; without these, a world of one process.

    The backend is NCCL on GPUs and gloo elsewhere. `store` is an init_method such as `file:///...`, used instead of
    torchrun's rendezvous.
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
        where: dict[str, Any] = {"init_method": store or "env://"}
        if store is None and os.environ.get("MASTER_ADDR") == LOOPBACK:
            where = {"store": loopback_store(rank, size)}
        distributed.init_process_group(backend, rank=rank, world_size=size, timeout=TIMEOUT, **where)
        if backend == "nccl":
            control = distributed.new_group(backend="gloo", timeout=TIMEOUT)
    try:
        yield World(rank, size, device, control)
    finally:
        if size > 1:
            distributed.destroy_process_group()


def loopback_store(rank: int, size: int) -> TCPStore:
    """Return a store for the ranks of one machine, on the loopback address at torchrun's $MASTER_PORT.

    By default a TCPStore listens on all of the machine's addresses.
    """
    port, listening = int(os.environ["MASTER_PORT"]), None
    if rank == 0:
        with socket.create_server((LOOPBACK, port)) as server:
            listening = server.detach()
    return TCPStore(LOOPBACK, port, size, rank == 0, TIMEOUT, master_listen_fd=listening)


def device_name(device: torch.device) -> str:
    """Return the GPU's model, or `cpu`."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peer_is_lost(error: BaseException) -> bool:
    """Return whether an error means that another process is gone or does not answer.

    gloo raises RuntimeError, so only the message says so.
    """
    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
