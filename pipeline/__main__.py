"""Run one stage: `python -m pipeline STAGE`, the command of every stage in dvc.yaml.

The runner hands a stage its tracker, turns SIGTERM into `Interrupted`, writes the status file that orchestrators read,
and turns errors into one sentence and an exit status. Stages are plain functions `run(tracker)`, some with further
arguments, and know none of it.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from inspect import signature
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from humanize import naturalsize, precisedelta

from nmt.common.processes import INTERRUPTED, die_with_parent
from nmt.config import InputError
from pipeline.common import stage
from pipeline.common.paths import SCORES
from pipeline.common.stage import Interrupted
from pipeline.config import graph, scorer
from pipeline.imports import collection_paused
from pipeline.runs import stage_tracker
from pipeline.tracking import provenance
from pipeline.training.progress import TrainingProgress

FROM_THE_MACHINE = frozenset(
    (
        errno.EACCES,
        errno.EAGAIN,
        errno.EDQUOT,
        errno.EFBIG,
        errno.EIO,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOENT,
        errno.ENOSPC,
        errno.EPERM,
        errno.EROFS,
        errno.ESTALE,
    )
)
"""Errors of files and disks that one sentence explains; any other OSError is our fault: it keeps its traceback."""


def report_status(name: str, state: str, message: str = "") -> None:
    """Write the stage's status file: exit statuses do not survive torchrun and dvc.

    `<state root>/status/<stage>.json` (`$WMT_STATUS` names another folder) says `running`, `done`, `interrupted`,
    `refused` (the user must change something) or `failed`.
    """
    folder = Path(os.environ.get("WMT_STATUS") or stage.state_root() / "status")
    content = {"stage": name, "state": state, "message": message, "pid": os.getpid(), "time": time.time()}
    stage.write_json(folder / f"{name}.json", content)


def report_end(name: str, state: str, message: str, sentence: str = "") -> None:
    """Print how a stage ended, then write its status file, unless what ended the stage is in the way of that too."""
    if sentence:
        print(f"{name}: {sentence}", file=sys.stderr)
    with suppress(OSError, InputError):
        report_status(name, state, message)


def further_arguments(run: Callable[..., None]) -> dict[str, Any]:
    """Return what a stage's function gets besides the tracker: of the three below, those that its signature names.

    They are passed, not imported, so a change of their code reruns no stage.
    """
    known: dict[str, Callable[[], Any]] = {
        "provenance": lambda: provenance.of_present_run,
        "launch": _training_starter,
        "progress": lambda: TrainingProgress,
    }
    return {name: make() for name, make in known.items() if name in signature(run).parameters}


def _training_starter() -> Callable[[Path, Callable[[], None]], int]:
    """Return the function that starts the processes of a training, with its state mirrored. It imports torch."""
    from pipeline.training import mirror

    return mirror.train


def summary(name: str, seconds: float) -> str:
    """Return what a finished stage prints: its time, its outputs with their sizes, and the score where it is one."""
    declared = graph.stages().get(name)
    outs = declared.outs if declared else []
    sizes = ", ".join(f"{out} ({naturalsize(size_of(Path(out)))})" for out in outs if Path(out).exists())
    time_ = f"{seconds:.1f} s" if seconds < 60 else precisedelta(round(seconds))
    scores = [scorer.summary(stage.read_json(SCORES))] if str(SCORES) in outs else []
    return "\n".join([f"{name}: {time_}{': ' if sizes else ''}{sizes}", *scores])


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of the files in a folder."""
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


def stop(signum: int, frame: FrameType | None) -> None:
    """Raise Interrupted at SIGTERM. Later ones are ignored, so that the stage can save its work."""
    signal.signal(signum, lambda *_: None)
    raise Interrupted(f"stopped by {signal.Signals(signum).name}")


def run(name: str) -> NoReturn:
    """Run a stage. Exit status 0, 1 for an error that the user can fix, 75 when interrupted and resumable."""
    signal.signal(signal.SIGTERM, stop)
    try:
        if "DVC_STAGE" in os.environ:
            # DVC does not pass signals on.
            supervisor = os.environ.get("WMT_SUPERVISOR")
            die_with_parent(signal.SIGTERM, None if supervisor is None else int(supervisor))
        report_status(name, "running")
        with collection_paused():
            module = importlib.import_module(f"pipeline.stages.{name}")
        started = time.monotonic()
        with stage_tracker.open_run(name) as tracker:
            module.run(tracker, **further_arguments(module.run))
        print(summary(name, time.monotonic() - started), flush=True)
        report_status(name, "done")
    except (Interrupted, KeyboardInterrupt) as error:
        report_end(name, "interrupted", str(error), "interrupted; run the same command again to resume")
        sys.exit(INTERRUPTED)
    except InputError as error:
        report_end(name, "refused", str(error), str(error))
        sys.exit(1)
    except OSError as error:
        if error.errno not in FROM_THE_MACHINE:
            report_end(name, "failed", str(error))
            raise
        sentence = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        report_end(name, "failed", sentence, sentence)
        sys.exit(1)
    except BaseException as error:
        report_end(name, "failed", repr(error))
        raise
    sys.exit(0)


def main() -> NoReturn:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="Run one stage of dvc.yaml.")
    parser.add_argument("stage", choices=list(graph.stages()), help="its name in dvc.yaml")
    run(parser.parse_args().stage)


if __name__ == "__main__":
    main()
