"""Eq. 3 for base: d_model 512, warm-up 4,000."""

import pytest
from trainings import MakeJob

from nmt.training.schedule import learning_rate
from nmt.training.settings import TrainingSettings


@pytest.mark.parametrize("arithmetic", ["ordinary", "portable"])
def test_learning_rate(tiny_job: MakeJob, arithmetic: str) -> None:
    given = tiny_job(warmup_steps=4000, arithmetic=arithmetic)["training"]
    once, twice = (TrainingSettings.model_validate({**given, "learning_rate_scale": scale}) for scale in (1.0, 2.0))
    by_hand = {1: 4000**-1.5, 7: 7 * 4000**-1.5, 4000: 4000**-0.5, 4001: 4001**-0.5, 100_000: 100_000**-0.5}
    for update, rate in by_hand.items():
        assert learning_rate(update, 512, once) == pytest.approx(512**-0.5 * rate, rel=1e-14)
        assert learning_rate(update, 512, twice) == 2 * learning_rate(update, 512, once)
