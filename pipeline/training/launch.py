"""Start torchrun on this machine: one process per GPU, or one for the CPU's cores. Its processes end with ours.

`python -m pipeline.training.launch` is torchrun that also ends when its parent process is killed.
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

from nmt.common.files import writing
from nmt.common.processes import die_with_parent
from nmt.config import InputError
from pipeline.machine import available_cores

INTERFACE = "lo0" if sys.platform == "darwin" else "lo"  # loopback
GRACE = 45.0  # seconds between SIGTERM and SIGKILL: time to save the state. torchrun itself gives its workers 30
JOIN = 600  # seconds that a node waits for the others
RESTARTS = 100  # lost nodes that a training survives
RENDEZVOUS = "rendezvous"  # file in the folder of a training of several nodes
KEEP_ALIVE = 600  # seconds between a single node's heartbeats: each makes torchrun's rendezvous file longer


def count_gpus() -> int:
    """Return the number of GPUs, counted in another process so that this one holds none of their memory."""
    question = "import torch; print(torch.cuda.device_count())"
    return int(subprocess.run([sys.executable, "-c", question], check=True, capture_output=True, text=True).stdout)


def _positive(name: str, unset: str) -> int | None:
    """Return an environment variable as a number; `unset` says in the error message what happens without it."""
    value = os.environ.get(name)
    if value is not None and (not value.isdecimal() or int(value) < 1):
        raise InputError(f"{name} is {value!r}: it must be a whole number from 1 on; unset it {unset}")
    return None if value is None else int(value)


def processes() -> int:
    """Return `$WMT_PROCESSES`, by default one process per GPU, or one without a GPU."""
    return _positive("WMT_PROCESSES", "to have it chosen") or max(1, count_gpus())


def nodes() -> tuple[int, str | None]:
    """Return `$WMT_NODES`, by default 1, and `$WMT_RENDEZVOUS`: the first node's name and a free port."""
    number, rendezvous = _positive("WMT_NODES", "for one node") or 1, os.environ.get("WMT_RENDEZVOUS")
    if number > 1 and not re.fullmatch(r"\S+:\d+", rendezvous or ""):
        raise InputError(
            f"WMT_NODES is {number}, so WMT_RENDEZVOUS must name where the nodes meet, as HOST:PORT; it is "
            f"{rendezvous!r}"
        )
    return number, rendezvous


def command(count: int, job: Path) -> list[str]:
    """Return the command that runs this module as torchrun with `count` processes."""
    # Imported here because torch takes a second to import; imported at all so that the import graph has the trainer.
    from nmt.training import trainer

    return [sys.executable, "-m", __name__, trainer.__name__, str(count), str(job)]


def arguments(module: str, count: str, job: str, scratch: Path) -> list[str]:
    """Return torchrun's arguments for `count` processes on this machine."""
    # Imported here because it imports torch.
    from nmt.training.distributed import LOOPBACK

    number, endpoint = nodes()
    # On one node a file: torchrun's default store listens without authentication on all addresses of the machine.
    rendezvous = ["--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", Path(job).name]
    rendezvous += ["--rdzv-conf", f"store_type=file,keep_alive_interval={KEEP_ALIVE}", "--local-addr", LOOPBACK]
    if number > 1:
        # A lost node may be replaced: the others wait for it, and all resume from the last saved state.
        rendezvous = ["--rdzv-endpoint", str(endpoint), "--rdzv-id", Path(job).name]
        rendezvous += ["--rdzv-conf", f"join_timeout={JOIN}", "--max-restarts", str(RESTARTS)]
    # Without redirected output torchrun's folder for logs in /tmp would stay, empty.
    logs = ["--log-dir", os.devnull]
    nodes_ = ["--nnodes", str(number), "--rdzv-backend", "c10d"]
    return [*nodes_, *rendezvous, *logs, "--nproc-per-node", count, "-m", module, job]


def environment(count: int) -> dict[str, str]:
    """Return this process' environment, with the cores divided among the processes unless OMP_NUM_THREADS is set."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, available_cores() // count)),
        # Spinning threads, OpenMP's default, made training five times slower beside another program.
        "OMP_WAIT_POLICY": "PASSIVE",
        # With a store that outlives rounds, a replacement node never receives the store's address.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if nodes()[0] == 1:
        # Ranks of one machine need no other interface. `=` matches the whole name.
        defaults |= {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": f"={INTERFACE}"}
    return {**defaults, **os.environ}


def train(job: Path, watch: Callable[[], None]) -> int:
    """Run torchrun on the job as the first node, or the only one; as `run_node`.

    While it trains, the file `rendezvous` in the job's folder names where other nodes join (pipeline/commands/join.py).
    """
    number, endpoint = nodes()
    if number == 1:
        return run_node(job, watch)
    announcement = job / RENDEZVOUS
    with writing(announcement) as temporary:
        temporary.write_text(str(endpoint), encoding="utf-8")
    try:
        return run_node(job, watch)
    finally:
        announcement.unlink(missing_ok=True)


def run_node(job: Path, watch: Callable[[], None]) -> int:
    """Run this node's torchrun on the job, calling `watch` about once a second; return its exit status.

    Whatever ends the wait (SIGTERM, Ctrl-C, an error) first ends torchrun and its processes: SIGTERM, time to
    save the state, then SIGKILL.
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
    # torchrun leads its own session: every process that remains in it is ours.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Run torchrun; send it SIGTERM, and so time to save the state, when its parent process dies."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException

    die_with_parent(signal.SIGTERM)
    module, count, job = sys.argv[1:]
    # In the job's folder, where the stage removes what a SIGKILL leaves.
    with tempfile.TemporaryDirectory(prefix=".torchrun.", suffix=".tmp", dir=job) as scratch:
        try:
            run.main(arguments(module, count, job, Path(scratch)))
        except SignalException as error:
            # A requested stop: a traceback would explain nothing.
            sys.exit(128 + error.sigval)


if __name__ == "__main__":
    main()
