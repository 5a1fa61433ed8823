"""Packed batches hold the pairs of their update, once each, where the model finds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nmt.config import BOS, EOS, PAD
from nmt.training.batches import Corpus, pairs_of_updates, train_files, updates, updates_an_epoch
from nmt.training.packed.batches import PackedBatch, PackedPlan, Side
from nmt.training.packed.shapes import SHAPES

Pairs = list[tuple[list[int], list[int]]]
WriteArrow = Callable[[Path, Sequence[Any]], None]
sentences = st.lists(st.integers(4, 40), max_size=90).map(lambda ids: [*ids, EOS])
corpora = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=30)


def binned(folder: Path, write_arrow: WriteArrow, pairs: Pairs) -> Corpus:
    """Bins of target lengths up to 6 and 99."""
    for lower, upper in ((0, 6), (6, 99)):
        inside = [pair for pair in pairs if lower < len(pair[1]) <= upper]
        if inside:
            write_arrow(folder / f"train.{upper:05d}.arrow", inside)
    return Corpus(train_files(folder))


def side_sentences(side: Side, ids: torch.Tensor) -> dict[tuple[int, int], list[int]]:
    """The ids of each sentence, by its row and its number there; checks every place of the rows and of the stream."""
    found: dict[tuple[int, int], list[int]] = {}
    rows, length = side.sentences.shape
    assert ids[-1] == PAD
    places, tokens = side.place_of_token.tolist(), side.token_of_place.tolist()
    for place, number in enumerate(side.sentences.flatten().tolist()):
        if number == 0:
            assert tokens[place] == len(ids) - 1
            continue
        sentence = found.setdefault((place // length, number), [])
        token = tokens[place]
        assert places[token] == place
        # A sentence lies in its row in its order, without gaps.
        assert int(side.positions[token]) == len(sentence)
        sentence.append(int(ids[token]))
    real = sum(map(len, found.values()))
    assert rows * length > real
    for token in range(real, len(ids)):
        assert (int(ids[token]), int(side.positions[token])) == (PAD, 0)
        assert side.sentences.flatten()[places[token]] == 0
    return found


def pairs_of(batch: PackedBatch) -> Pairs:
    sources, targets = side_sentences(batch.src, batch.src.ids), side_sentences(batch.tgt, batch.labels)
    inputs = side_sentences(batch.tgt, batch.tgt.ids)
    assert sources.keys() == targets.keys() == inputs.keys()
    for key, target in targets.items():
        assert inputs[key] == [BOS, *target[:-1]]
    return [(sources[key], targets[key]) for key in sources]


@given(corpora, st.integers(0, 3), st.integers(0, 2), st.integers(20, 300))
@settings(max_examples=30, suppress_health_check=["function_scoped_fixture"])  # type: ignore[list-item] # names work
def test_the_pairs_of_every_update_on_any_number_of_ranks(
    tmp_path_factory: pytest.TempPathFactory,
    write_arrow: WriteArrow,
    pairs: Pairs,
    levels: int,
    fewer: int,
    tokens: int,
) -> None:
    corpus = binned(tmp_path_factory.mktemp("binned"), write_arrow, pairs)
    last, shards = 2 * updates_an_epoch(corpus, tokens), 2**levels
    size = max(1, shards >> fewer)
    plan = PackedPlan(corpus, 3, tokens, shards)
    assert 1 <= len(plan.shapes) <= SHAPES
    each = [list(plan.updates(rank, size, 1, last)) for rank in range(size)]
    padded = updates(corpus, 3, tokens, shards, 0, 1, 1, last)
    chosen = pairs_of_updates(corpus, 3, tokens, range(1, last + 1))
    for parts, expected, (number, numbers) in zip(zip(*each, strict=True), padded, chosen, strict=True):
        batches = [batch for part in parts for batch in part.shards]
        (shape,) = {batch.shape for batch in batches}
        assert len(batches) == shards
        assert [part.first for part in parts] == list(range(0, shards, shards // size))
        assert {(part.number, part.sums) for part in parts} == {(number, expected.sums)}
        assert {part.padded for part in parts} == {shards * (shape.src + shape.tgt)}
        assert {int(batch.update_tokens) for batch in batches} == {expected.sums.target}
        found = sorted(pair for batch in batches for pair in pairs_of(batch))
        assert found == sorted(tuple(ids.tolist() for ids in corpus.pair(int(index))) for index in numbers)


def test_all_of_a_batch_is_one_tensor(tmp_path: Path, write_arrow: WriteArrow) -> None:
    """So that it is copied to a GPU at once."""
    corpus = binned(tmp_path, write_arrow, [([5, 6, EOS], [7, EOS]), ([8, EOS], [9, 10, EOS])])
    (update,) = PackedPlan(corpus, 1, 10, 1).updates(0, 1, 1, 1)
    (batch,) = update.shards
    assert batch.flat.shape == (sum(PackedBatch.sizes(batch.shape)),)
    copied = PackedBatch(batch.shape, True, batch.flat.clone())
    batch.flat.zero_()
    assert not batch.src.ids.any()
    assert not batch.update_tokens.any()
    assert len(pairs_of(copied)) == 2
    assert copied.to(torch.device("cpu")) is copied
    assert copied.size_text() == "16 source and 16 target subwords"


def test_an_update_that_fits_nowhere_has_its_own_shape(tmp_path: Path, write_arrow: WriteArrow) -> None:
    random = np.random.default_rng(1)
    pairs = [([5] * int(a) + [EOS], [6] * int(a) + [EOS]) for a in random.integers(1, 90, 200)]
    plan = PackedPlan(binned(tmp_path, write_arrow, pairs), 1, 200, 2)
    usual = [batch for update in plan.updates(0, 1, 1, 40) for batch in update.shards]
    assert {batch.shape for batch in usual} <= set(plan.shapes)
    assert all(batch.common for batch in usual)
    plan.shapes = plan.shapes[:1]
    found = list(plan.updates(0, 1, 1, 40))
    assert len({batch.shape for update in found for batch in update.shards}) > 1
    for update in found:
        assert all(batch.common == (batch.shape in plan.shapes) for batch in update.shards)
        assert sum(len(pairs_of(batch)) for batch in update.shards) == update.sums.pairs


def test_the_real_shapes_of_a_corpus_decide(tmp_path: Path, write_arrow: WriteArrow) -> None:
    """The same shapes for the same corpus, other shapes for another number of shards."""
    pairs = [([5] * (n % 40) + [EOS], [6] * (n % 37) + [EOS]) for n in range(300)]
    corpus = binned(tmp_path, write_arrow, pairs)
    assert PackedPlan(corpus, 1, 300, 2).shapes == PackedPlan(corpus, 1, 300, 2).shapes
    most = max(shape.src for shape in PackedPlan(corpus, 1, 300, 2).shapes)
    assert max(shape.src for shape in PackedPlan(corpus, 1, 300, 4).shapes) < 0.7 * most
