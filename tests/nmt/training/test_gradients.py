"""The sum of an update's gradients: one tree, whatever process holds which shard. Real processes: tests/distributed."""

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from queue import Queue

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nmt.training.distributed import World
from nmt.training.gradients import Gradients

CPU = torch.device("cpu")
Shards = list[list[np.ndarray]]  # for each shard the gradient of each parameter


def tree(values: list[np.ndarray]) -> np.ndarray:
    """The sum of neighbours' sums, written as the tree is defined."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return tree(values[:middle]) + tree(values[middle:])


def summed(shards: Shards, processes: int) -> list[list[Tensor]]:
    """Each process' gradients of all parameters: of ranks in this process, which send each other tensors by queues."""
    of_process = len(shards) // processes
    # Made here: two threads that ask a defaultdict for a new key at once may get two queues.
    sent: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in product(range(processes), repeat=2)}

    class Linked(World):
        def _swap(self, outgoing: Tensor, received: Tensor, partner: int) -> None:
            sent[self.rank, partner].put(outgoing.clone())
            received.copy_(sent[partner, self.rank].get(timeout=20))

    def of_rank(rank: int) -> list[Tensor]:
        gradients = Gradients([], Linked(rank, processes, CPU))
        for shard in shards[rank * of_process : (rank + 1) * of_process]:
            gradients.add([torch.tensor(values) for values in shard])
        return list(gradients.total())

    with ThreadPoolExecutor(processes) as threads:
        return list(threads.map(of_rank, range(processes)))


@given(st.integers(0, 4), st.lists(st.integers(1, 200), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_any_number_of_processes_has_the_sum_of_the_tree(levels: int, sizes: list[int], seed: int) -> None:
    """Numbers of all magnitudes, zeros of both signs; to the bit, on 1 to 16 processes."""
    random = np.random.default_rng(seed)

    def drawn(size: int) -> np.ndarray:
        values = (random.normal(size=size) * 10.0 ** random.integers(-38, 30, size)).astype(np.float32)
        values[random.random(size) < 0.1] = -0.0
        return values

    shards = [[drawn(size) for size in sizes] for _ in range(2**levels)]
    expected = [tree([shard[i] for shard in shards]).tobytes() for i in range(len(sizes))]
    for processes in [2**level for level in range(levels + 1)]:
        for totals in summed(shards, processes):
            assert [gradient.numpy().tobytes() for gradient in totals] == expected


@pytest.mark.parametrize(("shards", "most"), [(1, 1), (2, 1), (4, 2), (16, 4)])
def test_at_most_log2_sums_wait(shards: int, most: int) -> None:
    gradients, counts = Gradients([], World(0, 1, CPU)), [0]
    for _ in range(shards):
        counts.append(len(gradients._sums))
        gradients.add([torch.ones(3)])
    assert max(counts) <= most
    assert [found.tolist() for found in gradients.total()] == [[shards] * 3]
