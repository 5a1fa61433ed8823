"""The padding that binarize announces is that of the batches training makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nmt.config import BinningSettings
from nmt.training.batches import Corpus, updates, updates_an_epoch
from pipeline.corpora.padding import PairLengths, expected_padding
from pipeline.stages.binarize import bin_uppers

UPPERS = bin_uppers(BinningSettings(max_length=128, growth=1.1))


def pairs(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    """Lengths like those of news, the two sides' alike but not the same."""
    chance = np.random.default_rng(seed)
    source = np.clip(chance.gamma(3.4, 8.0, count), 2, 128).astype(int)
    target = np.clip(source * np.exp(chance.normal(0.0, 0.2, count)), 2, 128).astype(int)
    return [([5] * s, [5] * t) for s, t in zip(source.tolist(), target.tolist(), strict=True)]


def announced(made: list[tuple[list[int], list[int]]], tokens: int, piece: int) -> float:
    lengths = PairLengths()
    half = len(made) // 2
    for part in (made[:half], made[half:]):
        lengths.add(np.array([len(s) for s, _ in part], int), np.array([len(t) for _, t in part], int))
    return expected_padding(lengths, UPPERS, tokens, piece)


@pytest.mark.parametrize(("tokens", "piece"), [(4000, 4096), (4000, 512), (25_000, 2048), (400_000, 1024)])
def test_is_what_training_meets(tmp_path: Path, write_arrow: Callable[..., Any], tokens: int, piece: int) -> None:
    made = pairs(6000, 1)
    for low, upper in zip((0, *UPPERS), UPPERS, strict=False):
        if inside := [pair for pair in made if low < len(pair[1]) <= upper]:
            write_arrow(tmp_path / f"train.{upper:05d}.arrow", inside)
    corpus = Corpus(sorted(tmp_path.iterdir()))
    epoch = list(updates(corpus, 1, tokens, lambda: piece, 0, 1, 1, updates_an_epoch(corpus, tokens)))
    real = sum(len(source) + len(target) for source, target in made)
    met = 1 - real / sum(update.padded for update in epoch)
    assert announced(made, tokens, piece) == pytest.approx(met, abs=0.01)


def test_sentences_of_one_length_need_none() -> None:
    assert announced([([5] * 7, [5] * 7)] * 50, 100, 70) == 0


def test_one_pair_is_padded_on_no_side() -> None:
    assert announced([([5] * 3, [5] * 9)], 100, 1000) == 0
