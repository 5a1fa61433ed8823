"""Eq. 3 at values worked by hand for base: d_model 512, warm-up 4,000."""

from __future__ import annotations

import pytest

from nmt.training.schedule import learning_rate
from nmt.training.settings import TrainingSettings

PAPER = TrainingSettings(
    updates=100_000, tokens=25_000, warmup_steps=4000, learning_rate_scale=1.0, beta1=0.9, beta2=0.98, epsilon=1e-9,
    eps_ls=0.1, precision="float32", seed=1, validate_every=1000, checkpoint_every=1500, keep_checkpoints=5,
    resume_minutes=10.0, shards=16,
)  # fmt: skip


@pytest.mark.parametrize("arithmetic", ["ordinary", "portable"])
@pytest.mark.parametrize(("update", "rate"), [(1, 1.7469281e-7), (4000, 6.9877125e-4), (100_000, 1.3975425e-4)])
def test_learning_rate(update: int, rate: float, arithmetic: str) -> None:
    settings = PAPER.model_copy(update={"arithmetic": arithmetic})
    assert learning_rate(update, 512, settings) == pytest.approx(rate, rel=1e-6)
    twice = settings.model_copy(update={"learning_rate_scale": 2.0})
    assert learning_rate(update, 512, twice) == 2 * learning_rate(update, 512, settings)


def test_updates_count_from_one() -> None:
    with pytest.raises(ValueError, match="count from 1"):
        learning_rate(0, 512, PAPER)
