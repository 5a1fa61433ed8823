"""One run of the pipeline in its own copy of the repository, through pipeline.runs.supervisor."""

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
from pipeline.common import stage
from pipeline.runs import copies

How = Literal["ran", "cached", "unchanged"]
PATIENCE = 25.0
"""Seconds that `close` waits. Prefect kills a cancelled run after 30; the supervisor then ends its children alone."""
DVC_ADVICE = ("To push cached outputs", "Updating lock file", "Generating lock file")
"""Prefixes of log lines that advise whoever works in the copy; not passed on."""
RUN_ENVIRONMENT_PREFIXES = ("PREFECT__", "DVC_ROOT", "DVC_STAGE", "DVC_EXP_", "WMT_PARENT")
"""Prefixes of environment variables that belong to another run; not passed on."""
DIGITS = 8
"""A run's name ends with this many last characters of its id: the first ones of Prefect's ids are a time."""


def unique_name(name: str, identity: str) -> str:
    """Return `name` with the end of the run's id, as a valid name of a DVC experiment and a folder."""
    end = identity[-DIGITS:]
    safe = re.sub(r"[^A-Za-z0-9_-]+", "_", name).strip("-")
    return safe if safe.endswith(end) else "-".join(filter(None, [safe[:100], end]))


class Run:
    """A run. `log` gets every line that DVC and the stages print.

    The unique `name` is that of its folder, its record and its DVC experiment. `identity` is the orchestrator's id of
    the run, `parent` the record of the study that it belongs to.
    """

    def __init__(
        self, original: Path, name: str, identity: str, log: Callable[[str], None], parent: str | None = None
    ) -> None:
        self.original, self.name, self.identity, self.log, self.parent = original, name, identity, log, parent
        self.state_root = (original / stage.state_root()).absolute()
        self.folder = self.state_root / "runs" / name
        self.copy = copies.repository(self.folder)
        self.status = self.folder / "status"
        self.changes: Mapping[str, Any] = {}
        """What `begin` sets in the copy's params.yaml."""
        self.logged = 0
        """Bytes of the log that were passed on."""
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self, changes: Mapping[str, Any], target: str | None) -> dict[str, list[str]]:
        """Make the copy; returns the stages up to `target` in DVC's order, each with its predecessors.

        Raises InputError if the user must change something.
        """
        self.changes = changes
        reply = self._ask({"copy": changes, "target": target}, lambda: None)
        found: dict[str, list[str]] = reply["stages"]
        return found

    def repro(self, name: str, force: bool, tick: Callable[[], None]) -> How | None:
        """Run one stage where it has changed, calling `tick` about twice a second; None if it failed.

        A stage that DVC restored from its cache has written no status file.
        """
        since = time.time()
        changed = self._ask_again({"repro": name, "force": force}, tick)["changed"]
        if not changed:
            return None if changed is None else "unchanged"
        return "ran" if self.reported(name, since) else "cached"

    def save(self, stages: Iterable[str]) -> None:
        """Publish the results, and bring them to the original repository as a DVC experiment of the run's name.

        `stages`: those of the run; none: all. Without their names DVC requires the outputs of all stages.
        """
        self._ask_again({"record": list(stages)})
        save = ("save", "--force", "--name", self.name, *stages)
        for words in (save, ("push", "--no-cache", "--force", "origin", self.name)):
            if self.dvc("exp", *words) != 0:
                raise ChildProcessError(f"`dvc exp {words[0]}` failed; its message is in the log")

    def dvc(self, *arguments: str, tick: Callable[[], None] = lambda: None) -> int:
        """Return the exit status of a DVC command in the copy."""
        status: int = self._ask_again({"dvc": arguments}, tick)["status"]
        return status

    def reported(self, name: str, since: float) -> dict[str, Any]:
        """Return a stage's status file, if it was written after `since` (seconds since 1970), else nothing."""
        with contextlib.suppress(InputError):
            content = stage.read_json(self.status / f"{name}.json")
            if content["time"] >= since:
                return content
        return {}

    def close(self) -> None:
        """End all processes of the run, and wait for them, but not longer than an orchestrator does. Once is enough."""
        if self.process is None or self.process.stdin is None or self.process.stdin.closed:
            return
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        deadline = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
            self._drain()
        self._drain()
        os.close(self.replies)

    def remove(self) -> None:
        """Remove the copy of a run whose results are saved; its record and its log stay."""
        copies.remove(self.folder)

    def _start(self) -> subprocess.Popen[bytes]:
        self.status.mkdir(parents=True, exist_ok=True)
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(RUN_ENVIRONMENT_PREFIXES)},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONUNBUFFERED": "1",
            "WMT_STATE": str(self.state_root),
            **({"WMT_STATE_STORE": url} if (url := stage.state_store()) else {}),
            "WMT_STATUS": str(self.status),
            "WMT_RUN": self.name,
            "WMT_FLOW_RUN": self.identity,
            "DVC_EXP_NAME": self.name,
            **({"WMT_PARENT": self.parent} if self.parent else {}),
        }
        self.replies, theirs = os.pipe()
        log = self.folder / "log"
        self.logged = log.stat().st_size if log.exists() else 0
        # A file: if this process were killed, a pipe would break and end a stage that is saving its state.
        with log.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "pipeline.runs.supervisor", str(self.folder), str(theirs)],
                cwd=self.original,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=file,
                pass_fds=(theirs,),
                start_new_session=True,
            )
        os.close(theirs)
        return process

    def _ask_again(self, command: Mapping[str, Any], tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """As `_ask`, in the same copy, after the supervisor may have died: a new one takes its place."""
        if self.process is not None and self.process.poll() is not None:
            self.begin(self.changes, None)
        return self._ask(command, tick)

    def _ask(self, command: Mapping[str, Any], tick: Callable[[], None]) -> dict[str, Any]:
        """Return the supervisor's reply. Raises InputError if it refuses, ChildProcessError if it fails or dies."""
        if self.process is None or self.process.poll() is not None:
            self.process = self._start()
        assert self.process.stdin is not None
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
        """Pass on the new lines of the log."""
        with (self.folder / "log").open("rb") as file:
            file.seek(self.logged)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self.logged += len(whole)
        for line in whole.decode(errors="replace").split("\n"):
            if line.strip() and not line.startswith(DVC_ADVICE):
                self.log(line)
