"""What an ablation says of its runs: intervals over seeds, and trends beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clones import Clone
from command_line import wmt

from nmt.config import InputError
from pipeline.cli import ablation
from pipeline.cli.ablation import Interval, Plan
from pipeline.config import resolution, rows
from pipeline.flows import copies
from pipeline.tracking import source

ROOT = Path(__file__).resolve().parents[3]

PLAN = Plan("en-de", "sample", width=4, depth=2, training={"updates": 10}, subwords={"merges": 400}, repository="a")


def test_rows_are_scaled_together() -> None:
    def model(row: str) -> dict[str, int]:
        return PLAN.params(row, 1)["overrides"]["model"]

    assert model("base") == {"N": 3, "d_model": 128, "d_ff": 512, "d_k": 16, "d_v": 16}
    assert model("C-N2")["N"] == 1
    assert model("A-h1")["d_k"] == 128
    assert model("B-dk16")["d_k"] == 4
    with pytest.raises(InputError, match="row C-N2: N of 2 is divided to 0"):
        Plan("en-de", "sample", 4, 4, {}, {}, "a").params("C-N2", 1)


@pytest.mark.parametrize("updates", [3, 10, 1000])
def test_every_row_of_the_paper_resolves(updates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    training = {"updates": updates, "checkpoint_every": max(1, updates // 5), "keep_checkpoints": 5}
    plan = Plan("en-de", "sample", 4, 2, training, {"merges": 400}, "a")
    for row in rows.table().rows:
        if rows.row(row).paper.bleu is not None:
            assert resolution.checkpoint_shortage(resolution.resolve(plan.params(row, 1))) is None


def test_a_vocabulary_is_sized_as_its_pair_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "commit", lambda folder: "c")
    monkeypatch.setattr(source, "difference", lambda *paths: b"")
    monkeypatch.chdir(tmp_path)
    for pair, key in (("en-de", "merges"), ("en-fr", "vocabulary")):
        Path("params.yaml").write_text(f"row: base\npair: {pair}\ncorpus: sample\nseed: 1\n")
        assert ablation.plan_of(None, 1, 1, 400, {}).subwords == {key: 400}


def test_wrong_settings_are_refused_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)

    def run_all(*arguments: Any) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr(ablation, "run_all", run_all)
    assert wmt("ablation", "--rows", "base", "--rows", "bigg") == 1
    assert "`bigg` is not a row of rows.yaml; did you mean `big`?" in capsys.readouterr().err
    assert wmt("ablation", "--updates", "0") == 1
    assert "training.updates is 0" in capsys.readouterr().err
    assert wmt("ablation", "--seeds", "1", "--seeds", 2**64) == 1
    assert "seed is 18446744073709551616" in capsys.readouterr().err
    for name in ("--width", "--depth", "--jobs"):
        assert wmt("ablation", name, "0") == 2
        assert f"Invalid value for '{name}'" in capsys.readouterr().err


def test_missing_runs_work_in_copies_of_the_beginning_and_a_failure_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clone = Clone(tmp_path)
    monkeypatch.chdir(clone.folder)
    monkeypatch.delenv("WMT_STATE", raising=False)
    names = {PLAN.name(row, 1): (row, 1) for row in ("base", "A-h1", "A-h4", "A-h16")}
    done, failing = PLAN.name("A-h4", 1), PLAN.name("A-h16", 1)
    found, saved = {}, []

    def run(copy: Path, command: list[str], log: Callable[[str], None], tick: object) -> int:
        (clone.folder / "params.yaml").write_text("row: edited\n")
        found[copy.name] = copies.read_params(copy / "params.yaml")["row"]
        log("the cause")
        return int(copy.name == failing)

    monkeypatch.setattr(copies, "run", run)
    monkeypatch.setattr(copies, "save", lambda copy, stages, log: saved.append(copy.name))
    with pytest.raises(InputError, match=f"^{failing} failed: fix the cause"):
        ablation.run_all(PLAN, names, {done}, jobs=1)
    assert capsys.readouterr() == ("3 runs of 4 to do\n1 of 3 runs, 0 minutes\n2 of 3 runs, 0 minutes\n", "the cause\n")
    assert found == {name: row for name, (row, _) in names.items() if name != done}
    assert saved == [name for name in found if name != failing]
    assert [path.name for path in (clone.folder / "work/copies").iterdir()] == [".lock"]


def test_a_name_tells_settings_apart() -> None:
    names = {PLAN.name("base", 1), PLAN.name("base", 2), PLAN.name("D-pdrop0.0", 1)}
    names |= {replace(PLAN, **other).name("base", 1) for other in ({"training": {"updates": 11}}, {"repository": "b"})}
    assert len(names) == 5
    assert not any("." in name for name in names)


def test_a_seed_given_twice_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ablation, "finished", lambda commit: {})
    monkeypatch.setattr(ablation, "results", lambda found, names: names)
    monkeypatch.setattr(ablation, "run_all", lambda plan, names, known, jobs: None)
    monkeypatch.setattr(ablation, "report", lambda plan, measured, seeds: f"{len(measured)} runs, {seeds} seeds")
    seeds = ["--seeds", "1", "--seeds", "2", "--seeds", "1"]
    assert wmt("ablation", "--rows", "base", *seeds, "--out", tmp_path / "out") == 0
    assert capsys.readouterr().out == "2 runs, 2 seeds\n"


@pytest.mark.parametrize(
    ("pair", "overrides", "message"),
    [
        ("en-de", "{model: {P_drop: 0.2}}", "`overrides` would change the settings of every row"),
        ("en-tree", "{}", "pair is en-tree, but Table 3's rows are compared by BLEU"),
        ("de-en", "{}", "pair is 'de-en'; input should be 'en-de', 'en-fr' or 'en-tree'"),
    ],
)
def test_params_that_change_or_score_every_row_otherwise_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    pair: str,
    overrides: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(f"row: base\npair: {pair}\ncorpus: sample\nseed: 1\noverrides: {overrides}\n")
    assert wmt("ablation") == 1
    assert f"params.yaml: {message}" in capsys.readouterr().err


def test_an_interval_is_students() -> None:
    # By hand: the standard deviation is 1, t of 2 degrees of freedom 4.3027, and 4.3027 / sqrt(3) = 2.4841.
    assert Interval.of([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert Interval.of([2.0]) == (2.0, -math.inf, math.inf)
    assert Interval.of([2.0]).text(1) == "2.0 (one seed)"


def test_the_report_says_which_trends_stand() -> None:
    measured: dict[str, dict[str, Any]] = {
        "base": {"valid_ppl": [10.0, 10.1, 9.9], "valid_bleu": [30.0, 30.2, 29.8], "params": [1e6] * 3},
        "C-N2": {"valid_ppl": [12.0, 12.1, 11.9], "valid_bleu": [30.5, 29.5, 30.0], "params": [5e5] * 3},
        "D-pdrop0.0": {"valid_ppl": [9.0, 9.1, 8.9], "valid_bleu": [28.0, 28.2, 27.8], "params": [1e6] * 3},
    }
    text = ablation.report(PLAN, measured, 3)
    assert "| `base` | 1.00 M | 10.00 (9.75 to 10.25) | 30.0 (29.5 to 30.5) | 4.92 | 25.8 |" in text
    sentences = [line for line in text.split("\n") if line.startswith("- ")]
    assert sentences[0] == (
        "- C-N2: perplexity +2.00 (+2.00 to +2.00); the paper's +1.19: a difference from base, as in the paper."
    )
    assert sentences[1].startswith("- C-N2: BLEU +0.0 (")
    assert sentences[1].endswith("; the paper's -2.1: these seeds show no difference from base.")
    assert sentences[2] == (
        "- D-pdrop0.0: perplexity -1.00 (-1.00 to -1.00); the paper's +0.85: a difference from base, against the paper."
    )
