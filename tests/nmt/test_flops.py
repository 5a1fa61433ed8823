"""Parameter counts and operations, held against the model itself, torch's counter and the paper's numbers."""

import numpy as np
import pytest
import torch
from model_folders import model_settings
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt.flops import LengthSums, parameters, training_flops
from nmt.model import Transformer
from nmt.model_settings import ModelSettings
from nmt.packing import pack

BASE = model_settings(N=6, d_model=512, d_ff=2048, h=8, d_k=64, d_v=64)
SMALL = BASE.model_copy(update={"N": 2, "d_model": 24, "d_ff": 40, "h": 3, "d_k": 4, "d_v": 10})


@pytest.mark.parametrize("change", [{}, {"projection_biases": False, "N": 3, "h": 5}, {"positions": "learned"}])
@pytest.mark.parametrize("sharing", ["all", "output", "none"])
@pytest.mark.parametrize("target", [None, 31])
def test_parameters_are_those_of_the_model(change: dict[str, object], sharing: str, target: int | None) -> None:
    settings = SMALL.model_copy(update={**change, "sharing": sharing})
    rows = None if sharing == "all" else target
    counted = sum(p.numel() for p in Transformer(settings, 97, rows).parameters())
    assert parameters(settings, 97, rows) == counted


@pytest.mark.parametrize(
    ("settings", "vocabulary", "source", "target"),
    [
        (SMALL, 50, 5, 7), (SMALL, 50, 1, 1), (BASE, 37000, 31, 29),
        (SMALL.model_copy(update={"sharing": "output"}), 64, 6, 40),
        (SMALL.model_copy(update={"sharing": "none"}), 64, 6, 40),
    ],
)  # fmt: skip
def test_training_flops_are_torchs(
    monkeypatch: pytest.MonkeyPatch, settings: ModelSettings, vocabulary: int, source: int, target: int
) -> None:
    """Of one update on one pair, without any data: on the meta device."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    sides = (pack([np.ones((1, length), dtype=np.int64)], settings.h) for length in (source, target))
    src, tgt = (side.to(torch.device("meta")) for side in sides)
    with torch.device("meta"):
        model = Transformer(settings, 600 if settings.sharing != "all" else vocabulary, vocabulary)
        model.to("meta")  # The table of positions is made on the CPU.
        with FlopCounterMode(display=False) as counter:
            loss = F.cross_entropy(model.logits(model.states(src, tgt)), tgt.ids)
            torch.autograd.backward(loss)
    sums = LengthSums(1, source, target, source * source, target * target, source * target)
    assert training_flops(settings, vocabulary, sums) == counter.get_total_flops()
