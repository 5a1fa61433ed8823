"""Model folders with random weights, and trainings whose shapes are checked at first."""

from __future__ import annotations

from pathlib import Path

import jaxtyping
import pytest
from model_folders import folder_of, parser_of

from nmt.training.batches import Update
from nmt.training.trainer import Trainer

CHECKED_UPDATES = 8


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "model")


@pytest.fixture
def parser(tmp_path: Path) -> Path:
    """A parser with random weights, which writes no more than a few symbols: its outputs have to be repaired."""
    return parser_of(tmp_path / "parser", "vinyals")


@pytest.fixture(autouse=True)
def _shapes_are_checked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check shapes and types in a test's first updates alone: later ones call the same functions, half as fast."""
    step, steps = Trainer.step, 0

    def counted(self: Trainer, update: Update) -> None:
        nonlocal steps
        steps += 1
        if steps > CHECKED_UPDATES:
            jaxtyping.config.update("jaxtyping_disable", True)
        step(self, update)

    monkeypatch.setattr(Trainer, "step", counted)
