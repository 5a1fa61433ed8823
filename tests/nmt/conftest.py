"""Models with random weights, in folders and in training, and trainings whose shapes are checked at first."""

from pathlib import Path

import jaxtyping
import pytest
import torch
from model_folders import folder_of, model_settings, parser_of

from nmt.model import Transformer
from nmt.training.batches import Update
from nmt.training.trainer import Trainer

CHECKED_UPDATES = 8
Training = tuple[Transformer, torch.optim.Optimizer]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "model")


@pytest.fixture
def parser(tmp_path: Path) -> Path:
    """A parser with random weights, which writes no more than a few symbols: its outputs have to be repaired."""
    return parser_of(tmp_path / "parser", "vinyals")


@pytest.fixture(scope="module")
def training() -> Training:
    """A model and an optimizer that has stepped."""
    model = Transformer(model_settings(N=1, d_model=2, d_ff=2, h=1, d_k=1, d_v=1, max_positions=4), 4)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


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
