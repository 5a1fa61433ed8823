"""A process of its own says whether passes can be recorded; training goes on either way."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from recorder import CpuRecorder

from nmt.config import InputError, Job
from nmt.training.packed import rehearsal
from nmt.training.packed.recording import CudaGraphs

CPU = torch.device("cpu")
MakeJob = Callable[..., dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a training."""
    monkeypatch.setenv("NMT_GRAPH", "1")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job()))
    return tmp_path


class Frozen(CpuRecorder):
    """Its recordings repeat one dropout."""

    def record(self, run: Callable[[], None]) -> Callable[[], None]:
        repeat = super().record(run)

        def frozen() -> None:
            torch.manual_seed(1)
            repeat()

        return frozen


@pytest.mark.parametrize("shards", [1, 8])
def test_a_rehearsal_ends_well_if_passes_are_recorded(folder: Path, tiny_job: MakeJob, shards: int) -> None:
    rehearsal.rehearse(Job.model_validate(tiny_job(shards=shards)), CPU, CpuRecorder())
    with pytest.raises(InputError, match="nothing was recorded"):
        rehearsal.rehearse(Job.model_validate(tiny_job(shards=shards)), CPU, Frozen())


def test_the_program_rehearses_the_training_in_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehearsal, "die_with_parent", lambda: None)
    monkeypatch.setattr(sys, "argv", ["rehearsal", str(folder), "cpu"])
    rehearsal.main(CpuRecorder)
    with pytest.raises(SystemExit, match="nothing was recorded"):
        rehearsal.main(Frozen)


def test_a_process_that_fails_is_told_and_not_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here for want of a GPU. It has no rank: the training's others are not in it."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not rehearsal.recording_works(folder, CPU)
    output = capsys.readouterr().err
    assert output.startswith("training continues without recordings, more slowly: ")
    assert "_graph_pool_handle" in output  # What torch without CUDA says.
    assert not (folder / rehearsal.REHEARSED).exists()


def test_success_is_remembered_for_the_same_device(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []

    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        started.append(command)
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    assert rehearsal.recording_works(folder, CPU)
    assert rehearsal.recording_works(folder, CPU)
    assert len(started) == 1
    (folder / rehearsal.REHEARSED).write_text("another GPU, torch 2.0")
    assert rehearsal.recording_works(folder, CPU)
    assert len(started) == 2


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (subprocess.TimeoutExpired("rehearsal", 480), "a recording was not ready after 480 seconds"),
        (subprocess.CompletedProcess([], -9, "", ""), "exit status -9"),
        (subprocess.CompletedProcess([], 1, "", "Warning: x\ntoo little memory\n"), "too little memory"),
    ],
)
def test_why_recording_does_not_work(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: Any, reason: str
) -> None:
    def run(command: list[str], **how: Any) -> subprocess.CompletedProcess[str]:
        assert how["timeout"] == 480
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.setattr(subprocess, "run", run)
    assert not rehearsal.recording_works(folder, CPU)
    assert capsys.readouterr().err == f"training continues without recordings, more slowly: {reason}\n"


@pytest.mark.parametrize(
    ("device", "packed", "works", "found"),
    [
        ("cuda:1", "1", True, CudaGraphs), ("cuda:1", "1", False, type(None)), ("cuda:1", "0", True, type(None)),
        ("cpu", "1", True, type(None)),
    ],
)  # fmt: skip
def test_what_records_a_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch, device: str, packed: str, works: bool, found: type
) -> None:
    monkeypatch.setenv("NMT_GRAPH", packed)
    monkeypatch.setattr(rehearsal, "recording_works", lambda *_: works)
    monkeypatch.setattr(CudaGraphs, "__init__", lambda self: None)
    assert type(rehearsal.recorder_for(folder, torch.device(device))) is found
