from pathlib import Path

import pytest
from clones import STAGES, TINY, Clone, write_tiny_corpus
from shared import shared


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after its first `dvc repro`."""

    def run(folder: Path) -> None:
        clone = Clone(folder)
        write_tiny_corpus(folder)
        clone.params(corpus="tiny", overrides=TINY)
        assert clone.repro() == STAGES

    return Clone(shared(tmp_path_factory, "finished", run))
