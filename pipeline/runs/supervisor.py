"""The process between an orchestrator and DVC: it copies the repository for a run and runs `dvc` in the copy.

DVC passes no signal on to its stages, and an orchestrator may be killed. So this process leads a session of its own,
and when the pipe of its commands closes, for any reason, it ends what it started: SIGTERM, time to save the state,
SIGKILL. One process answers all commands of a run, because most of them take less time than importing DVC.

`python -m pipeline.runs.supervisor FOLDER REPLIES`, started in the original repository: FOLDER is the run's; commands
are lines of JSON on standard input; replies are lines of JSON on the file descriptor REPLIES.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from nmt.config import InputError
from pipeline.common.paths import CONFIG
from pipeline.config import graph
from pipeline.runs import copies, stage_tracker
from pipeline.runs.guard import adopt_orphans, end_children
from pipeline.runs.record import current_record

GRACE = 90.0
"""Seconds between SIGTERM and SIGKILL: more than a stage gives torchrun, and then takes to publish its record."""


class Supervisor:
    """Runs commands one after the other; `stop` ends the current one and starts no other."""

    def __init__(self, folder: Path, original: Path) -> None:
        self.folder, self.original = folder, original
        self.commands: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self.stopping = threading.Lock()
        self.stopped = threading.Event()

    def listen(self, stream: IO[str]) -> None:
        """Queue commands until the other side closes the pipe, then stop."""
        for line in stream:
            self.commands.put(json.loads(line))
        self.stop()

    def stop(self) -> None:
        """End the children, then this process. The pipe's end and SIGTERM may both call it."""
        if not self.stopping.acquire(blocking=False):
            return
        self.commands.put(None)
        end_children(GRACE)
        self.stopped.set()
        # DVC itself may be computing the checksum of a large file. It is not waited for: the next run repeats it.
        time.sleep(5.0)
        os._exit(1)

    def work(self, replies: IO[str]) -> None:
        """Answer commands."""
        while (command := self.commands.get()) is not None:
            try:
                reply = self.answer(command)
            except InputError as error:
                reply = {"refused": str(error)}
            except OSError as error:
                reply = {"failed": str(error)}
            if self.stopping.locked():
                return
            replies.write(json.dumps(reply) + "\n")
            replies.flush()

    def answer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run `{"copy": changes of params.yaml, "target"}`, `{"repro": stage, "force"}`, `{"record": stages}` or
        `{"dvc": arguments}`."""
        if "copy" in command:
            os.chdir(copies.make(self.original, self.folder, command["copy"]))
            return {"stages": stages(command["target"])}
        if "repro" in command:
            return {"changed": reproduce(command["repro"], command["force"])}
        if "record" in command:
            record_results(command["record"])
            return {}
        from dvc.cli import main

        return {"status": main(command["dvc"])}


def reproduce(stage: str, force: bool) -> bool | None:
    """Run one stage or restore it from DVC's cache; returns whether it had changed, None if it failed."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    try:
        with Repo() as repo:
            return bool(repo.reproduce(stage, single_item=True, force=force))
    except DvcException:
        logging.getLogger("dvc").exception("")  # In DVC's own words, as its command line does.
        return None


def record_results(names: Sequence[str]) -> None:
    """Complete the record of the run that works here, cached stages included, and publish it: the run ends here."""
    try:
        if (record := current_record()) is not None:
            record.create(CONFIG)
            record.finish([name for name in graph.stages() if not names or name in names])
            stage_tracker.publish(record, "run")
    except stage_tracker.FAILURES as error:
        print(f"run: tracking: {error}; the run goes on without it", file=sys.stderr)


def stages(target: str | None) -> dict[str, list[str]]:
    """Return the stages up to `target` in order, each with its direct predecessors; all without a target.

    A predecessor of another predecessor is left out, which keeps pictures of the graph readable. Raises InputError
    if `target` is no stage.
    """
    declared = graph.stages()
    if target is not None and target not in declared:
        known = ", ".join(f"`{name}`" for name in declared)
        raise InputError(f"target: `{target}` is no stage of dvc.yaml; there is {known}")
    above = {name: graph.upstream(name, declared)[:-1] for name in declared}
    return {
        name: [one for one in above[name] if not any(one in above[other] for other in above[name])]
        for name in ([*above[target], target] if target else declared)
    }


def main() -> int:
    """Run the process."""
    folder, replies = Path(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    # Stages inherit standard input and must not read commands from it.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    adopt_orphans()
    # Inherited by stages: one that starts while this process is killed ends too.
    os.environ["WMT_SUPERVISOR"] = str(os.getpid())
    with copies.held(folder):
        copies.clean(folder.parent)
        supervisor = Supervisor(folder, Path.cwd())
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=supervisor.stop, daemon=True).start())
        threading.Thread(target=supervisor.listen, args=(commands,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            supervisor.work(replies)
        # DVC may return from a stage whose processes are still saving.
        supervisor.stopped.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())
