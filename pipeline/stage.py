"""What all stages share: a main() that tells errors in one sentence, where state lives, and who listens to metrics."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Protocol

from nmt.common.files import writing
from nmt.common.processes import die_with_parent
from nmt.config import InputError

INTERRUPTED = 75
"""The exit status of a stage that was stopped and can be resumed (sysexits' EX_TEMPFAIL)."""


class Interrupted(Exception):
    """The stage was asked to stop; what it had done is kept, and running it again goes on from there."""


class Tracker(Protocol):
    """Who keeps a run's metrics and artifacts. Stages are handed one; they do not know which."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        """Numbers, at an update of training or for the run as a whole."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Facts that are not numbers."""

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """A file or a folder to keep with the run."""


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


def _report(name: str, state: str, message: str = "") -> None:
    """Tell orchestrators how the stage stands: exit statuses do not survive torchrun and dvc."""
    write_json(
        Path(os.environ.get("WMT_STATUS") or state_root() / "status") / f"{name}.json",
        {"stage": name, "state": state, "message": message, "pid": os.getpid(), "time": time.time()},
    )


def main(name: str, description: str | None, run: Callable[[Tracker], None]) -> NoReturn:
    """Run a stage as a command. Exit status 0, 1 for a user's error, 75 when interrupted and resumable.

    The status file `<state root>/status/<stage>.json` (`$WMT_STATUS` names another folder) says `running`, `done`,
    `interrupted`, `refused` (the user must mend something) or `failed`.
    """
    argparse.ArgumentParser(prog=f"python -m pipeline.{name}", description=description).parse_args()

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Interrupted(f"stopped by {signal.Signals(signum).name}")

    signal.signal(signal.SIGTERM, stop)
    if "DVC_STAGE" in os.environ:
        # DVC hands no signal on.
        die_with_parent(signal.SIGTERM)
    try:
        _report(name, "running")
        # The tracker carries no result, so it stands in no stage's dependencies: it is found by name.
        with importlib.import_module("pipeline.tracking.stage_tracker").open_run(name) as tracker:
            run(tracker)
        _report(name, "done")
    except (Interrupted, KeyboardInterrupt) as error:
        _report(name, "interrupted", str(error))
        print(f"{name}: interrupted, resumable: run it again to go on", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except InputError as error:
        _report(name, "refused", str(error))
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:
        _report(name, "failed", str(error))
        print(f"{name}: {error.strerror or error}{f': {error.filename}' if error.filename else ''}", file=sys.stderr)
        sys.exit(1)
    except BaseException as error:
        _report(name, "failed", repr(error))
        raise
    sys.exit(0)
