"""The process between an orchestrator and DVC: it makes a run's copy of the repository, runs `dvc` there, and ends it.

DVC passes no signal on, and an orchestrator may die without a word. So this one lives in a session of its own, and
ends what it started when the pipe that its commands come by is closed, however that came about: SIGTERM, time for a
checkpoint, SIGKILL. It works in one process, because importing DVC takes longer than most of what it is asked.

`python -m pipeline.runs.supervisor FOLDER REPLIES`, started in the original repository: FOLDER is the run's; commands
are lines of JSON on standard input, and so are the replies on the file descriptor REPLIES.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from nmt.config import InputError
from pipeline.runs import copies
from pipeline.runs.guard import adopt_orphans, end_children

GRACE = 90.0
"""Seconds between SIGTERM and SIGKILL: more than a stage gives torchrun, and then takes to tell MLflow."""
Reply = dict[str, Any]


class Supervisor:
    """Runs commands one after the other; `stop` ends the one at work and lets no other begin."""

    def __init__(self, folder: Path, original: Path) -> None:
        self.folder, self.original = folder, original
        self.commands: queue.Queue[Mapping[str, Any] | None] = queue.Queue()
        self.stopping = threading.Event()
        self.once = threading.Lock()

    def listen(self, stream: IO[str]) -> None:
        """Take commands until the other side closes the pipe."""
        for line in stream:
            self.commands.put(json.loads(line))
        self.stop()

    def stop(self) -> None:
        """End what runs, then this process. The pipe's end and SIGTERM may ask for it one after the other."""
        with self.once:
            if self.stopping.is_set():
                return
            self.stopping.set()
        self.commands.put(None)
        end_children(GRACE)
        # What DVC itself may be at, a checksum of many gigabytes say, is not waited for: it is made again.
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
            if self.stopping.is_set():
                return
            replies.write(json.dumps(reply) + "\n")
            replies.flush()

    def answer(self, command: Mapping[str, Any]) -> Reply:
        """`{"copy": changes of params.yaml, "target": ..}` or `{"dvc": its arguments}`."""
        if "copy" in command:
            os.chdir(copies.make(self.original, self.folder, command["copy"]))
            return {"stages": stages(command["target"])}
        from dvc.cli import main

        return {"status": main(command["dvc"])}


def stages(target: str | None) -> dict[str, list[str]]:
    """The stages up to `target` in the order in which DVC runs them, each with those that it follows directly.

    One that it follows by way of another, too, is left out, for pictures of the graph to be read. Raises InputError
    for a target that is no stage.
    """
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc.repo.reproduce import plan_repro

    with Repo() as repo:
        try:
            wanted = repo.stage.collect(target)
        except DvcException as error:
            known = ", ".join(f"`{stage.addressing}`" for stage in plan_repro(repo.index.graph))
            raise InputError(f"target: `{target}` is no stage of dvc.yaml; there is {known}") from error
        graph = repo.index.graph
        direct: dict[str, list[str]] = {}
        above: dict[str, set[str]] = {}
        for stage in plan_repro(graph, wanted):
            before = [other.addressing for other in graph.successors(stage)]
            direct[stage.addressing] = [one for one in before if not any(one in above[other] for other in before)]
            above[stage.addressing] = set(before).union(*(above[other] for other in before))
        return direct


def main() -> int:
    """The process."""
    folder, replies = Path(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w", encoding="utf-8")
    commands = os.fdopen(os.dup(0), encoding="utf-8")
    # Stages inherit standard input, and must not take commands.
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    adopt_orphans()
    copies.clean(folder.parent)
    with copies.held(folder):
        supervisor = Supervisor(folder, Path.cwd())
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=supervisor.stop, daemon=True).start())
        threading.Thread(target=supervisor.listen, args=(commands,), daemon=True).start()
        with contextlib.suppress(BrokenPipeError):
            supervisor.work(replies)
    return 0


if __name__ == "__main__":
    sys.exit(main())
