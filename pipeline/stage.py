"""What stages share: the tracker that they are handed, interruption, where state lives, and JSON files."""

from __future__ import annotations

import importlib.metadata
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nmt.common.files import writing
from nmt.config import InputError


class Interrupted(Exception):
    """The stage was asked to stop. Its finished work stays, and the same command resumes it."""


class Tracker(Protocol):
    """Records what a stage measures. The runner hands one to each stage."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """Record numbers, of an update of training or of the whole stage."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record facts that are not numbers."""


def state_root() -> Path:
    """Return the folder of training states, downloads and records of runs, outside DVC's outputs.

    It is `$WMT_STATE`, or else `work/` of the repository in which DVC runs; in a queued experiment, of the original.
    """
    if root := os.environ.get("WMT_STATE"):
        return Path(root)
    return Path(os.environ.get("DVC_ROOT", ".")) / "work"


def check_versions(resolved: Mapping[str, str]) -> None:
    """Raise InputError if the installed version of a library is not the one in the resolved configuration."""
    for package, version in resolved.items():
        installed = importlib.metadata.version(package.replace("_", "-"))
        if installed != version:
            raise InputError(
                f"{package} {installed} is installed, but the run was resolved with {version}: install the locked "
                f"versions with `make setup`, or resolve again with `dvc repro --force --single-item resolve`"
            )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write `content` whole or not at all, keys in the order given."""
    with writing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Return a file that another stage wrote; raises InputError if it is missing or not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): run `dvc repro` to make it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: run `dvc repro` to make it again")
    return content
