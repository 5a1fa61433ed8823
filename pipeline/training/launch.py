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

from nmt.common.files import read_yaml, writing
from nmt.common.processes import UNRECORDED, die_with_parent
from nmt.config import InputError
from pipeline.machine import available_cores

INTERFACE = "lo0" if sys.platform == "darwin" else "lo"  # loopback
GRACE = 45.0  # seconds between SIGTERM and SIGKILL: time to save the state
WORKERS_GRACE = 40  # the same of torchrun for its workers, whose default is 30
JOIN = 600  # seconds that a node waits for the others
RESTARTS = 100  # lost nodes that a training survives
RENDEZVOUS = "rendezvous"  # file in the folder of a training of several nodes
KEEP_ALIVE = 600  # seconds between a single node's heartbeats: each makes torchrun's rendezvous file longer


def count_gpus() -> int:
    """Return the number of GPUs. Counting them takes none of their memory."""
    # Imported here because it takes a second.
    import torch

    return torch.cuda.device_count()


def processes(shards: int) -> int:
    """Return `$WMT_PROCESSES`, by default one process per GPU, or one without a GPU; `shards` are divided among them.

    Where the shards cannot be divided among all GPUs, fewer are used, and a line says so.
    """
    # Imported here because it imports torch.
    from nmt.training.distributed import check_processes, most_processes

    requested = os.environ.get("WMT_PROCESSES")
    if requested is not None:
        if not requested.isdecimal() or int(requested) < 1:
            raise InputError(
                f"WMT_PROCESSES is {requested!r}: it must be a whole number from 1 on; unset it to have it chosen"
            )
        check_processes(int(requested), shards)
        return int(requested)
    gpus = count_gpus()
    count = most_processes(max(1, gpus), shards)
    if count < gpus:
        print(f"training uses {count} of {gpus} GPUs: training.shards is {shards}, and the processes must divide it")
    return count


def nodes() -> tuple[int, int, str | None]:
    """Return the least and the most nodes of `$WMT_NODES`, by default 1, and `$WMT_RENDEZVOUS`.

    The rendezvous is the first node's name and a free port there.
    """
    value, rendezvous = os.environ.get("WMT_NODES", "1"), os.environ.get("WMT_RENDEZVOUS")
    if not re.fullmatch(r"[1-9]\d*(:[1-9]\d*)?", value) or int(value.split(":")[0]) > int(value.split(":")[-1]):
        raise InputError(
            f"WMT_NODES is {value!r}: it must be a whole number from 1 on, or the least and the most nodes, as 1:4; "
            "unset it for one node"
        )
    least, most = int(value.split(":")[0]), int(value.split(":")[-1])
    if most > 1 and not re.fullmatch(r"\S+:\d+", rendezvous or ""):
        raise InputError(
            f"WMT_NODES is {value}, so WMT_RENDEZVOUS must name where the nodes meet, as HOST:PORT; it is "
            f"{rendezvous!r}"
        )
    return least, most, rendezvous


def command(count: int, job: Path) -> list[str]:
    """Return the command that runs this module as torchrun with `count` processes."""
    # Imported here because torch takes a second to import; imported at all so that the import graph has the trainer.
    from nmt.training import trainer

    return [sys.executable, "-m", __name__, trainer.__name__, str(count), str(job), str(os.getpid())]


def arguments(module: str, count: str, job: str, scratch: Path) -> list[str]:
    """Return torchrun's arguments for `count` processes on this machine; torchrun must run in this process."""
    # Imported here because it imports torch.
    from nmt.training.distributed import LOOPBACK

    least, most, endpoint = nodes()
    # On one node a file: torchrun's default store listens without authentication on all addresses of the machine.
    rendezvous = ["--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", Path(job).name]
    rendezvous += ["--rdzv-conf", f"store_type=file,keep_alive_interval={KEEP_ALIVE}", "--local-addr", LOOPBACK]
    if most > 1:
        # A lost node may be replaced: the others wait for it if they are too few, and all resume from the last state.
        rendezvous = ["--rdzv-endpoint", str(endpoint), "--rdzv-id", Path(job).name]
        rendezvous += ["--rdzv-conf", f"join_timeout={JOIN}", "--max-restarts", str(RESTARTS)]
    # Without redirected output torchrun's folder for logs in /tmp would stay, empty.
    logs = ["--log-dir", os.devnull]
    nodes_ = ["--nnodes", f"{least}:{most}", "--rdzv-backend", "c10d"]
    # Our id: no worker outlives this process.
    return [*nodes_, *rendezvous, *logs, "--nproc-per-node", count, "-m", module, job, str(os.getpid())]


def environment(count: int) -> dict[str, str]:
    """Return this process' environment, with the cores divided among the processes unless OMP_NUM_THREADS is set."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, available_cores() // count)),
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(WORKERS_GRACE),
        # By default GNU's malloc gives large freed blocks back to the system. With WMT14's vocabulary a sixth of an
        # update of row `small` was page faults for the next ones.
        "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
        # With a store that outlives rounds, a replacement node never receives the store's address.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    if "OMP_WAIT_POLICY" not in os.environ:
        # Threads that sleep at once cost row `sample` a quarter of its speed on idle cores. Those that spin as long as
        # OpenMP's default are 3.5 times slower beside another program, with this 2.2 times. In GNU's OpenMP the count
        # overrules the policy.
        defaults["GOMP_SPINCOUNT"] = "1000"
    if nodes()[1] == 1:
        # Ranks of one machine need no other interface. `=` matches the whole name.
        defaults |= {"GLOO_SOCKET_IFNAME": INTERFACE, "NCCL_SOCKET_IFNAME": f"={INTERFACE}"}
    return {**defaults, **os.environ}


def train(job: Path, watch: Callable[[], None]) -> int:
    """Run torchrun on the job as the first node, or the only one; as `run_node`.

    While it trains, the file `rendezvous` in the job's folder names where other nodes join (pipeline/commands/join.py).
    """
    _, most, endpoint = nodes()
    if most == 1:
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
    settings = read_yaml(job / "job.yaml")
    count = processes(settings["training"]["shards"])
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
    # Its workers lead sessions of their own, and are killed by the kernel when it ends.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def main() -> None:
    """Run torchrun; send it SIGTERM, and so time to save the state, when its parent process dies."""
    module, count, job, parent = sys.argv[1:]
    # Before anything is imported: the parent may die meanwhile, and another process then begins in the same folder.
    die_with_parent(signal.SIGTERM, int(parent))
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # In the job's folder, where the stage removes what a SIGKILL leaves.
    with tempfile.TemporaryDirectory(prefix=".torchrun.", suffix=".tmp", dir=job) as scratch:
        try:
            run.main(arguments(module, count, job, Path(scratch)))
        except SignalException as error:
            # A requested stop: a traceback would explain nothing.
            sys.exit(128 + error.sigval)
        except ChildFailedError as error:
            if any(failure.exitcode == UNRECORDED for failure in error.failures.values()):
                sys.exit(UNRECORDED)
            raise


if __name__ == "__main__":
    main()
