"""The sum of an update's gradients: one tree, whatever process holds which shard. Real processes: tests/distributed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import product
from queue import Queue

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from nmt.training import gradients
from nmt.training.distributed import World
from nmt.training.gradients import FlatGradients, Gradients

CPU = torch.device("cpu")
Shards = list[list[Tensor] | None]
"""For each shard the gradient of each parameter; None for an empty shard."""


def tree(values: list[np.ndarray]) -> np.ndarray:
    """The sum of neighbours' sums, written as the tree is defined."""
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return tree(values[:middle]) + tree(values[middle:])


def linked_worlds(size: int) -> list[World]:
    """Ranks of this process, which send each other tensors through queues."""
    # Made here: two threads that ask a defaultdict for a new key at once may get two queues.
    sent: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in product(range(size), repeat=2)}

    class Linked(World):
        def _swap(self, own: Tensor, received: Tensor, partner: int) -> None:
            sent[self.rank, partner].put(own.clone())
            received.copy_(sent[partner, self.rank].get(timeout=20))

    return [Linked(rank, size, CPU) for rank in range(size)]


def summed(shards: Shards, sizes: list[int], processes: int) -> list[list[Tensor]]:
    """Each process' gradients of parameters with so many elements, after backward passes over its shards."""
    ranks = []
    for world in linked_worlds(processes):
        parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
        ranks.append((parameters, Gradients(parameters, world, len(shards) // processes)))
    for rank, (parameters, one) in enumerate(ranks):
        one.start()
        for shard in shards[rank * one.shards : (rank + 1) * one.shards]:
            if shard is None:
                one.add_empty_shard()
            else:
                one.start_shard()
                torch.autograd.backward(parameters, shard)
    return [one.finish() for _, one in ranks]


def summed_flat(shards: Shards, sizes: list[int], processes: int) -> list[list[Tensor]]:
    """The same, where each shard's pass writes its gradients to the same memory."""
    ranks = []
    for world in linked_worlds(processes):
        parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
        ranks.append(FlatGradients(parameters, world, len(shards) // processes))
    for rank, one in enumerate(ranks):
        one.start()
        for shard in shards[rank * one.shards : (rank + 1) * one.shards]:
            for view, values in zip(one.views, shard or [torch.zeros(size) for size in sizes], strict=True):
                view.copy_(values)
            one.add_shard()
        assert not one._waiting
    with ThreadPoolExecutor(processes) as threads:
        found = list(threads.map(FlatGradients.finish, ranks))
    for one, gradients_ in zip(ranks, found, strict=True):
        assert [parameter.grad for parameter in one.parameters] == gradients_
    return found


@given(
    st.integers(0, 4), st.lists(st.integers(1, 200), min_size=1, max_size=4), st.data(),
    st.integers(1, 2000), st.integers(0, 2**32 - 1),
)  # fmt: skip
@settings(max_examples=60)
def test_any_number_of_processes_has_the_sum_of_the_tree(
    levels: int, sizes: list[int], data: st.DataObject, bucket: int, seed: int
) -> None:
    """Numbers of all magnitudes, zeros of both signs, shards without a pair; to the bit, on 1 to 16 processes."""
    random, count = np.random.default_rng(seed), 2**levels
    empty = data.draw(st.sets(st.integers(0, count - 1)))
    numbers = [
        [(random.normal(size=size) * 10.0 ** random.integers(-38, 30, size)).astype(np.float32) for size in sizes]
        for _ in range(count)
    ]
    for shard in numbers:
        for values in shard:
            values[random.random(values.size) < 0.1] = -0.0
    shards: Shards = [None if n in empty else list(map(torch.from_numpy, numbers[n])) for n in range(count)]
    filled = [
        [np.zeros(size, np.float32) if n in empty else numbers[n][i] for i, size in enumerate(sizes)]
        for n in range(count)
    ]
    expected = [tree([shard[i] for shard in filled]).tobytes() for i in range(len(sizes))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradients, "BUCKET_BYTES", bucket)
        for processes in [2**level for level in range(levels + 1)]:
            for found in [*summed(shards, sizes, processes), *summed_flat(shards, sizes, processes)]:
                assert [gradient.numpy().tobytes() for gradient in found] == expected


def test_another_order_has_another_sum() -> None:
    """What the property above says nothing about if every order gave the same bits."""
    values = [np.float32(x) for x in (1e8, 1.0, -1e8, 1.0)]
    shards: Shards = [[torch.tensor([value])] for value in values]
    assert float(tree([np.array(value) for value in values])) == 0.0
    assert float(values[0] + values[1] + values[2] + values[3]) == 1.0
    assert [found[0].item() for found in summed(shards, [1], 2)] == [0.0, 0.0]


@pytest.mark.parametrize(("shards", "most"), [(1, 0), (2, 1), (4, 2), (16, 4)])
def test_at_most_log2_sums_wait(shards: int, most: int) -> None:
    (parameter,) = parameters = [nn.Parameter(torch.zeros(3))]
    one = Gradients(parameters, World(0, 1, CPU), shards)
    for _ in range(2):
        one.start()
        counts = []
        for _ in range(shards):
            one.start_shard()
            parameter.sum().backward()
            counts.append(len(one._waiting[parameter]))
        assert max(counts) == most
        assert counts[-1] == 0
        (found,) = one.finish()
        assert found.tolist() == [shards] * 3
        assert found is parameter.grad


def test_an_update_starts_without_what_the_last_one_left() -> None:
    """As after a backward pass that failed."""
    first, second = parameters = [nn.Parameter(torch.ones(1)) for _ in range(2)]
    one = Gradients(parameters, World(0, 1, CPU), 2)
    one.start()
    one.start_shard()
    (first * 5).backward()
    first.grad = torch.tensor([99.0])
    one.start()
    for _ in range(2):
        one.start_shard()
        (first * second).backward()
    assert [gradient.item() for gradient in one.finish()] == [2.0, 2.0]


def test_flat_gradients_start_without_what_the_last_update_left() -> None:
    one = FlatGradients([nn.Parameter(torch.ones(1))], World(0, 1, CPU), 2)
    for shards in (1, 2):  # The first update fails after its first shard.
        one.start()
        for _ in range(shards):
            one.views[0].fill_(2.0)
            one.add_shard()
    assert [gradient.item() for gradient in one.finish()] == [4.0]
    assert not one._waiting


def test_an_error_of_the_sum_reaches_the_training() -> None:
    class Lost(World):
        def tree_sum(self, values: Tensor) -> None:
            raise RuntimeError("gloo: connection closed by peer")

    (parameter,) = parameters = [nn.Parameter(torch.ones(1))]
    one = Gradients(parameters, Lost(0, 2, CPU), 1)
    one.start()
    one.start_shard()
    parameter.backward()
    with pytest.raises(RuntimeError, match="closed by peer"):
        one.finish()
