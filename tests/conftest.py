"""What all tests share."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import jaxtyping
import pytest

# The shapes and types in nmt's signatures are checked while tests run; the hook must come before nmt is imported.
jaxtyping.install_import_hook("nmt", "beartype.beartype")

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("deterministic")


@pytest.fixture(scope="session")
def real() -> Path:
    """A folder of real text beside the repository, for the tests that measure on it."""
    folder = Path(__file__).resolve().parents[1].parent / "shared/real"
    if not folder.is_dir():
        pytest.skip("real text is not here: it stands in ../shared/real beside the repository")
    return folder
