"""Start torchrun on this machine: one process per GPU, or per core. Its processes end with ours.

`python -m pipeline.trainings.launch` is torchrun with exit statuses that tell how the training ended.
"""

import os
import re
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from nmt.common.files import read_yaml, scratch_folder
from nmt.common.processes import UNRECORDED, UNUSABLE, end, start
from nmt.errors import InputError
from nmt.flops import parameters
from nmt.model_settings import ModelSettings
from nmt.training.settings import TrainingSettings
from pipeline.config import machine
from pipeline.trainings.cost import process_memory

INTERFACE = "lo0" if sys.platform == "darwin" else "lo"  # loopback
GRACE = 45.0  # seconds between SIGTERM and SIGKILL: time to save the state
WORKERS_GRACE = 40  # the same of torchrun for its workers, whose default is 30
JOIN = 600  # seconds that a node waits for the others
RESTARTS = 100  # lost nodes that a training survives
RENDEZVOUS = "rendezvous"  # file in the folder of a training of several nodes: where they meet
KEEP_ALIVE = 600  # seconds between a single node's heartbeats: each makes torchrun's rendezvous file longer


def process_count(shards: int, needed: int = 0, threads: int = 1) -> int:
    """Return `$WMT_PROCESSES`, by default one process per GPU or core; `shards` are divided among them.

    Where the shards cannot be divided among all GPUs, fewer are used, and a line says so. On CPUs two processes of one
    thread are faster than one process of two threads, which wait for each other at every operation: a sixth on idle
    cores and more beside other programs. There are fewer than cores if each process has several `threads`, if memory
    does not suffice (`needed` bytes each), or if several nodes share the shards; one if OMP_NUM_THREADS is set.
    """
    from nmt.training.distributed import most_processes  # imports torch

    requested, gpus = os.environ.get("WMT_PROCESSES"), len(machine.gpus())
    if requested is not None:
        if not requested.isdecimal() or not 1 <= int(requested) <= (gpus or int(requested)):
            raise InputError(
                f"WMT_PROCESSES is {requested!r}, and this machine has {gpus} GPUs for it: it must be a whole number "
                "from 1 on, on GPUs at most one process on each; unset it to have it chosen"
            )
        if shards % int(requested):
            raise InputError(
                f"{requested} processes cannot train together: training.shards is {shards}, and their number must "
                f"divide it; use {most_processes(int(requested), shards)} processes, or change training.shards"
            )
        return int(requested)
    cores = 1 if "OMP_NUM_THREADS" in os.environ else machine.available_cores() // max(1, threads)
    of_cpu = min(cores, machine.memory() // max(1, needed), shards // nodes()[1])
    count = most_processes(gpus or max(1, of_cpu), shards)
    if count < gpus:
        print(f"training uses {count} of {gpus} GPUs: training.shards is {shards}, and the processes must divide it")
    if gpus and (together := count * nodes()[0]) > shards:
        at_work = f"{most_processes(together, shards)} of {together} GPUs work, the others stand by"
        print(
            f"{at_work}: training.shards is {shards}; set overrides.training.shards to {together}, or use fewer nodes"
        )
    return count


def check_memory(weights: int, count: int) -> None:
    """Raise InputError if the weights, their gradients and both moments alone exceed the memory of the device."""
    needed = 4 * 4 * weights * (1 if machine.gpus() else count)  # float32
    if needed > (memory := machine.memory()):
        raise InputError(
            f"weights, gradients and Adam's moments of this model take {needed / 2**30:,.1f} GiB, but the device has "
            f"{memory / 2**30:,.1f} GiB: lower model.d_model, model.d_ff, model.N or the vocabulary"
        )


def nodes() -> tuple[int, int, str | None]:
    """Return the least and the most nodes of `$WMT_NODES`, by default 1, and the first node of `$WMT_RENDEZVOUS`."""
    value, rendezvous = os.environ.get("WMT_NODES", "1"), os.environ.get("WMT_RENDEZVOUS")
    match = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", value)
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if least > most or (most > 1 and not re.fullmatch(r"\S+:\d+", rendezvous or "")):
        raise InputError(
            f"WMT_NODES is {value!r} and WMT_RENDEZVOUS {rendezvous!r}: the first must be a whole number from 1 on or, "
            "as 1:4, the least and the most nodes; the second must name where several nodes meet, as HOST:PORT"
        )
    return least, most, rendezvous


def command(count: int, folder: Path) -> list[str]:
    """Return the command that runs this module as torchrun with `count` processes."""
    # Imported here because torch takes a second to import; imported at all so that the import graph has the training.
    from nmt.training import loop

    return [sys.executable, "-m", __name__, loop.__name__, str(count), str(folder)]


def arguments(module: str, count: str, folder: str, scratch: Path) -> list[str]:
    """Return torchrun's arguments for `count` processes on this machine; torchrun must run in this process."""
    from nmt.training.distributed import LOOPBACK  # imports torch

    least, most, endpoint = nodes()
    # On one node a file: torchrun's default store listens without authentication on all addresses of the machine.
    rendezvous = ["--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", Path(folder).name]
    rendezvous += ["--rdzv-conf", f"store_type=file,keep_alive_interval={KEEP_ALIVE}", "--local-addr", LOOPBACK]
    if most > 1:
        # A lost node may be replaced: the others wait for it if they are too few, and all resume from the last state.
        rendezvous = ["--rdzv-endpoint", str(endpoint), "--rdzv-id", Path(folder).name]
        rendezvous += ["--rdzv-conf", f"join_timeout={JOIN}", "--max-restarts", str(RESTARTS)]
    # Without redirected output torchrun's folder for logs in /tmp would stay, empty.
    logs = ["--log-dir", os.devnull]
    signals = ["--signals-to-handle", "SIGHUP,SIGQUIT"]  # `main` handles the others.
    nodes_ = ["--nnodes", f"{least}:{most}", "--rdzv-backend", "c10d"]
    # Our id: no worker outlives this process.
    return [*nodes_, *rendezvous, *logs, *signals, "--nproc-per-node", count, "-m", module, folder, str(os.getpid())]


def environment(count: int) -> dict[str, str]:
    """Return this process' environment, with the cores divided among the processes unless OMP_NUM_THREADS is set."""
    defaults = {
        "OMP_NUM_THREADS": str(max(1, machine.available_cores() // count)),
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
    # Variables that begin with PET_ are arguments of torchrun's.
    return {**defaults, **{name: value for name, value in os.environ.items() if not name.startswith("PET_")}}


def torchrun(folder: Path, watch: Callable[[], None], threads: int = 0) -> int:
    """Run this node's torchrun on the job in `folder`, calling `watch` about once a second; return its exit status.

    `threads`: those of a process; 0: as the environment says, or by default the cores divided by the processes.
    Whatever ends the wait (SIGTERM, Ctrl-C, an error) first ends torchrun and its processes: SIGTERM, time to
    save the state, then SIGKILL.
    """
    import torch

    _, most, rendezvous = nodes()
    if most > 1:
        # `wmt join` on the other nodes finds the training by it.
        (folder / RENDEZVOUS).write_text(str(rendezvous), encoding="utf-8")
    settings = read_yaml(folder / "job.yaml")
    model = ModelSettings.model_validate(settings["model"])
    training = TrainingSettings.model_validate(settings["training"])
    machine.hide_gpus_if_portable(training.arithmetic)
    rows = settings["vocabulary"], settings.get("target_vocabulary")
    if machine.gpus() and not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} cannot use this machine's GPUs: remove .venv and run `make setup` for a build "
            "that fits their driver, or hide them with CUDA_VISIBLE_DEVICES=''"
        )
    count = process_count(training.shards, process_memory(model, training, rows), threads)
    check_memory(parameters(model, *rows), count)
    variables = environment(count) | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
    process = start(command(count, folder), env=variables)
    try:
        while True:
            try:
                status = process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                watch()
            else:
                # A single node has lost no other: a restart would fail again, as where torch does not fit in memory.
                return UNUSABLE if most == status == 1 else status
    finally:
        # Its workers lead sessions of their own, and are killed by the kernel when it ends.
        end(process, GRACE)


def main() -> None:
    """Run torchrun. It gets SIGTERM, and so time to save the state, when the process that started it dies."""
    module, count, folder = sys.argv[1:]
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous import RendezvousError

    def stop(number: int, _: object) -> None:
        # More of them would interrupt torchrun's wait for its workers: these would be killed while they save the state,
        # or its threads would never end.
        for handled in asked:
            signal.signal(handled, signal.SIG_IGN)
        raise SignalException("asked to stop", signal.Signals(number))

    asked = (signal.SIGTERM, signal.SIGINT)
    for number in asked:
        signal.signal(number, stop)
    with scratch_folder(Path(folder) / "torchrun") as scratch:
        try:
            run.main(arguments(module, count, folder, scratch))
        except SignalException as error:
            # A requested stop: a traceback would explain nothing. The other nodes would wait for this one.
            if not (Path(folder) / "done.json").exists():
                (Path(folder) / "interrupted").touch()
            sys.exit(128 + error.sigval)
        except ChildFailedError as error:
            # The training processes have printed the reason; torchrun's traceback would bury it.
            statuses = {failure.exitcode for failure in error.failures.values()}
            sys.exit(UNRECORDED if UNRECORDED in statuses else 128 - min(statuses) if min(statuses) < 0 else 1)
        except Exception as error:
            # torchrun itself failed. If the nodes had met before, one of them was lost. Otherwise, for example with a
            # wrong host name, a restart would fail again.
            traceback.print_exc()
            met = isinstance(error, RendezvousError) and any(Path(folder).glob("resume/*"))
            sys.exit(1 if met else UNUSABLE)


if __name__ == "__main__":
    main()
