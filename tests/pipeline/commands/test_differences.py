"""Intervals of differences: cases worked by hand, and what pairing removes."""

from __future__ import annotations

import math
import random
import statistics

import pytest

from pipeline.commands.differences import ConfidenceInterval, paired, pooled, unpaired


def half(interval: ConfidenceInterval) -> float:
    assert interval.mean - interval.low == pytest.approx(interval.high - interval.mean)
    return interval.high - interval.mean


def test_an_interval_is_students() -> None:
    # By hand: the standard deviation is 1, t of 2 degrees of freedom 4.3027, and 4.3027 / sqrt(3) = 2.4841.
    interval = ConfidenceInterval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert (interval.low, interval.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert ConfidenceInterval.of([2.0]) == ConfidenceInterval(2.0, -math.inf, math.inf)
    assert ConfidenceInterval.of([2.0]).text(1) == "2.0 (one seed)"


def test_unpaired_is_welchs() -> None:
    # By hand: variances 1 and 1, so 4 degrees of freedom, t 2.7764 and an error of sqrt(2 / 3).
    assert half(unpaired([1.0, 2.0, 3.0], [5.0, 6.0, 7.0])) == pytest.approx(2.7764 * math.sqrt(2 / 3), abs=1e-4)
    # One side does not vary: 2 degrees of freedom are left.
    assert half(unpaired([1.0, 2.0, 3.0], [5.0, 5.0, 5.0])) == pytest.approx(2.4841, abs=1e-4)
    assert unpaired([1.0], [2.0]) == ConfidenceInterval(-1.0, -math.inf, math.inf)
    assert unpaired([1.0, 1.0], [2.0, 2.0]) == ConfidenceInterval(-1.0, -1.0, -1.0)


def test_what_a_seed_does_to_all_rows_is_removed_by_pairing() -> None:
    base = [10.0, 20.0, 30.0]
    ours = [value + 1.0 + error for value, error in zip(base, (0.1, -0.1, 0.0), strict=True)]
    assert half(unpaired(ours, base)) > 20
    assert half(paired(ours, base)) == pytest.approx(2.4841 * 0.1, abs=1e-4)


def test_the_pooled_error_is_that_of_rows_by_seeds() -> None:
    # By hand: with two rows the remainders are half the differences' deviations, and the interval is the paired one.
    rows = {"base": [10.0, 20.0, 30.0], "a": [11.1, 20.9, 31.0]}
    assert half(pooled(rows, "a", "base")) == pytest.approx(half(paired(rows["a"], rows["base"])))
    # A third row that differs from base by a constant adds degrees of freedom and no error: 2 x 2 of them, t 2.7764.
    rows["b"] = [value + 5 for value in rows["base"]]
    seeds = [statistics.fmean(values[seed] for values in rows.values()) for seed in range(3)]
    rest = sum(
        (values[seed] - statistics.fmean(values) - seeds[seed] + statistics.fmean(seeds)) ** 2
        for values in rows.values()
        for seed in range(3)
    )
    assert half(pooled(rows, "a", "base")) == pytest.approx(2.7764 * math.sqrt(2 * rest / 4 / 3), abs=1e-4)
    assert pooled({"base": [1.0], "a": [2.0]}, "a", "base") == ConfidenceInterval(1.0, -math.inf, math.inf)


def test_intervals_cover_the_difference_as_often_as_they_say() -> None:
    """Of 400 made-up studies with effects of seeds and equal errors."""
    chance, covered = random.Random(3), {"unpaired": 0, "paired": 0, "pooled": 0}
    for _ in range(400):
        seeds = [chance.gauss(0, 3) for _ in range(3)]
        rows = {
            name: [mean + seed + chance.gauss(0, 1) for seed in seeds] for mean, name in enumerate(("base", *"abcd"))
        }
        found = {"unpaired": unpaired(rows["a"], rows["base"]), "paired": paired(rows["a"], rows["base"])}
        for name, interval in (found | {"pooled": pooled(rows, "a", "base")}).items():
            covered[name] += interval.low <= 1.0 <= interval.high
    assert covered["unpaired"] > 390
    assert 368 <= covered["paired"] <= 392
    assert 368 <= covered["pooled"] <= 392
