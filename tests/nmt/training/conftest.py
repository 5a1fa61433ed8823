"""What the tests of training share."""

from __future__ import annotations

from collections.abc import Iterator

import jaxtyping
import pytest

from nmt.training.batches import Update
from nmt.training.trainer import Trainer

CHECKED_UPDATES = 8


@pytest.fixture(autouse=True)
def _shapes_are_checked_at_first(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Check shapes and types in a test's first updates alone: later ones call the same functions, half as fast."""
    step, steps = Trainer.step, 0

    def counted(self: Trainer, update: Update) -> None:
        nonlocal steps
        steps += 1
        if steps > CHECKED_UPDATES:
            jaxtyping.config.update("jaxtyping_disable", True)
        step(self, update)

    monkeypatch.setattr(Trainer, "step", counted)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
