"""What `make run` ends with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from command_line import printed, refused

from pipeline.cli import runs

SCORES = {"bleu": 87.94, "bleu_low": 85.86, "bleu_high": 89.91, "bleu_set": "sampletest, 500 lines"}
SCORES |= {"bleu_signature": "nrefs:1"}


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/catalog", "results"):
        Path(name).mkdir(parents=True)
    Path("dvc.yaml").touch()
    run = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 3}
    Path("results/config.yaml").write_text(json.dumps({"run": run, "training": {"updates": 200}}))
    write({**SCORES, "train_seconds": 94.3})


def write(scores: dict[str, Any]) -> None:
    Path("results/scores.json").write_text(json.dumps(scores))


def test_bleu_its_interval_and_where_things_are() -> None:
    assert printed("summary").splitlines() == [
        "BLEU    87.9 (95% interval 85.9 to 89.9) on sampletest, 500 lines; sacreBLEU, nrefs:1",
        "run     updates=200 · sample-sample-s3, trained in 1 minute and 34 seconds",
        f"report  {Path.cwd().as_uri()}/results/report.html",
        "model   models/average: wmt translate models/average",
        "runs    http://127.0.0.1:5000/wmt-en-de: all side by side, while `make ui` runs",
        "next    open the report; `wmt rows` lists other models",
    ]
    for key in SCORES:
        write({name: SCORES[name] for name in SCORES.keys() - {key}})
        assert f"summary: results/scores.json has no '{key}': run `dvc repro`" in refused("summary")
    Path("results/scores.json").unlink()
    assert refused("summary").startswith("summary: results/scores.json cannot be read")


def test_it_says_that_a_newer_run_is_going_on() -> None:
    Path(".dvc/tmp/status").mkdir(parents=True)
    # The number of this process, whose command has the stage's name in it only at last.
    for stage, newer in (("no-such-stage", False), ("python", True)):
        status = {"state": "running", "pid": os.getpid()}
        Path(f".dvc/tmp/status/{stage}.json").write_text(json.dumps(status))
        assert ("a newer run is at its stage" in printed("summary")) == newer


def test_each_test_set_has_a_line() -> None:
    write({**SCORES, "sets": {"medical": {**SCORES, "bleu": 31.0, "bleu_set": "medical, 9 lines"}}})
    first, second, third = printed("summary").splitlines()[:3]
    assert first.startswith("BLEU    87.9 ")
    assert second.startswith("BLEU    31.0 (95% interval 85.9 to 89.9) on medical, 9 lines; ")
    assert third.startswith("run ")


def test_trees_are_summed_up_by_f1() -> None:
    scores = {"f1": 92.44, "f1_low": 90.0, "f1_high": 94.0, "f1_set": "sampletest, 500 trees", "f1_signature": "rules"}
    write(scores)
    summed = "F1      92.4 (95% interval 90.0 to 94.0) on sampletest, 500 trees; EVALB, rules"
    assert printed("summary").splitlines()[0] == summed


def test_scores_of_an_earlier_run_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed `dvc repro` leaves them."""
    for fresh in (True, False):
        monkeypatch.setattr(runs, "_up_to_date", lambda fresh=fresh: fresh)
        assert ("the scores are of earlier settings, files or code" in printed("summary")) != fresh


def test_conflict_markers_in_the_lock_file_are_named() -> None:
    Path("dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n=======\n>>>>>>> theirs\n")
    assert "dvc.lock has conflict markers: " in refused("summary")
    assert "dvc.lock has conflict markers: " in refused("publish")
