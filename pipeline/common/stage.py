"""What stages share: the tracker that they get, interruption, the state root, and JSON files."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from nmt.common.files import writing
from nmt.config import InputError


class Interrupted(Exception):
    """The stage was asked to stop. Its finished work stays, and the same command resumes it."""


class Tracker(Protocol):
    """What a stage may report: `StageTracker` writes it into the run's record, which MLflow is sent."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """Record numbers, of an update of training or of the whole stage."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Record facts that are not numbers."""


def state_root() -> Path:
    """Return the folder of training states, downloads and records of runs, outside DVC's outputs.

    It is `$WMT_STATE`, if that is a folder, or else `work/`, both relative to the repository in which DVC runs; in a
    queued experiment, to the original. Raises InputError for the address of a store with one slash.
    """
    root = os.environ.get("WMT_STATE", "")
    if re.match("[a-z0-9]+:/(?!/)", root):
        raise InputError(f"WMT_STATE is {root}: write {root.replace(':/', '://', 1)} for a store, or name a folder")
    return Path(os.environ.get("DVC_ROOT", ".")) / (root if root and "://" not in root else "work")


def state_store() -> str | None:
    """Return the URL of the store that training's states are copied to, if there is one.

    It is `$WMT_STATE_STORE`, or `$WMT_STATE` if that is a URL.
    """
    root = os.environ.get("WMT_STATE", "")
    return os.environ.get("WMT_STATE_STORE") or (root if "://" in root else None)


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


def read_json(path: Path, *keys: str, remedy: str = "run `dvc repro` to make it again") -> dict[str, Any]:
    """Return the JSON object in a file; raises InputError with `remedy` if it is missing, is none, or lacks `keys`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: {remedy}")
    if missing := [key for key in keys if key not in content]:
        raise InputError(f"{path} has no {', '.join(missing)}: {remedy}")
    return content
