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
    """The stage was asked to stop; what it had done is kept, and running it again goes on from there."""


class Tracker(Protocol):
    """Who keeps a run's metrics and artifacts. Stages are handed one; they do not know which."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """Numbers, at an update of training or for the run as a whole."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Facts that are not numbers."""


def state_root() -> Path:
    """Where training state, download caches and tracking live, outside DVC's outputs.

    `$WMT_STATE`; else `work/` of the repository that DVC runs in (of the original one in a queued experiment).
    """
    if root := os.environ.get("WMT_STATE"):
        return Path(root)
    return Path(os.environ.get("DVC_ROOT", ".")) / "work"


def check_versions(wanted: Mapping[str, str]) -> None:
    """Raise InputError where an installed library is not the version that the configuration was resolved with."""
    for package, version in wanted.items():
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
    """A file that another stage wrote; raises InputError where it is missing or not a JSON object."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): run `dvc repro` to make it again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object: run `dvc repro` to make it again")
    return content
