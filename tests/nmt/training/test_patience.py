"""Training ends where validation no longer improves, at the same update however often it is stopped."""

import json
import shutil
from pathlib import Path

import pytest
from trainings import MakeJob, final_weights, hashes, run, same, stopped

from nmt.training import checkpoint
from nmt.training.trainer import Trainer

LOSSES = {4: 3.0, 8: 2.0, 12: 2.0, 16: 2.5, 18: 1.9, 20: float("nan"), 24: 1.0, 28: 4.0, 30: 5.0, 32: 6.0}
"""By update: with the patience of 3 a training ends after update 20."""


@pytest.fixture
def job(tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> MakeJob:
    monkeypatch.setattr(Trainer, "validate", lambda self, _: LOSSES[self.update])
    given = {"validate_every": 4, "checkpoint_every": 5, "keep_checkpoints": 2, "verify_every": 7, "keep_states": 0}
    return lambda **training: tiny_job(**{**given, **training})


def ended(folder: Path) -> int:
    assert json.loads((folder / "done.json").read_text())["updates"] == checkpoint.last_saved_update(folder)
    return checkpoint.last_saved_update(folder)


def test_it_ends_at_the_same_update_however_often_it_is_stopped(tmp_path: Path, job: MakeJob) -> None:
    assert run(job(updates=32, patience=3), tmp_path / "whole")
    assert ended(tmp_path / "whole") == 20
    assert [*map(checkpoint.update_of, checkpoint.checkpoints(tmp_path / "whole/checkpoints"))] == [15, 20]
    stopped(job(updates=32, patience=3), tmp_path / "stopped", 9, 17)
    assert run(job(updates=32, patience=3), tmp_path / "stopped")
    (tmp_path / "stopped/done.json").unlink()  # As a kill between the last state and done.json leaves it.
    assert run(job(updates=32, patience=3), tmp_path / "stopped")
    assert ended(tmp_path / "stopped") == 20
    assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / "stopped"))
    assert hashes(tmp_path / "whole") == hashes(tmp_path / "stopped")
    assert hashes(tmp_path / "whole")[-1][0] == 20


def test_with_more_patience_it_goes_on_as_if_it_had_not_ended(tmp_path: Path, job: MakeJob) -> None:
    assert run(job(updates=30), tmp_path / "whole")
    assert run(job(updates=18, patience=3), tmp_path / "without")
    assert ended(tmp_path / "without") == 18, "its last validation is not one of validate_every"
    assert run(job(updates=30, patience=3), tmp_path / "without")
    assert ended(tmp_path / "without") == 20
    shutil.copytree(tmp_path / "without", tmp_path / "more")
    for name, patience in (("without", {}), ("more", {"patience": 4})):
        assert run(job(updates=30, **patience), tmp_path / name)
        assert ended(tmp_path / name) == 30
        assert same(final_weights(tmp_path / "whole"), final_weights(tmp_path / name))
