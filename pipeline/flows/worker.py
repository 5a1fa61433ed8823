"""Run a Prefect command that starts flows, and let them save their training and report whatever ends it.

`python -m pipeline.flows.worker prefect worker start --pool wmt`. On SIGTERM a worker of Prefect 3.8 kills the
processes of its flows. Here, on SIGTERM or SIGINT, the worker is killed; its flows get SIGTERM and GRACE seconds. The
same happens when the worker dies. A second signal kills them too.
"""

import ctypes
import signal
import subprocess
import sys

import psutil

from nmt.common.processes import start

GRACE = 100.0  # seconds: more than a flow gives DVC and its stages (pipeline/flows/copies.py)


def main() -> int:
    """Run the command; returns its exit status, or 128 and the number of the signal that ended it."""
    PR_SET_CHILD_SUBREAPER = 36
    # The flows of a dead worker become children of this process.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: object) -> None:
        for child in psutil.Process().children() if signals else started:
            child.kill()
        signals.append(number)

    # A shell's background commands ignore SIGINT.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    started.append(process := start(sys.argv[1:]))
    if signals:
        process.kill()
    status = process.wait()
    flows = psutil.Process().children()
    for flow in flows:
        flow.terminate()
    for flow in psutil.wait_procs(flows, timeout=GRACE)[1]:
        flow.kill()
    return 128 + signals[0] if signals else 128 - status if status < 0 else status


if __name__ == "__main__":
    sys.exit(main())
