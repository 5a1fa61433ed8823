"""Few shapes: every batch fits, little padding, on lengths like WMT14's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nmt.training.packed.shapes import SHAPES, SHORTEST_ROW, Shape, arrange, choose_shapes, smallest

Lengths = tuple[NDArray[np.int64], NDArray[np.int64]]
lengths = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=80)
shapes = st.builds(
    Shape, st.integers(2, 60), st.integers(2, 60), st.integers(1, 9), st.sampled_from((64, 128, 256))
)  # fmt: skip


@given(lengths, st.sampled_from((1, 2, 4, 16)))
def test_an_arrangement_holds_every_pair(sizes: list[tuple[int, int]], shards: int) -> None:
    src, tgt = np.array(sizes, dtype=np.uint16).T
    found = arrange(src, tgt, shards)
    needed = found.needed
    assert ((found.shard >= 0) & (found.shard < shards)).all()
    assert ((found.row >= 0) & (found.row < needed.rows)).all()
    longest = max(map(max, sizes))
    assert needed.row_length == max(SHORTEST_ROW, 1 << (longest - 1).bit_length())
    for side, most in ((src, needed.src), (tgt, needed.tgt)):
        of_shards = [int(side[found.shard == shard].sum()) for shard in range(shards)]
        # One position of padding in the largest shard, and a free one in its rows.
        assert max(of_shards) + 1 == most
        assert needed.rows * needed.row_length > max(of_shards)
        for shard in range(shards):
            for row in range(needed.rows):
                assert side[(found.shard == shard) & (found.row == row)].sum() <= needed.row_length


def test_shards_and_rows_are_even() -> None:
    """Dealt by length: shards differ by less than a pair, and rows of short pairs are mostly full."""
    src, tgt = (np.random.default_rng(seed).integers(18, 23, 800) for seed in (1, 2))
    found = arrange(src, tgt, 8)
    sums = np.bincount(found.shard, src + tgt)
    assert sums.max() - sums.min() < 40
    assert np.bincount(found.shard).tolist() == [100] * 8
    # Three pairs of at most 22 do not always fit into 64 positions, two do.
    assert found.needed.rows == 50
    assert arrange(src - 10, tgt - 10, 8).needed.rows <= 21


def test_pairs_of_other_lengths_are_arranged_without_looking_at_their_order() -> None:
    src, tgt = (np.random.default_rng(seed).integers(2, 60, 300) for seed in (1, 2))
    order = np.random.default_rng(3).permutation(300)
    first, second = arrange(src, tgt, 4), arrange(src[order], tgt[order], 4)
    assert first.needed == second.needed
    assert sorted(zip(first.shard, src, tgt, strict=True)) == sorted(
        zip(second.shard, src[order], tgt[order], strict=True)
    )


@given(st.lists(shapes, min_size=1, max_size=40), st.integers(1, 6))
def test_every_batch_fits_into_one_of_few_shapes(needed: list[Shape], count: int) -> None:
    chosen = choose_shapes(needed, count)
    assert 1 <= len(chosen) <= count
    for shape in needed:
        assert smallest(chosen, shape) in chosen
        assert smallest(chosen, shape).holds(shape)


@given(st.lists(shapes, min_size=1, max_size=8, unique=True), st.integers(1, 3))
def test_no_cut_of_the_sorted_shapes_costs_less(needed: list[Shape], count: int) -> None:
    ordered = sorted(needed, key=lambda shape: (shape.row_length, shape.src / (shape.src + shape.tgt)))

    def union(run: list[Shape]) -> Shape:
        return Shape(*(max(getattr(shape, name) for shape in run) for name in ("src", "tgt", "rows", "row_length")))

    def cost(cuts: tuple[int, ...]) -> float:
        bounds = [0, *cuts, len(ordered)]
        runs = [ordered[first:end] for first, end in pairwise(bounds)]
        return sum(len(run) * union(run).cost for run in runs)

    possible = [cuts for parts in range(count) for cuts in combinations(range(1, len(ordered)), parts)]
    least = min(map(cost, possible))
    chosen = choose_shapes(needed, count)
    # A shape has up to 15 positions more on each side, and one more row.
    more = len(needed) * (30 + 0.2 * 256)
    assert sum(smallest(chosen, shape).cost for shape in needed) <= least + more
    assert all(shape.src % 16 == shape.tgt % 16 == 0 for shape in chosen)


def test_a_shape_that_is_too_small_in_one_way_does_not_hold() -> None:
    shape = Shape(10, 20, 3, 64)
    assert shape.holds(shape)
    for name in ("src", "tgt", "rows", "row_length"):
        larger = replace(shape, **{name: getattr(shape, name) + 1})
        assert larger.holds(shape)
        assert not shape.holds(larger)
        assert smallest([shape], larger) == larger


def test_the_cost_counts_both_streams_and_some_of_the_rows() -> None:
    assert Shape(100, 50, 3, 64).cost == pytest.approx(150 + 0.2 * 3 * 64)


def newstest(random: np.random.Generator, count: int) -> Lengths:
    """Lengths in subwords, as newstest2013's and newstest2014's tokens are distributed."""
    src = np.clip(random.gamma(3.45, 6.27 * 1.22, count) + 1, 2, 256).astype(np.int64)
    return src, np.clip(src * 1.05 * np.exp(random.normal(0, 0.19, count)), 2, 256).astype(np.int64)


def even(random: np.random.Generator, count: int) -> Lengths:
    """Lengths of text whose sides go together closely."""
    src = np.clip(random.gamma(3.0, 9.0, count), 2, 98).astype(np.int64)
    return src, np.clip(src * random.normal(1.05, 0.12, count), 2, 98).astype(np.int64)


@pytest.mark.parametrize(("made", "shards"), [(newstest, 16), (newstest, 4), (even, 16)])
def test_twelve_shapes_pad_wmt14_by_at_most_six_percent(
    made: Callable[[np.random.Generator, int], Lengths], shards: int
) -> None:
    """Updates of 25,000 source and 25,000 target tokens, neighbours in the order by length bin and source."""
    src, tgt = made(np.random.default_rng(1), 1_000_000)
    bounds = [8]
    while bounds[-1] < tgt.max():
        bounds.append(int(max(bounds[-1] * 1.1, bounds[-1] + 1)))
    random, chosen = np.random.default_rng(2), list[Shape]()
    for epoch in range(2):
        order = np.lexsort((src * random.uniform(0.97, 1.03, len(src)), np.searchsorted(bounds, tgt)))
        sides = src[order], tgt[order]
        ends = np.searchsorted(np.cumsum(sum(sides)), np.arange(50_000, (src + tgt).sum(), 50_000))
        updates = list(zip(*(np.split(side, ends) for side in sides), strict=True))[:-1]
        needed = [arrange(*update, shards).needed for update in updates]
        chosen = chosen or choose_shapes(needed)
        assert len(chosen) <= SHAPES == 12
        used = [smallest(chosen, shape) for shape in needed]
        others = sum(shape not in chosen for shape in used) / len(used)
        real = sum(int(side.sum()) for update in updates for side in update)
        padding = 1 - real / sum(shards * (shape.src + shape.tgt) for shape in used)
        places = sum(shards * 2 * shape.rows * shape.row_length for shape in used) / real
        print(
            f"{made.__name__}, {shards} shards, epoch {epoch + 1}: {padding:.1%} padding, {places:.2f} places of rows"
        )
        print(f"  a subword, {others:.2%} of the updates have another shape")
        assert padding <= 0.06
        assert places <= 2.5
        # The second epoch is cut in other places than the one that the shapes were chosen for.
        assert others <= 0.003 * epoch
