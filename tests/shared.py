"""What takes seconds to make, and one of pytest's processes makes for all; what checks types while tests run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from beartype import BeartypeConf, beartype
from filelock import FileLock

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as it is to mypy


def shared(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The path of what the first process that asks for this name makes there; the others wait."""
    folder = tmp_path_factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    made = path.with_name(f"{name}.made")
    with FileLock(path.with_name(f"{name}.lock")):
        if not made.exists():
            make(path)
            made.touch()
    return path
