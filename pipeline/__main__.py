"""Run one stage: `python -m pipeline STAGE`, the command of every stage in dvc.yaml.

The runner turns SIGTERM into `Interrupted`, writes the status file that orchestrators read, tells MLflow how the run
ended, and turns errors into one sentence and an exit status. Stages are plain functions `run()`, some with arguments,
and know none of it.
"""

import argparse
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from humanize import naturalsize, precisedelta

from nmt.common.files import size_of, write_json
from nmt.common.processes import INTERRUPTED, Interrupted, die_with_parent, spare_imports
from nmt.errors import InputError, tell
from pipeline.config import graph, wording
from pipeline.config.paths import SCORES, read_json, status_file
from pipeline.tracking import publish, source
from pipeline.tracking.follow import follow
from pipeline.trainings.progress import TrainingProgress


def report_status(name: str, state: str, message: str = "") -> None:
    content = {"stage": name, "state": state, "message": message, "pid": os.getpid(), "time": time.time()}
    write_json(status_file(name), content)


def arguments_of(stage: str) -> tuple[Callable[..., Any], ...]:
    """Return the arguments of a stage's function. They are passed, not imported: a change of them reruns no stage."""
    if stage == "train":
        from pipeline.trainings import sync  # importing torch takes a second

        return sync.launch_with_store, TrainingProgress, follow
    return (source.provenance,) if stage == "report" else ()


def summary(name: str, seconds: float) -> str:
    """Return what a finished stage prints: its time, its outputs with their sizes, and the score where it is one."""
    outs = graph.stages()[name].outs
    sizes = ", ".join(f"{out} ({naturalsize(size_of(Path(out)))})" for out in outs if Path(out).exists())
    time_ = f"{seconds:.1f} s" if seconds < 60 else precisedelta(round(seconds))
    scores = [wording.summary(read_json(SCORES))] if str(SCORES) in outs else []
    return "\n".join([f"{name}: {time_}{': ' if sizes else ''}{sizes}", *scores])


def stop(signum: int, frame: FrameType | None) -> None:
    """Raise Interrupted at SIGTERM or SIGHUP. Later ones are ignored, so that the stage can save its work."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    raise Interrupted(f"stopped by {signal.Signals(signum).name}")


def ignore_signals() -> None:
    """Let nothing interrupt the end of the stage, which takes as long as `publish` waits for MLflow."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def outcome(error: BaseException) -> tuple[str, str, int | None]:
    """Return a stage's state after an error, its message, and the exit status; None where it keeps its traceback."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        return "interrupted", str(error), INTERRUPTED
    if (sentence := wording.sentence(error)) is None:
        return "failed", repr(error), None
    return "refused" if isinstance(error, InputError) else "failed", sentence, 1


def run(name: str) -> NoReturn:
    """Run a stage. Exit status 0, 1 for an error that the user can fix, 75 when interrupted and resumable."""
    signal.signal(signal.SIGTERM, stop)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # As under nohup.
        signal.signal(signal.SIGHUP, stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if "DVC_STAGE" in os.environ:
            # DVC does not pass signals on. A parent outside the stage's process group means that DVC has died.
            die_with_parent(signal.SIGTERM)
            if os.getpgid(os.getppid()) != os.getpgrp():
                os.kill(os.getpid(), signal.SIGTERM)
        report_status(name, "running")
        module = importlib.import_module(f"pipeline.stages.{name}")
        started = time.monotonic()
        module.run(*arguments_of(name))
        try:
            print(summary(name, time.monotonic() - started), flush=True)
        except OSError:  # Its reader is gone; the stage's work is done. Python will flush again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        publish.finish(name)
        report_status(name, "done")
        ignore_signals()
    except BaseException as error:
        ignore_signals()
        state, message, status = outcome(error)
        if status is not None:
            again = f"interrupted{f' ({message})' if message else ''}; run the same command again to resume"
            with suppress(OSError):  # The terminal may be closed.
                tell(f"{name}: {again if state == 'interrupted' else message}")
        # A full disk, for example, prevents this, too.
        with suppress(OSError, InputError):
            report_status(name, state, message)
        publish.end(name, "KILLED" if state == "interrupted" else "FAILED")
        if status is None:
            raise
        sys.exit(status)
    sys.exit(0)


def main() -> NoReturn:
    parser = argparse.ArgumentParser(prog="python -m pipeline", description="Run one stage of dvc.yaml.")
    parser.add_argument("stage", choices=list(graph.stages()), help="its name in dvc.yaml")
    spare_imports()
    run(parser.parse_args().stage)


if __name__ == "__main__":
    main()
