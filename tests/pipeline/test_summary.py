"""What `make run` ends with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import printed, refused, wmt

from pipeline.cli import runs

SCORES = {
    "bleu": 87.94,
    "bleu_low": 85.86,
    "bleu_high": 89.91,
    "bleu_set": "sampletest, 500 lines",
    "bleu_signature": "nrefs:1",
    "train_seconds": 94.3,
}


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/catalog", "results"):
        Path(name).mkdir(parents=True)
    Path("dvc.yaml").touch()
    run = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 3}
    Path("results/config.yaml").write_text(json.dumps({"run": run, "training": {"updates": 200}}))


def test_bleu_its_interval_and_where_things_are() -> None:
    assert refused("summary").startswith("summary: results/scores.json cannot be read")
    for key in SCORES.keys() - {"train_seconds"}:
        Path("results/scores.json").write_text(json.dumps({name: SCORES[name] for name in SCORES if name != key}))
        assert f"summary: results/scores.json has no '{key}': run `dvc repro`" in refused("summary")
    Path("results/scores.json").write_text(json.dumps(SCORES))
    assert printed("summary").splitlines() == [
        "BLEU    87.9 (95% interval 85.9 to 89.9) on sampletest, 500 lines; sacreBLEU, nrefs:1",
        "run     sample-sample-s3 updates=200, trained in 1 minute and 34 seconds",
        f"report  {Path.cwd().as_uri()}/results/report.html",
        "model   models/average: wmt translate models/average",
        "next    open the report; `make ui` compares runs; `wmt rows` lists other models",
    ]


def test_it_says_that_a_newer_run_is_going_on() -> None:
    Path("results/scores.json").write_text(json.dumps(SCORES))
    Path(".dvc/tmp/status").mkdir(parents=True)
    # The number of this process, whose command has the stage's name in it only at last.
    for stage, newer in (("no-such-stage", False), ("python", True)):
        status = {"state": "running", "pid": os.getpid()}
        Path(f".dvc/tmp/status/{stage}.json").write_text(json.dumps(status))
        said = "a newer run is at its stage" in printed("summary")
        assert said == newer


def test_trees_are_summed_up_by_f1(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"f1": 92.44, "f1_low": 90.0, "f1_high": 94.0, "f1_set": "sampletest, 500 trees", "f1_signature": "rules"}
    Path("results/scores.json").write_text(json.dumps(scores))
    assert wmt("summary") == 0
    summed = "F1      92.4 (95% interval 90.0 to 94.0) on sampletest, 500 trees; EVALB, rules"
    assert capsys.readouterr().out.splitlines()[0] == summed


def test_scores_of_an_earlier_run_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed `dvc repro` leaves them."""
    Path("results/scores.json").write_text(json.dumps(SCORES))
    for fresh in (True, False):
        monkeypatch.setattr(runs, "_up_to_date", lambda fresh=fresh: fresh)
        assert ("the scores are of earlier settings, files or code" in printed("summary")) != fresh
