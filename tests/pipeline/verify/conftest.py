"""A tiny run, which tests copy and change."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import pytest
from tiny_run import after_training, prepare, train_here, training

from pipeline.train import launch


@pytest.fixture(scope="session")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody changed."""
    folder = tmp_path_factory.mktemp("honest")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.delenv("WMT_STATE", raising=False)
        patch.delenv("DVC_ROOT", raising=False)
        prepare()
        training()
        after_training()
    return folder


@pytest.fixture
def run(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that run to work in and to change; training again happens in this process."""
    folder = shutil.copytree(honest, tmp_path / "run", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("WMT_STATE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    monkeypatch.setattr(launch, "torchrun", train_here)
    return folder
