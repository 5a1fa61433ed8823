"""Run a Prefect command that starts flows, and let them save their training and report whatever ends it.

`python -m pipeline.flows.worker prefect worker start --pool wmt`. On SIGTERM a worker of Prefect 3.8 kills the
processes of its flows. Here, on SIGTERM or SIGINT, the worker is killed; its flows get SIGTERM and GRACE seconds. So
they do when the worker dies. A second signal kills them too.
"""

from __future__ import annotations

import signal
import sys
import time
from contextlib import suppress

import psutil

from nmt.common.processes import start

GRACE = 100.0
"""Seconds: more than a flow gives DVC and its stages (pipeline/flows/copies.py)."""


class Stopped(Exception):
    """A signal requested the end."""


def main() -> int:
    """Run the command; returns its exit status, or 128 and the number of the signal that ended it."""
    flows: list[psutil.Process] = []

    def end(name: str) -> None:
        for flow in flows:
            with suppress(psutil.NoSuchProcess):
                getattr(flow, name)()

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: end("kill"))
        raise Stopped(number)

    process = start(sys.argv[1:])
    worker = psutil.Process(process.pid)
    # A shell's background commands ignore SIGINT.
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    try:
        while (status := process.poll()) is None:
            with suppress(psutil.NoSuchProcess):
                flows = worker.children()
            time.sleep(0.5)
    except Stopped as stopped:
        status = -int(stopped.args[0])
        with suppress(psutil.NoSuchProcess):
            flows = worker.children()
        process.kill()
        process.wait()
    end("terminate")
    psutil.wait_procs(flows, timeout=GRACE)
    end("kill")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
