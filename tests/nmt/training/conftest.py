"""What the tests of training share."""

from __future__ import annotations

import pytest
import torch
from model_folders import model_settings

from nmt.model import Transformer

Training = tuple[Transformer, torch.optim.Optimizer]


@pytest.fixture(scope="module")
def training() -> Training:
    """A model and an optimizer that has stepped."""
    model = Transformer(model_settings(N=1, d_model=2, d_ff=2, h=1, d_k=1, d_v=1, max_positions=4), 4)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer
