"""Model folders with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_folders import folder_of, parser_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "model")


@pytest.fixture
def parser(tmp_path: Path) -> Path:
    """A parser with random weights, which writes no more than a few symbols: its outputs have to be repaired."""
    return parser_of(tmp_path / "parser", "vinyals")
