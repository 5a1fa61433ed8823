"""The processes of a training: rank, number and device from torchrun's environment, and their collectives."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
from torch import distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined] # documented, but not exported

LOOPBACK = "127.0.0.1"
Value = TypeVar("Value")
TIMEOUT = timedelta(minutes=10)  # a rank that waits longer than this for another rank fails


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
        """Whether this process writes the files and prints."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum over all ranks in place, in no fixed order, and return the tensor.

        It is exact where, for each element, at most one rank has a value other than 0.
        """
        if self.size > 1:
            distributed.all_reduce(values)
        return values

    def tree_sum(self, values: torch.Tensor) -> None:
        """Sum a flat tensor over all ranks in place, along the binary tree over the ranks' numbers.

        The number of ranks must be a power of two and divide the tensor's length. Recursive halving: with a partner at
        distance 1, 2, 4, ... each rank adds the halves of what it summed before, so rank 0 is added to 1, 2 to 3, then
        these sums to each other. Recursive doubling returns the sums. A rank sends as many bytes as in a ring
        all-reduce, in 2 log2(size) messages.
        """
        exchanged = []
        received, kept, distance = torch.empty_like(values[: len(values) // 2]), values, 1
        while distance < self.size:
            halves = kept.chunk(2)
            upper = bool(self.rank & distance)
            kept, sent = halves[upper], halves[not upper]
            self._swap(sent, received[: len(kept)], self.rank ^ distance)
            kept += received[: len(kept)]
            exchanged.append((kept, sent, self.rank ^ distance))
            distance *= 2
        for mine, theirs, partner in reversed(exchanged):
            self._swap(mine, theirs, partner)

    @staticmethod
    def _swap(sent: torch.Tensor, received: torch.Tensor, partner: int) -> None:
        """Send a tensor to a partner and receive one from it; on GPUs only the current stream waits."""
        pairs = ((distributed.isend, sent), (distributed.irecv, received))
        for work in distributed.batch_isend_irecv([distributed.P2POp(call, tensor, partner) for call, tensor in pairs]):
            work.wait()

    def gather(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in their order, without waiting for GPUs, once all ranks have called it."""
        values = [value] * self.size
        if self.size > 1:
            distributed.all_gather_object(values, value, group=self.control)
        return values


def most_processes(available: int, shards: int) -> int:
    """Return the largest number of processes, of those available, among which the shards can be divided evenly."""
    return 1 << (min(available, shards).bit_length() - 1)


@contextmanager
def join_world(shards: int, store: str | None = None) -> Iterator[World]:
    """Join the processes of torchrun's RANK, WORLD_SIZE and LOCAL_RANK; without these, a world of one process.

    Where the processes are not a power of two, or more than `shards`, the last ones join nothing and are spare. The
    backend is NCCL on GPUs and gloo elsewhere. `store` is an init_method such as `file:///...`, used instead of
    torchrun's rendezvous. After an error nothing is destroyed: with NCCL that would wait for the other processes.
    """
    rank = int(os.environ.get("RANK", "0"))
    size = most_processes(int(os.environ.get("WORLD_SIZE", "1")), shards)
    device = torch.device("cpu")
    if rank >= size:
        yield World(rank, size, device)
        return
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
            control = cast("distributed.ProcessGroup", distributed.new_group(backend="gloo", timeout=TIMEOUT))
    yield World(rank, size, device, control)
    if size > 1:
        distributed.destroy_process_group()


def loopback_store(rank: int, size: int) -> TCPStore:
    """Return a store on loopback at torchrun's $MASTER_PORT; by default a TCPStore listens on all addresses."""
    port, listening = int(os.environ["MASTER_PORT"]), None
    if rank == 0:
        with socket.create_server((LOOPBACK, port)) as server:
            listening = server.detach()
    return TCPStore(LOOPBACK, port, size, rank == 0, TIMEOUT, master_listen_fd=listening)


def peer_is_lost(error: BaseException) -> bool:
    """Return whether an error means that another process is gone or does not answer; gloo's message alone says so."""
    return isinstance(error, distributed.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))
