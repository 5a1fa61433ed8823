"""One run of the pipeline in a copy of the repository of its own, by way of pipeline.runs.supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from nmt.config import InputError
from pipeline import stage
from pipeline.runs import copies

How = Literal["ran", "cached", "unchanged"]
PATIENCE = 25.0
"""Seconds that `close` waits. Prefect kills what it cancels after 30; the supervisor goes on ending its tree alone."""
_SIGNS: dict[How, str] = {
    "ran": "Running stage '{}':",
    "cached": "Stage '{}' is cached - skipping run, checking out outputs",
    "unchanged": "Stage '{}' didn't change, skipping",
}
"""What DVC prints."""
_NOT_TOLD = ("Use `dvc push` to", "To push cached outputs", "Updating lock file", "Generating lock file")
"""How lines begin that are advice for who works in the copy."""
_OTHERS = ("PREFECT__", "DVC_ROOT", "DVC_STAGE", "DVC_EXP_")
"""How variables begin that tell of another run."""
DIGITS = 8
"""Characters of a run's id that its name ends with. The last ones: Prefect's ids begin with the time."""


def unique_name(name: str, identity: str) -> str:
    """Return `name` with the end of the run's id, as a DVC experiment and a folder can be named."""
    end = identity[-DIGITS:]
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("-")
    return safe if safe.endswith(end) else "-".join(filter(None, [safe[:100], end]))


class Run:
    """A run named `name`, tracked as `identity`; `tell` is handed every line that is printed.

    The name is that of its folder and of its DVC experiment, and no other run's.
    """

    def __init__(self, original: Path, name: str, identity: str, tell: Callable[[str], None]) -> None:
        self.original, self.name, self.identity, self.tell = original, name, identity, tell
        self.state_root = (original / stage.state_root()).absolute()
        self.folder = self.state_root / "runs" / name
        self.copy = copies.repository(self.folder)
        self.status = self.folder / "status"
        self.told = 0
        """Bytes of the log that were told."""
        self.lines: list[str] = []
        """What the last command printed."""
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, changes: Mapping[str, Any], target: str | None) -> dict[str, list[str]]:
        """Make the copy; returns the stages up to `target` in DVC's order, each with those that it follows.

        Raises InputError where the user must mend something.
        """
        reply = self._ask({"copy": changes, "target": target}, lambda: None)
        found: dict[str, list[str]] = reply["stages"]
        return found

    def repro(self, name: str, force: bool, tick: Callable[[], None]) -> How | None:
        """`dvc repro --single-item` of one stage, calling `tick` about twice a second; None where it failed."""
        forced = ["--force"] if force else []
        if self.dvc("repro", "--single-item", *forced, name, tick=tick) != 0:
            return None
        return next((how for how, sign in _SIGNS.items() if sign.format(name) in self.lines), "unchanged")

    def save(self, stages: Iterable[str]) -> None:
        """Bring what the stages made to the original repository as a DVC experiment of the run's name."""
        # Without their names DVC asks for the outputs of those, too, that the run leaves out.
        save = ("save", "--force", "--name", self.name, *stages)
        for words in (save, ("push", "--no-cache", "--force", "origin", self.name)):
            if self.dvc("exp", *words) != 0:
                raise ChildProcessError(f"`dvc exp {words[0]}` failed; what it said stands in the log")

    def dvc(self, *arguments: str, tick: Callable[[], None] = lambda: None) -> int:
        """The exit status of a DVC command in the copy. Raises ChildProcessError where the supervisor died."""
        if self.process is not None and self.process.poll() is not None:
            # Another takes its place, in the same copy.
            self.begin({}, None)
        status: int = self._ask({"dvc": arguments}, tick)["status"]
        return status

    def reported(self, name: str, since: float) -> dict[str, Any]:
        """What a stage's status file says, if it was written after `since` (seconds since 1970)."""
        with contextlib.suppress(InputError):
            content = stage.read_json(self.status / f"{name}.json")
            if content["time"] >= since:
                return content
        return {}

    def close(self) -> None:
        """End whatever runs, and wait for that, but not for longer than an orchestrator does."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            self._drain()
        self._drain()
        os.close(self.replies)

    def remove(self) -> None:
        """Remove the folder of a run whose results are saved."""
        copies.remove(self.folder)

    def _start(self) -> subprocess.Popen[bytes]:
        self.status.mkdir(parents=True, exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(_OTHERS)},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "WMT_STATE": str(self.state_root),
            "WMT_STATUS": str(self.status),
            "WMT_RUN": self.identity,
            "DVC_EXP_NAME": self.name,
        }
        self.replies, theirs = os.pipe()
        log = self.folder / "log"
        self.told = log.stat().st_size if log.exists() else 0
        # A file, because a pipe would break, and with it a stage that saves a checkpoint, if this process were killed.
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.runs.supervisor", str(self.folder), str(theirs)],
                cwd=self.original, env=environment, stdin=subprocess.PIPE, stdout=file, stderr=file,
                pass_fds=(theirs,), start_new_session=True,
            )  # fmt: skip
        os.close(theirs)
        return process

    def _ask(self, command: Mapping[str, Any], tick: Callable[[], None]) -> dict[str, Any]:
        """The supervisor's reply. Raises InputError and ChildProcessError for what it could not do."""
        if self.process is None or self.process.poll() is not None:
            self.process = self._start()
        assert self.process.stdin is not None
        self.lines = []
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(command).encode() + b"\n")
            self.process.stdin.flush()
        reply = b""
        while not reply.endswith(b"\n"):
            if select.select([self.replies], [], [], 0.5)[0]:
                chunk = os.read(self.replies, 65536)
                if not chunk:
                    self._drain()
                    raise ChildProcessError(f"the process that runs DVC died, status {self.process.wait()}")
                reply += chunk
            self._drain()
            tick()
        answer: dict[str, Any] = json.loads(reply)
        if "refused" in answer:
            raise InputError(answer["refused"])
        if "failed" in answer:
            raise ChildProcessError(answer["failed"])
        return answer

    def _drain(self) -> None:
        """Tell the lines of the log that were written since."""
        with (self.folder / "log").open("rb") as file:
            file.seek(self.told)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.told += len(whole)
        for line in whole.decode(errors="replace").split("\n"):
            self.lines.append(line)
            if line.strip() and not line.startswith(_NOT_TOLD):
                self.tell(line)
