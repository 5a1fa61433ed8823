"""The data sheets, and what is measured where there is none."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from nmt import hardware, products
from nmt.hardware import data_sheet


def test_hardware_is_found_by_torchs_name() -> None:
    names = {
        "NVIDIA H100 80GB HBM3": "H100", "NVIDIA H100 PCIe": "H100 PCIe", "NVIDIA A10": "A10", "NVIDIA A10G": "A10G",
        "Tesla V100-SXM2-16GB": "V100", "Tesla V100-PCIE-16GB": "V100 PCIE",
        "NVIDIA GeForce RTX 3090 Ti": "RTX 3090 Ti",
    }  # fmt: skip
    assert {device: entry and entry.name for device in names if (entry := data_sheet(device))} == names
    # A slice of one GPU, and a laptop's.
    for device in ("cpu", "NVIDIA A1000", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU"):
        assert data_sheet(device) is None


def test_the_papers_gpus_sustain_what_its_footnote_says() -> None:
    sustained = {"K80": 2.8e12, "K40": 3.7e12, "M40": 6.0e12, "P100": 9.5e12}
    assert {name: hardware.sustained(f"Tesla {name}") for name in sustained} == sustained
    assert [data_sheet(name).peak("bfloat16") for name in sustained] == [None] * 4
    assert [data_sheet(name).peak("float32") for name in sustained] == [None, None, None, 10.6e12]


SHEETS = {
    "V100": (15.7, None), "T4": (8.1, None), "A100": (19.5, 312), "A10G": (35, 70), "A10": (31.2, 125),
    "A40": (37.4, 149.7), "L40S": (91.6, 362), "L4": (30.3, 121), "RTX 3090": (35.6, 71), "RTX 4090": (82.6, 165.2),
    "H100 PCIe": (51.2, 756), "H100 NVL": (60, 835), "H100": (66.9, 989.4), "H200": (66.9, 989.4), "B200": (75, 2250),
    "V100 PCIE": (14.0, None), "RTX 3090 Ti": (40, 80), "RTX 4090 D": (73.5, 147), "H200 NVL": (60, 835),
}  # fmt: skip
"""TFLOPS in float32 and dense bfloat16, typed a second time from the data sheets."""


def test_later_gpus_have_their_data_sheets_peaks() -> None:
    assert {entry.name for entry in hardware.HARDWARE} == {"K80", "K40", "M40", "P100", *SHEETS}
    for name, (float32, bfloat16) in SHEETS.items():
        known = data_sheet(name)
        assert (known.peak("float32"), known.sustained) == pytest.approx((float32 * 1e12, 0.9 * float32 * 1e12)), name
        assert known.peak("bfloat16") == (None if bfloat16 is None else pytest.approx(bfloat16 * 1e12)), name
        assert "0.9 of peak" in known.source


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.measure("cpu", seconds=0.01) > 1e7
    # A clock that goes on by half a second between two looks at it: one product takes that long.
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(products, "chosen", "torch")  # torch counts no others
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(clock))
    with FlopCounterMode(display=False) as counter:
        speed = hardware.measure("cpu", seconds=0.1)
    assert speed == counter.get_total_flops() / 0.5


def test_sustained_is_on_record_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "measure", lambda kind: {"cpu": 1.0, "cuda": 2.0}[kind])
    assert hardware.sustained("NVIDIA A100-SXM4-80GB") == pytest.approx(0.9 * 19.5e12)
    assert hardware.sustained("cpu") == 1.0
    for is_here, speed in ((True, 2.0), (False, 1.0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_here=is_here: is_here)
        assert hardware.sustained("Unheard-of GPU") == speed


def test_processes_share_a_cpu_but_no_gpu() -> None:
    several = (("cpu", 2), ("NVIDIA H200", 1), ("NVIDIA H200", 8))
    assert [hardware.devices(*each) for each in several] == [1, 1, 8]
