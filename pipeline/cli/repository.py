"""The check that a command is run in the repository's root."""

from __future__ import annotations

from pathlib import Path

from nmt.config import InputError
from pipeline.config.paths import CATALOGS, DVC_YAML


def check_folder() -> None:
    """Raise InputError outside the repository's root, where a command would find nothing, or write."""
    for path in (DVC_YAML, CATALOGS):
        if not path.exists():
            raise InputError(f"{path} is not in {Path.cwd()}: run this in the repository's root")
