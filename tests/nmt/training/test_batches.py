"""Batches: every pair once an epoch on any number of ranks, about the asked size, padding below the promise."""

import math
import threading
from collections.abc import Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from refusals import check_refusal
from trainings import write_arrow

from nmt.errors import InputError
from nmt.flops import LengthSums
from nmt.ids import EOS
from nmt.training.batches import AHEAD, Corpus, Update, ahead, cut, plan_epoch, train_files, updates, updates_an_epoch

Pair = tuple[list[int], list[int]]
Lengths = list[tuple[int, int]]


def binned(folder: Path, pairs: list[Pair], uppers: Sequence[int] = (4, 8, 99), block: int = 5) -> Corpus:
    """A corpus with a bin of each range of target lengths up to the next of `uppers`."""
    for lower, upper in pairwise((0, *uppers)):
        inside = [pair for pair in pairs if lower < len(pair[1]) <= upper]
        if inside:
            write_arrow(folder / f"train.{upper:05d}.arrow", inside, block)
    return Corpus(train_files(folder))


def numbered(lengths: Lengths) -> list[Pair]:
    """Pairs that can be told apart: the first id of each source is its number."""
    return [([10 + i, *[5] * (s - 2), EOS][: max(2, s)], [*[6] * (t - 1), EOS]) for i, (s, t) in enumerate(lengths)]


lengths = st.lists(st.tuples(st.integers(2, 30), st.integers(1, 30)), min_size=1, max_size=60)


@given(lengths, st.integers(0, 3), st.integers(0, 2), st.integers(1, 60), st.integers(0, 3))
@settings(max_examples=12)
def test_an_epoch_holds_every_pair_once_on_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory, sizes: Lengths, levels: int, fewer: int, tokens: int, seed: int
) -> None:
    corpus = binned(tmp_path_factory.mktemp("binned"), numbered(sizes))
    count, shards = updates_an_epoch(corpus, tokens), 2**levels
    for epoch in range(2):
        numbers, shards_by_update = range(epoch * count + 1, (epoch + 1) * count + 1), {}
        for ranks in {shards, max(1, shards >> fewer)}:
            of_ranks = [[*updates(corpus, seed, tokens, shards, rank, ranks, numbers)] for rank in range(ranks)]
            # Every rank knows the whole update's size, which its loss is divided by.
            sizes_known = {(part.number, part.sums, part.padded) for of_rank in of_ranks for part in of_rank}
            assert len(sizes_known) == count
            for parts in zip(*of_ranks, strict=True):
                assert [part.first for part in parts] == list(range(0, shards, shards // ranks))
                batches = [batch for part in parts for batch in part.shards]
                assert len(batches) == shards
                assert any(batches)
                sides = [side for batch in batches if batch for side in (batch.src, batch.tgt_in)]
                assert parts[0].padded == sum(mask.numel() for side in sides for mask in side.masks)
                # The same shards, whatever rank has them.
                content = [None if batch is None else batch.src.ids.tolist() for batch in batches]
                assert shards_by_update.setdefault(parts[0].number, content) == content
        ids = [id_ for content in shards_by_update.values() for shard in filter(None, content) for id_ in shard]
        assert sorted(id_ for id_ in ids if id_ >= 10) == list(range(10, 10 + len(sizes)))


def test_an_update_depends_on_epoch_and_seed_and_not_on_where_training_starts(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    corpus = binned(tmp_path, numbered([(int(a), int(a) + 1) for a in rng.integers(2, 30, 200)]))

    def content(first: int, seed: int = 7) -> dict[int, list[Any]]:
        made = updates(corpus, seed, 100, 4, 0, 1, range(first, 41))
        return {update.number: [batch and batch.src.ids.tolist() for batch in update.shards] for update in made}

    alone = content(1)
    assert content(25) == {number: alone[number] for number in range(25, 41)}
    assert alone[1] not in (alone[1 + updates_an_epoch(corpus, 100)], content(1, seed=8)[1])


def binned_as_configured(folder: Path, lengths_: Sequence[NDArray[np.int64]], longest: int) -> Corpus:
    """Pairs of these source and target lengths, EOS included, in the bins that the stage binarize makes."""
    uppers = [8]
    while uppers[-1] < longest:
        uppers.append(min(longest, max(uppers[-1] + 1, int(uppers[-1] * 1.1))))
    pairs: list[Pair] = [([5] * (s - 1) + [EOS], [6] * (t - 1) + [EOS]) for s, t in zip(*lengths_, strict=True)]
    return binned(folder, pairs, uppers, 1000)


def padding_of_an_epoch(corpus: Corpus, tokens: int, parts: int) -> tuple[float, list[float], list[int]]:
    """The share of padding; of each update, how many times the mean part the largest is; and its subwords."""
    real, padded, shares = [], 0, []
    for chosen in plan_epoch(corpus, 1, 0, tokens):
        sums, (positions, divided) = corpus.sums(chosen), cut(corpus, chosen, parts)
        real.append(sums.source + sums.target)
        padded += positions
        sizes = [corpus.src_lengths[part].sum() + corpus.tgt_lengths[part].sum() for part in divided]
        shares.append(parts * max(sizes) / sum(sizes))
    return 1 - sum(real) / padded, shares, real


def test_sizes_and_padding_on_lengths_like_news(tmp_path: Path) -> None:
    """At WMT-like lengths: 25,000 tokens a side within a tenth; attention pads 16 shards by a third, nearly equally."""
    rng = np.random.default_rng(0)
    source = np.clip(rng.gamma(3.0, 9.0, 30_000), 2, 98).astype(int)
    target = np.clip(source * rng.normal(1.05, 0.2, 30_000), 2, 98).astype(int)
    padding, shares, real = padding_of_an_epoch(binned_as_configured(tmp_path, (source, target), 99), 25_000, 16)
    assert real == [pytest.approx(50_000, rel=0.1)] * len(real)
    assert padding < 0.26
    # The largest of 16 shards decides how long 16 processes take.
    assert np.mean(shares) < 1.03
    assert max(shares) < 1.05


def test_padding_on_lengths_of_sentences_and_trees(tmp_path: Path) -> None:
    """20,000 sentences and 2.8 symbols a word, with the sizes of parse-wsj and the blocks of parse-small."""
    rng = np.random.default_rng(0)
    words = np.clip(rng.gamma(4.0, 6.0, 20_000), 2, 150)
    source = np.clip(words * rng.normal(1.3, 0.25, 20_000), 2, 511).astype(int)
    target = np.clip(words * rng.normal(2.8, 0.5, 20_000), 4, 511).astype(int)
    corpus = binned_as_configured(tmp_path, (source, target), 512)
    for tokens, shards, most in ((25_000, 16, 0.22), (3_000, 8, 0.2)):
        padding, _, real = padding_of_an_epoch(corpus, tokens, shards)
        assert sum(real) == source.sum() + target.sum()
        assert np.mean(real) == pytest.approx(2 * tokens, rel=0.01)
        assert padding < most


def test_a_cut_is_in_the_order_with_less_padding(tmp_path: Path) -> None:
    """Sources differ little, targets much: sorted by target, halves have 4 * (51 + 3) and 4 * (51 + 20) positions."""
    lengths_ = [(50, 3), (50, 20), (50, 3), (50, 20), (51, 3), (51, 20), (51, 3), (51, 20)]
    corpus = binned(tmp_path, numbered([(2, 1), *lengths_]), (1, 99))
    assert cut(corpus, np.arange(1, 9), 2)[0] == 4 * (51 + 3) + 4 * (51 + 20)


@pytest.mark.parametrize("pairs", range(1, 9))
def test_fewer_pairs_than_parts_leave_empty_parts(tmp_path: Path, pairs: int) -> None:
    corpus = Corpus([write_arrow(tmp_path / "a.arrow", numbered([(5, 5)] * pairs))])
    padded, parts = cut(corpus, np.arange(pairs), 8)
    assert sorted(map(len, parts)) == [0] * (8 - pairs) + [1] * pairs
    assert padded == 10 * pairs


def test_every_update_has_pairs_of_all_lengths(tmp_path: Path) -> None:
    """Its mean length is the corpus' but for chance, and its shards are of one length each."""
    corpus = binned(tmp_path, numbered([(2 + i % 29, 2 + i % 29) for i in range(2900)]))
    plan = plan_epoch(corpus, 1, 0, 1000)
    means = [corpus.src_lengths[pairs].mean() for pairs in plan]
    assert np.mean(means) == pytest.approx(16, abs=0.5)
    assert np.std(means) < 8.4 / math.sqrt(50)  # of a pair 8.4, and an update has some 60
    (update,) = updates(corpus, 1, 1000, 4, 0, 1, range(1, 2))
    longest = [max(mask.shape[-1] for mask in batch.src.masks) for batch in update.shards if batch]
    assert longest == sorted(longest)
    assert longest[0] < 16 < longest[-1]


def test_pairs_and_lines_are_found_over_blocks_and_files(tmp_path: Path) -> None:
    sizes = [(2 + i % 5, 1 + i % 9) for i in range(40)]
    corpus = binned(tmp_path, numbered(sizes))
    assert corpus.src_lengths.dtype == np.uint16
    order = []
    for index in range(40):
        source, target = (corpus.padded(side, np.array([index]))[0] for side in (0, 1))
        assert (len(source), len(target)) == (corpus.src_lengths[index], corpus.tgt_lengths[index])
        order.append(int(source[0]) - 10)
    assert sorted(order) == list(range(40))
    assert [sizes[number] for number in order] == list(zip(corpus.src_lengths, corpus.tgt_lengths, strict=True))
    bins = np.searchsorted(corpus.file_starts, np.arange(40), side="right")
    assert [int(bin_) - 1 for bin_ in bins] == [(t > 4) + (t > 8) for t in corpus.tgt_lengths.tolist()]
    assert corpus.tokens == sum(s + t for s, t in sizes)
    one, other = (LengthSums(1, s, t, s * s, t * t, s * t) for s, t in (sizes[number] for number in order[:2]))
    assert corpus.sums(np.array([0, 1])) == one + other


def test_lengths_of_a_corpus_of_one_file(tmp_path: Path) -> None:
    """Its pairs are sorted by them; 16 bits do not hold all of them."""
    corpus = Corpus([write_arrow(tmp_path / "a.arrow", numbered([(3, 4), (3, 2), (3, 9)]))])
    assert [part.tolist() for part in cut(corpus, np.array([2, 0, 1]), 3)[1]] == [[1], [0], [2]]
    corpus = Corpus([write_arrow(tmp_path / "b.arrow", [([5] * 65_536, [6]), ([5], [6] * 65_535)])])
    assert (corpus.src_lengths.tolist(), corpus.tgt_lengths.tolist()) == ([65_536, 1], [1, 65_535])
    assert corpus.tokens == 2 * 65_536 + 1


def test_an_empty_block_is_no_error(tmp_path: Path) -> None:
    schema = pa.schema({"src": pa.list_(pa.uint16()), "tgt": pa.list_(pa.uint16()), "line": pa.int64()})
    path = tmp_path / "train.arrow"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as out:
        for sides in ([], [[5, EOS]]):
            columns = [pa.array(sides, pa.list_(pa.uint16()))] * 2 + [pa.array(range(len(sides)), pa.int64())]
            out.write_batch(pa.record_batch(columns, schema=schema))
    assert Corpus([path]).tgt_lengths.tolist() == [2]


def test_an_epochs_updates(tmp_path: Path) -> None:
    """400 tokens a side in all, 8 of 5 + 5: updates of 100 tokens a side, at least one and none without a pair."""
    corpus = binned(tmp_path, numbered([(5, 5)] * 80))
    assert [updates_an_epoch(corpus, tokens) for tokens in (100, 400, 401, 10_000, 1)] == [4, 1, 1, 1, 80]


def test_ahead_keeps_the_order_and_ends_its_thread_when_left() -> None:
    asked = []

    def numbers():
        for number in range(1000):
            asked.append(number)
            yield Update(number, 0, [], LengthSums(), 0)

    items = ahead(numbers())
    assert [next(items).number for _ in range(3)] == [0, 1, 2]
    items.close()
    # What was taken, what was ready, and what was in the maker's hands.
    assert len(asked) <= 3 + AHEAD + 2
    assert "batches" not in {thread.name for thread in threading.enumerate()}
    assert [item.number for item in ahead(islice(numbers(), 20))] == list(range(20))


def test_an_error_of_the_preparing_thread_reaches_the_loop() -> None:
    def broken():
        yield from ()
        raise InputError("the corpus went away")

    check_refusal("", list, ahead(broken()))
