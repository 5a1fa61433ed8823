"""Batches: every pair once an epoch on any number of ranks, about the asked size, padding below the promise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nmt.batches import Corpus, EpochPlan, ahead, micro_batch, pack, train_files, updates, updates_an_epoch
from nmt.config import BOS, EOS, PAD, InputError

Pair = tuple[list[int], list[int]]


def write(path: Path, pairs: list[Pair], block: int = 5) -> Path:
    table = pa.table(
        {
            "src": pa.array([s for s, _ in pairs], pa.list_(pa.uint16())),
            "tgt": pa.array([t for _, t in pairs], pa.list_(pa.uint16())),
            "line": pa.array(range(len(pairs)), pa.int64()),
        }
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as out:
        out.write_table(table, max_chunksize=block)
    return path


def binned(folder: Path, pairs: list[Pair]) -> Corpus:
    """Bins of target lengths up to 4, 8 and 99."""
    lower = 0
    for upper in (4, 8, 99):
        inside = [pair for pair in pairs if lower < len(pair[1]) <= upper]
        if inside:
            write(folder / f"train.{upper:05d}.arrow", inside)
        lower = upper
    return Corpus(train_files(folder))


def numbered(lengths: list[tuple[int, int]]) -> list[Pair]:
    """Pairs that can be told apart: the first id of each source is its number."""
    return [([10 + i, *[5] * (s - 2), EOS][: max(2, s)], [*[6] * (t - 1), EOS]) for i, (s, t) in enumerate(lengths)]


lengths = st.lists(st.tuples(st.integers(2, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(lengths, st.integers(1, 5), st.integers(1, 60), st.integers(1, 80), st.integers(0, 3))
def test_an_epoch_holds_every_pair_once_on_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[int, int]],
    ranks: int,
    tokens: int,
    micro: int,
    seed: int,
) -> None:
    corpus = binned(tmp_path_factory.mktemp("binned"), numbered(sizes))
    count = updates_an_epoch(corpus, tokens)
    for epoch in range(2):
        first, last = epoch * count + 1, (epoch + 1) * count
        seen: Counter[int] = Counter()
        totals = []
        for rank in range(ranks):
            for update in updates(corpus, seed, tokens, lambda: micro, rank, ranks, first, last):
                totals.append((update.number, update.sums))
                for batch in update.batches:
                    seen.update(batch.src[:, 0].tolist())
        assert seen == Counter({10 + i: 1 for i in range(len(sizes))})
        # Every rank knows the whole update's size, which its loss is divided by.
        assert len(set(totals)) == count


@given(lengths, st.integers(1, 40))
def test_no_update_is_empty(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[tuple[int, int]], tokens: int
) -> None:
    corpus = binned(tmp_path_factory.mktemp("binned"), numbered(sizes))
    plan = EpochPlan(corpus, 1, 0, tokens)
    assert all(len(plan.pairs(index)) for index in range(updates_an_epoch(corpus, tokens)))


def test_the_same_update_whatever_ranks_and_start(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    corpus = binned(tmp_path, numbered([(int(a), int(a) + 1) for a in rng.integers(2, 30, 200)]))

    def content(rank: int, size: int, first: int) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for update in updates(corpus, 7, 100, lambda: 64, rank, size, first, 40):
            found[update.number] = {int(i) for batch in update.batches for i in batch.src[:, 0]}
        return found

    alone, late = content(0, 1, 1), content(0, 1, 25)
    shared = [content(rank, 3, 1) for rank in range(3)]
    for number in range(1, 41):
        assert alone[number] == set().union(*(part[number] for part in shared))
        if number >= 25:
            assert alone[number] == late[number]
    epoch = updates_an_epoch(corpus, 100)
    assert alone[1] != alone[1 + epoch]


def test_sizes_and_padding_on_lengths_like_news(tmp_path: Path) -> None:
    """25,000 tokens a side within a tenth, and less than 5% padding, at WMT-like lengths."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(3.0, 9.0, 100_000), 2, 98).astype(int)
    target = np.clip(source * rng.normal(1.05, 0.2, 100_000), 2, 98).astype(int)
    uppers = [8]
    while uppers[-1] < 99:
        uppers.append(max(uppers[-1] + 1, int(uppers[-1] * 1.1)))
    pairs: list[Pair] = [([5] * (s - 1) + [EOS], [6] * (t - 1) + [EOS]) for s, t in zip(source, target, strict=True)]
    lower = 0
    for upper in uppers:
        inside = [pair for pair in pairs if lower < len(pair[1]) <= upper]
        write(tmp_path / f"train.{upper:05d}.arrow", inside, 1000)
        lower = upper
    corpus = Corpus(train_files(tmp_path))
    count = updates_an_epoch(corpus, 25_000)
    real = padded = 0
    for update in updates(corpus, 1, 25_000, lambda: 4096, 0, 1, 1, count):
        assert update.sums.source + update.sums.target == pytest.approx(50_000, rel=0.1)
        real += update.sums.source + update.sums.target
        padded += update.padded
    assert 1 - real / padded < 0.05


def test_micro_batch_pads_and_shifts(tmp_path: Path) -> None:
    corpus = Corpus([write(tmp_path / "a.arrow", [([7, 8, EOS], [9, EOS]), ([7, EOS], [4, 5, 6, EOS])])])
    batch = micro_batch(corpus, [0, 1])
    assert batch.src.tolist() == [[7, 8, EOS], [7, EOS, PAD]]
    assert batch.tgt_in.tolist() == [[BOS, 9, PAD, PAD], [BOS, 4, 5, 6]]
    assert batch.positions.tolist() == [0, 1, 4, 5, 6, 7]
    assert batch.labels.tolist() == [9, EOS, 4, 5, 6, EOS]


def test_pack_respects_the_limit_and_lets_long_pairs_alone(tmp_path: Path) -> None:
    corpus = Corpus([write(tmp_path / "a.arrow", numbered([(3, 3), (4, 4), (50, 2), (4, 3)]))])
    packed = pack(corpus, np.arange(4), 8)
    assert sorted(int(i) for part in packed for i in part) == [0, 1, 2, 3]
    for part in packed:
        longest = max(corpus.src_lengths[part].max(), corpus.tgt_lengths[part].max())
        assert len(part) * longest <= 8 or len(part) == 1


def test_an_error_of_the_preparing_thread_reaches_the_loop() -> None:
    def broken():
        yield from ()
        raise InputError("the corpus went away")

    with pytest.raises(InputError, match="went away"):
        list(ahead(broken()))


def test_missing_damaged_and_empty_corpora(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no train"):
        train_files(tmp_path)
    (tmp_path / "bad.arrow").write_bytes(b"no arrow")
    with pytest.raises(InputError, match="no Arrow file"):
        Corpus([tmp_path / "bad.arrow"])
    with pytest.raises(InputError, match="no pair"):
        Corpus([write(tmp_path / "empty.arrow", [])])


def test_tensors_are_64_bit_ids(tmp_path: Path) -> None:
    corpus = Corpus([write(tmp_path / "a.arrow", numbered([(3, 3)]))])
    assert micro_batch(corpus, [0]).src.dtype == torch.int64
