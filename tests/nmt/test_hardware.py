"""The data sheets, and what is measured where there is none."""

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


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hardware.measure("cpu", seconds=0.01) > 1e7
    # A clock that goes on by half a second between two looks at it: one product takes that long.
    clock = itertools.count(0.0, 0.5)
    monkeypatch.setattr(products, "ONEDNN", False)  # torch counts no others
    monkeypatch.setattr(hardware.time, "perf_counter", lambda: next(clock))
    with FlopCounterMode(display=False) as counter:
        speed = hardware.measure("cpu", seconds=0.1)
    assert speed == counter.get_total_flops() / 0.5


def test_sustained_is_on_record_or_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "measure", lambda kind: {"cpu": 1.0, "cuda": 2.0}[kind])
    assert hardware.sustained("NVIDIA A100-SXM4-80GB") == pytest.approx(0.9 * 19.5e12)
    assert data_sheet("NVIDIA A100-SXM4-80GB").peak("bfloat16") == 312e12
    assert hardware.sustained("cpu") == 1.0
    for is_here, speed in ((True, 2.0), (False, 1.0)):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_here=is_here: is_here)
        assert hardware.sustained("Unheard-of GPU") == speed
