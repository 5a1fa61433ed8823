"""`wmt summary`, what `make run` ends with, and `wmt join`."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import printed, refused, wmt
from filelock import FileLock

from nmt.common.processes import is_held
from pipeline.cli import runs
from pipeline.trainings import identity, launch

SCORES = {"bleu": 87.94, "bleu_low": 85.86, "bleu_high": 89.91, "bleu_set": "sampletest, 500 lines"}


@pytest.fixture(autouse=True)
def repository(empty_repository: Path) -> None:
    Path("results").mkdir()
    run = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 3}
    Path("results/config.yaml").write_text(json.dumps({"run": run, "training": {"updates": 200}}))
    Path("results/scores.json").write_text(json.dumps({**SCORES, "bleu_signature": "nrefs:1", "train_seconds": 94.3}))


def test_bleu_its_interval_and_where_things_are() -> None:
    score, run, report, *_ = printed("summary").splitlines()
    assert score == "BLEU    87.9 (95% interval 85.9 to 89.9) on sampletest, 500 lines; sacreBLEU, nrefs:1"
    assert run == "run     updates=200 · sample-sample-s3, trained in 1 minute and 34 seconds"
    assert report == f"report  {Path.cwd().as_uri()}/results/report.html"
    Path("results/scores.json").write_text("{")
    assert refused("summary").startswith("summary: results/scores.json cannot be read")


def test_it_says_that_a_newer_run_is_going_on() -> None:
    Path(".dvc/tmp/status").mkdir(parents=True)
    # The number of this process, whose command has the stage's name in it only at last.
    for stage, newer in (("no-such-stage", False), ("python", True)):
        Path(f".dvc/tmp/status/{stage}.json").write_text(json.dumps({"state": "running", "pid": os.getpid()}))
        assert ("a newer run is at its stage" in printed("summary")) == newer


def test_scores_of_an_earlier_run_are_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed `dvc repro` leaves them."""
    for fresh in (True, False):
        monkeypatch.setattr(runs, "_up_to_date", lambda fresh=fresh: fresh)
        assert ("the scores may be of earlier settings, files or code" in printed("summary")) != fresh


def test_conflict_markers_in_the_lock_file_are_named() -> None:
    Path("dvc.lock").write_text("<<<<<<< HEAD\nschema: '2.0'\n=======\n>>>>>>> theirs\n")
    assert "dvc.lock has conflict markers: " in refused("summary")
    assert "dvc.lock has conflict markers: " in refused("publish")


# `wmt join`: a machine takes part in a training of several.

HERE = "first-machine:29400"


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that this machine trains in."""
    folders: list[Path] = []

    def torchrun(job: Path, watch: Callable[[], None]) -> int:
        watch()
        assert is_held(job / "lock"), "its first node runs"
        folders.append(job)
        return 7

    monkeypatch.setattr(launch, "torchrun", torchrun)
    monkeypatch.setattr(identity, "code_digest", lambda job: "code")
    monkeypatch.setattr(runs, "INTERVAL", 0.01)
    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", HERE)
    return folders


def training(root: Path, name: str, endpoint: str) -> FileLock:
    """The lock of a training whose first node has begun."""
    folder = root / "train" / name
    folder.mkdir(parents=True)
    (folder / launch.RENDEZVOUS).write_text(endpoint)
    (folder / "job.yaml").write_text("{}")
    return FileLock(folder / "lock", thread_local=False)


def test_the_training_with_this_rendezvous_is_joined_when_it_begins(tmp_path: Path, trained: list[Path]) -> None:
    # First nodes that were killed leave such files; so may the one that begins now.
    training(tmp_path, "dead-code", HERE)
    (tmp_path / "train/dead-code/lock").touch()
    lock = training(tmp_path, "this-code", HERE)
    with training(tmp_path, "other-code", "another-machine:29400"):
        threading.Timer(0.3, lock.acquire).start()
        assert wmt("join") == 7
    lock.release()
    assert trained == [tmp_path / "train/this-code"]


@pytest.mark.parametrize(
    ("name", "left", "nodes", "why"),
    [
        ("this-older", "", "2", "this-older is trained with other code than this machine has: check out"),
        ("this-code", "interrupted", "2", "the training was asked to stop"),
        ("this-code", "failed.json", "2", "mend this"),
        ("this-code", "", "1", "WMT_NODES is 1: set it and WMT_RENDEZVOUS"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, trained: list[Path], monkeypatch: pytest.MonkeyPatch, name: str, left: str, nodes: str, why: str
) -> None:
    monkeypatch.setenv("WMT_NODES", nodes)
    with training(tmp_path, name, HERE):
        if left:
            (tmp_path / "train" / name / left).write_text('{"state": "refused", "error": "mend this"}')
        assert why in refused("join")
    assert trained == []
