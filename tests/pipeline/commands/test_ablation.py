"""What an ablation says of its runs: intervals over seeds, and trends beside the paper's."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from command_line import wmt

from nmt.config import InputError
from pipeline.commands import ablation
from pipeline.commands.ablation import Interval, Plan

PLAN = Plan("en-de", "sample", width=4, depth=2, training={"updates": 10}, subwords={"merges": 400}, repository="a")


def test_an_interval_is_students() -> None:
    # By hand: the standard deviation is 1, t of 2 degrees of freedom 4.3027, and 4.3027 / sqrt(3) = 2.4841.
    interval = Interval.of([1.0, 2.0, 3.0])
    assert interval.mean == 2.0
    assert (interval.low, interval.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert Interval.of([2.0]) == Interval(2.0, -math.inf, math.inf)
    assert Interval.of([2.0]).text(1) == "2.0 (one seed)"


def test_rows_are_scaled_together() -> None:
    assert PLAN.overrides("base")["model"] == {"N": 3, "d_model": 128, "d_ff": 512, "d_k": 16, "d_v": 16}
    assert PLAN.overrides("C-N2")["model"]["N"] == 1
    assert PLAN.overrides("A-h1")["model"]["d_k"] == 128
    assert PLAN.overrides("B-dk16")["model"]["d_k"] == 4
    with pytest.raises(InputError, match="row C-N2: N of 2 is divided to 0"):
        Plan("en-de", "sample", 4, 4, {}, {}, "a").overrides("C-N2")


def test_a_name_tells_settings_apart() -> None:
    longer = Plan("en-de", "sample", 4, 2, {"updates": 11}, {"merges": 400}, "a")
    edited = Plan("en-de", "sample", 4, 2, {"updates": 10}, {"merges": 400}, "b")
    names = {PLAN.name("base", 1), PLAN.name("base", 2), PLAN.name("D-pdrop0.0", 1)}
    names |= {longer.name("base", 1), edited.name("base", 1)}
    assert len(names) == 5
    assert not any("." in name for name in names)


def test_overrides_in_params_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(
        "row: base\npair: en-de\ncorpus: sample\nseed: 1\noverrides: {model: {P_drop: 0.2}}\n"
    )
    assert wmt("ablation") == 1
    assert "params.yaml: `overrides` would go over every row's own settings" in capsys.readouterr().err


def test_the_report_says_which_trends_stand() -> None:
    measured: dict[str, dict[str, Any]] = {
        "base": {"ppl": [10.0, 10.1, 9.9], "bleu": [30.0, 30.2, 29.8], "params": [1e6] * 3},
        "C-N2": {"ppl": [12.0, 12.1, 11.9], "bleu": [30.5, 29.5, 30.0], "params": [5e5] * 3},
        "D-pdrop0.0": {"ppl": [9.0, 9.1, 8.9], "bleu": [28.0, 28.2, 27.8], "params": [1e6] * 3},
    }
    text = ablation.report(PLAN, measured, 3)
    assert "| `base` | 1.00 M | 10.00 (9.75 to 10.25) | 30.0 (29.5 to 30.5) | 4.92 | 25.8 |" in text
    sentences = [line for line in text.split("\n") if line.startswith("- ")]
    assert sentences[0] == (
        "- C-N2: perplexity +2.00 (+2.00 to +2.00); the paper's +1.19: a difference from base, as in the paper."
    )
    assert sentences[1].startswith("- C-N2: BLEU +0.0 (")
    assert sentences[1].endswith("; the paper's -2.1: no difference from base that these seeds show.")
    assert sentences[2] == (
        "- D-pdrop0.0: perplexity -1.00 (-1.00 to -1.00); the paper's +0.85: a difference from base, against the paper."
    )
