"""torchrun for this machine: one process a GPU, or one for the CPU's cores; its whole tree ends with us.

On several nodes that share the state root, all with `WMT_NODES=2 WMT_RENDEZVOUS=first:29400`: the first runs the
pipeline, and the others join its training (pipeline/commands/join.py).

`python -m pipeline.training.launch` is torchrun, but for that: killed alone, we would leave it behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nmt.common.processes import die_with_parent
from nmt.config import InputError
from pipeline.corpora.blocks import workers

INTERFACE = "lo0" if sys.platform == "darwin" else "lo"
"""The network interface of a machine with itself."""
GRACE = 45.0
"""Seconds between SIGTERM and SIGKILL: time for a checkpoint. torchrun itself gives its workers 30."""
JOIN = 600
"""Seconds that a node waits for the others."""
RESTARTS = 100
"""How often the nodes may lose one of them."""
KEEP_ALIVE = 600
"""Seconds between two signs of life of a node that is alone: each makes the file that torchrun meets over longer."""


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


def nodes() -> tuple[int, str | None]:
    """`$WMT_NODES`, 1 by default, and `$WMT_RENDEZVOUS`, where they meet: the first node's name and a free port."""
    wanted, meeting = os.environ.get("WMT_NODES", "1"), os.environ.get("WMT_RENDEZVOUS")
    if not wanted.isdecimal() or int(wanted) < 1:
        raise InputError(f"WMT_NODES is {wanted!r}: it must be a whole number from 1 on; unset it for one node")
    if int(wanted) > 1 and not re.fullmatch(r"\S+:\d+", meeting or ""):
        raise InputError(
            f"WMT_NODES is {wanted}, so WMT_RENDEZVOUS must name where the nodes meet, as HOST:PORT; it is {meeting!r}"
        )
    return int(wanted), meeting


def command(count: int, job: Path) -> list[str]:
    """This module as torchrun of `count` processes that train the job."""
    # torch takes a second to import, which `--help` need not wait for; imported here for what training consists of
    # to be seen by whoever follows the imports.
    from nmt.training import trainer

    return [sys.executable, "-m", __name__, trainer.__name__, str(count), str(job)]


def arguments(module: str, count: str, job: str, scratch: Path) -> list[str]:
    """torchrun's arguments for `count` processes on this machine, with the other nodes' where there are some.

    On one node torchrun meets itself over a file in `scratch`: the port that it would open otherwise, for a store that
    takes anybody's word, listens on all of the machine's addresses. Nodes that meet over a network need it.
    """
    # With it comes torch.
    from nmt.training.distributed import LOOPBACK

    number, meeting = nodes()
    where = ["--rdzv-endpoint", str(scratch / "rendezvous")]
    how = ["--rdzv-conf", f"store_type=file,keep_alive_interval={KEEP_ALIVE}", "--local-addr", LOOPBACK]
    if number > 1:
        # A node that is lost may be replaced: those left wait for it and all go on from the last saved state.
        where = ["--rdzv-endpoint", str(meeting)]
        how = ["--rdzv-conf", f"join_timeout={JOIN}", "--max-restarts", str(RESTARTS)]
    return [
        "--nnodes", str(number), "--rdzv-backend", "c10d", *where, "--rdzv-id", Path(job).name, *how,
        # Where nothing is redirected, torchrun's folder for logs in /tmp would stay behind, empty.
        "--log-dir", os.devnull, "--nproc-per-node", count, "-m", module, job,
    ]  # fmt: skip


def environment(count: int) -> dict[str, str]:
    """This process's, with the cores shared out among the processes unless OMP_NUM_THREADS says otherwise.

    Threads that wait give their core away: spinning ones, OpenMP's default, made training five times slower
    wherever another program used the machine too.
    """
    threads = max(1, workers() // count)
    # Ranks of one machine have no business on its other addresses. `=` says that the name is whole.
    local = {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": f"={INTERFACE}"} if nodes()[0] == 1 else {}
    return {
        "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE", **local,
        # With a store that outlives rounds, a node that replaces another waits in vain to be told where it is.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", **os.environ,
    }  # fmt: skip


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
    module, count, job = sys.argv[1:]
    # In the job's folder, where the stage removes what a SIGKILL leaves.
    with tempfile.TemporaryDirectory(prefix=".torchrun.", suffix=".tmp", dir=job) as scratch:
        try:
            run.main(arguments(module, count, job, Path(scratch)))
        except SignalException as error:
            # Nothing went wrong that a traceback would explain.
            sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()
