"""Parameter counts and operations, held against the model itself, torch's counter and the paper's numbers."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from nmt import flops
from nmt.config import InputError, ModelSettings
from nmt.flops import LengthSums, hardware, paper_cost, parameters, training_flops
from nmt.model import Transformer

BASE = ModelSettings(
    N=6,
    d_model=512,
    d_ff=2048,
    h=8,
    d_k=64,
    d_v=64,
    P_drop=0.0,
    attention_dropout=0.0,
    relu_dropout=0.0,
    positions="sinusoidal",
    position_layout="interleaved",
    max_positions=512,
    projection_biases=True,
    initialisation="glorot",
)
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


def test_parameters_of_base_by_hand() -> None:
    attention = 4 * (512 * 512 + 512)
    feed_forward = 512 * 2048 + 2048 + 2048 * 512 + 512
    by_hand = 40960 * 512 + 6 * (3 * attention + 2 * feed_forward + 5 * 2 * 512)
    assert parameters(BASE, 40960) == by_hand == 65_110_016


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
def test_training_flops_equal_torchs_counter(
    settings: ModelSettings, vocabulary: int, source: int, target: int
) -> None:
    counted = training_flops(settings, vocabulary, LengthSums.of(source, target))
    assert counted == _counted(settings, vocabulary, source, target)


def test_training_flops_add_up_over_pairs() -> None:
    lengths = [(3, 4), (10, 2), (1, 9)]
    total = sum((LengthSums.of(s, t) for s, t in lengths), LengthSums.zero())
    assert total == LengthSums(3, 14, 15, 110, 101, 41)
    one_by_one = sum(training_flops(SMALL, 50, LengthSums.of(s, t)) for s, t in lengths)
    assert training_flops(SMALL, 50, total) == one_by_one


def test_paper_cost_of_base_and_big() -> None:
    p100 = hardware("Tesla P100-SXM2-16GB")
    assert p100 is not None
    assert f"{paper_cost(12 * 3600, 8, p100.sustained):.1e}" == "3.3e+18"
    assert f"{paper_cost(3.5 * 86400, 8, p100.sustained):.1e}" == "2.3e+19"


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("Tesla V100-PCIE-16GB", "V100 PCIE"),
        ("NVIDIA H200 NVL", "H200 NVL"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX 3090 Ti"),
        ("NVIDIA GeForce RTX 4090 D", "RTX 4090 D"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("Tesla K80", "K80"),
    ],
)
def test_hardware_is_found_by_torchs_name(device: str, name: str) -> None:
    found = hardware(device)
    assert found is not None
    assert found.name == name


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


@pytest.mark.parametrize("name", SHEETS)
def test_later_gpus_have_their_data_sheets_peaks(name: str) -> None:
    found = hardware(name)
    assert found is not None
    float32, bfloat16 = SHEETS[name]
    assert found.peak("float32") == pytest.approx(float32 * 1e12)
    assert found.sustained == pytest.approx(0.9 * float32 * 1e12)
    assert found.peak("bfloat16") == (None if bfloat16 is None else pytest.approx(bfloat16 * 1e12))
    assert "0.9 of peak" in found.source


def test_every_gpu_on_record_is_in_a_test() -> None:
    assert {entry.name for entry in flops.HARDWARE} == {"K80", "K40", "M40", "P100", *SHEETS}


def test_unknown_hardware_has_no_entry() -> None:
    assert hardware("cpu") is None
    assert hardware("NVIDIA A1000") is None
    assert hardware("NVIDIA H100 80GB HBM3 MIG 1g.10gb") is None, "a part of it"
    assert hardware("NVIDIA GeForce RTX 4090 Laptop GPU") is None
    assert hardware("NVIDIA GeForce RTX 4090") is not None


def test_peak_depends_on_precision() -> None:
    h100 = hardware("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    assert h100.peak("bfloat16") == pytest.approx(989.4e12)
    assert h100.peak("float32") == pytest.approx(66.9e12)
    v100 = hardware("V100")
    assert v100 is not None
    assert v100.peak("bfloat16") is None


def test_utilisation_is_one_at_the_peak() -> None:
    assert flops.utilisation(6e12, 2.0, 3, 1e12) == 1.0


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
    assert flops.devices("cpu", 2) == 1
    assert flops.devices("NVIDIA H200", 1) == 1
    assert flops.devices("NVIDIA H200", 8) == 8


@pytest.mark.parametrize(("seconds", "devices", "speed"), [(-1.0, 1, 1e12), (1.0, 0, 1e12), (1.0, 1, 0.0)])
def test_an_impossible_training_is_refused(seconds: float, devices: int, speed: float) -> None:
    with pytest.raises(
        InputError, match=f"^{seconds} seconds on {devices} devices at .* is no training: seconds must be"
    ):
        paper_cost(seconds, devices, speed)
    assert paper_cost(0.0, 1, 1e-3) == 0
