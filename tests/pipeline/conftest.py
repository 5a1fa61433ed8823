from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not of the session: while it runs, no test can start an event loop."""
    with chromium() as started:
        yield started


@pytest.fixture
def empty_repository(here: Path) -> Path:
    """A folder that commands take for the repository."""
    (here / "data/catalog").mkdir(parents=True)
    (here / "dvc.yaml").touch()
    return here
