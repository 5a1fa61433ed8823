"""Parameter counts and operations, held against the model itself, torch's counter and the paper's numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from model_folders import model_settings
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt import flops
from nmt.flops import LengthSums, hardware, parameters, training_flops
from nmt.model import Transformer
from nmt.model_settings import ModelSettings

BASE = model_settings(N=6, d_model=512, d_ff=2048, h=8, d_k=64, d_v=64)
SMALL = BASE.model_copy(update={"N": 2, "d_model": 24, "d_ff": 40, "h": 3, "d_k": 4, "d_v": 10})


@pytest.mark.parametrize(
    "change",
    [{}, {"projection_biases": False}, {"positions": "learned", "max_positions": 50}, {"h": 5}, {"N": 3, "d_ff": 7}],
)
@pytest.mark.parametrize("sharing", ["all", "output", "none"])
@pytest.mark.parametrize("target", [None, 31])
def test_parameters_are_those_of_the_model(change: dict[str, object], sharing: str, target: int | None) -> None:
    settings = SMALL.model_copy(update={**change, "sharing": sharing})
    rows = None if sharing == "all" else target
    counted = sum(p.numel() for p in Transformer(settings, 97, rows).parameters())
    assert parameters(settings, 97, rows) == counted


def _counted(settings: ModelSettings, vocabulary: int, source: int, target: int) -> int:
    """What torch counts for one update on one pair, without any data (the meta device)."""
    with torch.device("meta"):
        model = Transformer(settings, 600 if settings.sharing != "all" else vocabulary, vocabulary)
        model.to("meta")  # The table of positions is made on the CPU.
        src = torch.ones(1, source, dtype=torch.int64)
        tgt = torch.ones(1, target, dtype=torch.int64)
        with FlopCounterMode(display=False) as counter:
            loss = F.cross_entropy(model.logits(model(src, tgt))[0], tgt[0])
            torch.autograd.backward(loss)
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    ("settings", "vocabulary", "source", "target"),
    [
        (SMALL, 50, 5, 7),
        (SMALL, 50, 1, 1),
        (BASE, 37000, 31, 29),
        (SMALL.model_copy(update={"sharing": "output"}), 64, 6, 40),
        (SMALL.model_copy(update={"sharing": "none"}), 64, 6, 40),
    ],
)
def test_training_flops_are_torchs(settings: ModelSettings, vocabulary: int, source: int, target: int) -> None:
    counted = training_flops(settings, vocabulary, LengthSums.of(source, target))
    assert counted == _counted(settings, vocabulary, source, target)


def test_sums_of_lengths_add_up_over_pairs() -> None:
    lengths = [(3, 4), (10, 2), (1, 9)]
    total = sum((LengthSums.of(s, t) for s, t in lengths), LengthSums())
    assert total == LengthSums(3, 14, 15, 110, 101, 41)


def test_hardware_is_found_by_torchs_name() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100",
        "NVIDIA H100 PCIe": "H100 PCIe",
        "NVIDIA A10": "A10",
        "NVIDIA A10G": "A10G",
        "Tesla V100-SXM2-16GB": "V100",
        "Tesla V100-PCIE-16GB": "V100 PCIE",
        "NVIDIA GeForce RTX 3090 Ti": "RTX 3090 Ti",
    }
    assert {device: found and found.name for device in names if (found := hardware(device))} == names
    # A slice of one GPU, and a laptop's.
    for device in ("cpu", "NVIDIA A1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        assert hardware(device) is None


def test_the_papers_gpus_sustain_what_its_footnote_says() -> None:
    sustained = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
    assert {name: flops.sustained(f"Tesla {name}") for name in sustained} == sustained
    assert [hardware(name).peak("bfloat16") for name in sustained] == [None] * 4
    assert [hardware(name).peak("float32") for name in sustained] == [None, None, None, 10.6e12]


SHEETS = {
    "V100": (15.7, None), "T4": (8.1, None), "A100": (19.5, 312), "A10G": (35, 70), "A10": (31.2, 125),
    "A40": (37.4, 149.7), "L40S": (91.6, 362), "L4": (30.3, 121), "RTX 3090": (35.6, 71), "RTX 4090": (82.6, 165.2),
    "H100 PCIe": (51.2, 756), "H100 NVL": (60, 835), "H100": (66.9, 989.4), "H200": (66.9, 989.4), "B200": (75, 2250),
    "V100 PCIE": (14.0, None), "RTX 3090 Ti": (40, 80), "RTX 4090 D": (73.5, 147), "H200 NVL": (60, 835),
}  # fmt: skip
"""TFLOPS in float32 and dense bfloat16, typed a second time from the data sheets."""


def test_later_gpus_have_their_data_sheets_peaks() -> None:
    assert {entry.name for entry in flops.HARDWARE} == {"K80", "K40", "M40", "P100", *SHEETS}
    for name, (float32, bfloat16) in SHEETS.items():
        found = hardware(name)
        assert (found.peak("float32"), found.sustained) == pytest.approx((float32 * 1e12, 0.9 * float32 * 1e12)), name
        assert found.peak("bfloat16") == (None if bfloat16 is None else pytest.approx(bfloat16 * 1e12)), name
        assert "0.9 of peak" in found.source


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flops.measure("cpu", seconds=0.01) > 1e7
    # A clock that goes on by half a second between two looks at it: one product takes that long.
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(flops.time, "perf_counter", lambda: next(clock))
    with FlopCounterMode(display=False) as counter:
        speed = flops.measure("cpu", seconds=0.1)
    assert speed == counter.get_total_flops() / 0.5


def test_sustained_is_on_record_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flops, "measure", lambda kind: {"cpu": 1.0, "cuda": 2.0}[kind])
    assert flops.sustained("NVIDIA A100-SXM4-80GB") == pytest.approx(0.9 * 19.5e12)
    assert flops.sustained("cpu") == 1.0
    assert flops.sustained("Unheard-of GPU") == 2.0


def test_processes_share_a_cpu_but_no_gpu() -> None:
    assert [flops.devices("cpu", 2), flops.devices("NVIDIA H200", 1), flops.devices("NVIDIA H200", 8)] == [1, 1, 8]
