"""A finished run, which the tests of `dvc repro` and of the flows share."""

from __future__ import annotations

import os

import pytest
from clones import STAGES, TINY, Clone, write_tiny_corpus
from filelock import FileLock


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after its first `dvc repro`, which one of pytest's processes makes for all."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with FileLock(folder / "finished.lock"):
        clone = Clone(folder / "finished")
        if not (clone.folder / "results/report.html").exists():
            write_tiny_corpus(clone.folder)
            clone.params(corpus="tiny", overrides=TINY)
            assert clone.repro() == STAGES
    return clone
