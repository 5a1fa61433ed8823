"""What `wmt plan --on GPU` computes."""

from __future__ import annotations

from typing import Any

import pytest
from command_line import wmt

from nmt.config import InputError
from pipeline.commands.rental import Rental


def test_hours_and_money() -> None:
    # 989.4e12 x 0.25 x 8 x 3600 s = 7.12e18 operations in an hour.
    text = Rental("H100", 8, 24.0, 0.25).estimate(14_247_360_000_000_000_000, "bfloat16")
    assert text == "2.0 hours on 8 H100, 48.00 at 24.00 an hour; computed for 25% of 989 TFLOPS each, not measured"
    assert Rental("A100").estimate(336_960_000_000_000_000, "bfloat16").startswith("1.0 hours on 1 A100; computed")


def test_a_gpu_without_a_known_peak_is_refused() -> None:
    with pytest.raises(InputError, match="its peak in bfloat16 is not known; known are A100"):
        Rental("P100").estimate(1, "bfloat16")


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"utilisation": 0.0}, {"price": float("nan")}, {"price": -24.0}])
def test_impossible_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="--devices must be from 1 on"):
        Rental("A100", **wrong).estimate(1, "bfloat16")


@pytest.mark.parametrize(("option", "status"), [("--devices=0", 1), ("--price=nan", 1), ("--devices=8", 2)])
def test_numbers_of_rented_gpus_need_their_name(
    option: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.commands.plan.report", lambda measure, rental: True)
    assert wmt("plan", option) == status
    assert "--devices" in capsys.readouterr().err
    assert wmt("plan", "--on", "H100", "--devices=8") == wmt("plan") == 0
