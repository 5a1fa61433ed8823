"""torchrun for this machine: one process a GPU, or one for the CPU's cores; its whole tree ends with us.

`python -m pipeline.launch` is torchrun, but for that: killed alone, we would leave it behind.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from nmt.config import InputError
from nmt.parent import die_with_parent

GRACE = 45.0
"""Seconds between SIGTERM and SIGKILL: time for a checkpoint. torchrun itself gives its workers 30."""


def gpus() -> int:
    """GPUs that this process may use. Asked in a process of its own, so that none of their memory is held here."""
    question = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", question], check=True, capture_output=True, text=True).stdout)


def processes() -> int:
    """`$WMT_PROCESSES`, else one a GPU, else one for the whole CPU."""
    wanted = os.environ.get("WMT_PROCESSES")
    if wanted is None:
        return max(1, gpus())
    if not wanted.isdecimal() or int(wanted) < 1:
        raise InputError(
            f"WMT_PROCESSES is {wanted!r}: it must be a whole number from 1 on; unset it to have it chosen"
        )
    return int(wanted)


def command(count: int, job: Path) -> list[str]:
    """torchrun of `count` processes on this machine that train the job."""
    # torch takes a second to import, which `--help` need not wait for; imported here for what training consists of
    # to be seen by whoever follows the imports.
    from nmt import trainer

    return [
        sys.executable, "-m", __name__, "--standalone", "--nproc-per-node", str(count),
        "-m", trainer.__name__, str(job),
    ]  # fmt: skip


def environment(count: int) -> dict[str, str]:
    """This process's, with the cores shared out among the processes unless OMP_NUM_THREADS says otherwise.

    Threads that wait give their core away: spinning ones, OpenMP's default, made training five times slower
    wherever another program used the machine too.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // count)
    return {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **os.environ}


def train(job: Path, watch: Callable[[], None]) -> int:
    """Run torchrun on the job, calling `watch` about once a second; returns its exit status.

    Whatever ends the wait (SIGTERM, Ctrl-C, an error) ends torchrun's whole tree before it is raised again:
    SIGTERM, time for a checkpoint, then SIGKILL.
    """
    count = processes()
    process = subprocess.Popen(command(count, job), env=environment(count), start_new_session=True)
    try:
        while True:
            try:
                return process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                watch()
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE)
    # torchrun leads a session of its own: what is left of it is all ours.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """torchrun; SIGTERM, and so time for a checkpoint, when the process that started it dies."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    die_with_parent(signal.SIGTERM)
    try:
        run.main()
    except SignalException as error:
        # Nothing went wrong that a traceback would explain.
        sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()
