"""Where the tests of records and of their publication work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from records import configure

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a resolved configuration as working directory; returns its state root."""
    (tmp_path / "work").mkdir()
    (tmp_path / "data/catalog").mkdir(parents=True)
    shutil.copyfile(REPOSITORY / "dvc.yaml", tmp_path / "dvc.yaml")
    for folder in ("nmt", "pipeline"):
        (tmp_path / folder).symlink_to(REPOSITORY / folder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("WMT_RUN", raising=False)
    monkeypatch.setenv("WMT_TRACKING_PATIENCE", "200")
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "work"))
    # The publishing process runs in this folder, and finds the code of this copy.
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    configure({})
    return tmp_path / "work"
