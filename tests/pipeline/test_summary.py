"""What `make run` ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import wmt

SCORES = {
    "bleu": 87.94,
    "bleu_low": 85.86,
    "bleu_high": 89.91,
    "bleu_set": "sampletest, 500 lines",
    "bleu_signature": "nrefs:1",
}


def test_bleu_its_interval_and_where_things_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert wmt("summary") == 1
    assert capsys.readouterr().err.startswith("summary: results/scores.json cannot be read")
    Path("results").mkdir()
    for key in SCORES:
        Path("results/scores.json").write_text(json.dumps({name: SCORES[name] for name in SCORES if name != key}))
        assert wmt("summary") == 1
        assert f"summary: results/scores.json has no '{key}': run `dvc repro`" in capsys.readouterr().err
    Path("results/scores.json").write_text(json.dumps(SCORES))
    assert wmt("summary") == 0
    assert capsys.readouterr().out.splitlines() == [
        "BLEU    87.9 (95% interval 85.9 to 89.9) on sampletest, 500 lines; sacreBLEU, nrefs:1",
        "report  results/report.html",
        "model   models/average",
    ]


def test_trees_are_summed_up_by_f1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    scores = {"f1": 92.44, "f1_low": 90.0, "f1_high": 94.0, "f1_set": "sampletest, 500 trees", "f1_signature": "rules"}
    Path("results/scores.json").write_text(json.dumps(scores))
    assert wmt("summary") == 0
    summed = "F1      92.4 (95% interval 90.0 to 94.0) on sampletest, 500 trees; EVALB, rules"
    assert capsys.readouterr().out.splitlines()[0] == summed
