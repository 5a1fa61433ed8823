"""The data stages by processes and by a Dask cluster of two workers, in turn: python -m tests.bench.cluster

Both have the same two cores; the cluster runs already, as a team's does. WMT-like text (wmt_like.py) of `--pairs` pairs
goes through tokenize, the count of words, and binarize, `--rounds` times by each. Then once more by Dask with a worker
killed in each stage. The outputs must be the same bytes.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.bench.conditions import announce, conditions
from tests.bench.preprocessing import digests, in_child, prepare, start

STAGES = ("tokenize", "count", "binarize")
KILLED_AFTER = 8.0  # seconds from the start of a stage to the death of a worker


@contextmanager
def cluster(folder: Path, cores: list[int]) -> Iterator[tuple[str, psutil.Process]]:
    """A scheduler, and the process of two workers; yields the executor's name and that process."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dask = str(Path(sys.executable).parent / "dask")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    scheduler = [dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    workers = [dask, "worker", f"tcp://127.0.0.1:{port}", "--nthreads", "1", "--nworkers", "2", "--no-dashboard"]
    processes = [start(command, folder, cores, **quiet) for command in (scheduler, workers)]
    try:
        yield f"dask://127.0.0.1:{port}", psutil.Process(processes[1].pid)
    finally:
        for process in processes:
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
            process.kill()
            process.wait()


def kill_worker(nannies: psutil.Process, killed: list[int]) -> None:
    """Kill a worker's process; its nanny starts another."""
    time.sleep(KILLED_AFTER)
    workers = [child for child in nannies.children(recursive=True) if "spawn_main" in " ".join(child.cmdline())]
    if workers:
        workers[0].kill()
        killed.append(workers[0].pid)


def cpu_seconds(process: psutil.Process) -> float:
    """Processor time of a process and its living descendants."""
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def run_stages(
    folder: Path, cores: list[int], executor: str, nannies: psutil.Process
) -> tuple[dict[str, float], dict[str, str]]:
    """Run the stages with an executor; return their time and processor time, and the checksums of their outputs."""
    os.environ["WMT_EXECUTOR"] = executor
    before = cpu_seconds(nannies)
    measured = {stage: in_child(stage, folder, cores) for stage in STAGES}
    result = {stage: float(timing["seconds"]) for stage, timing in measured.items()}
    result["total"] = sum(result.values())
    # A busy machine changes the processor time less.
    result["cpu"] = sum(timing["cpu_seconds"] for timing in measured.values()) + cpu_seconds(nannies) - before
    return result, digests(folder / "data/tokenized") | digests(folder / "data/binned")


def measure(folder: Path, pairs: int, merges: int, rounds: int) -> dict[str, Any]:
    """Everything, for one size."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    os.environ["WMT_EXECUTOR"] = ""
    prepare(folder, pairs, merges)
    in_child("tokenize", folder, cores)
    in_child("learn", folder, cores)
    seconds: dict[str, list[dict[str, float]]] = {"processes": [], "dask": []}
    made = []
    with cluster(folder, cores) as (address, nannies):
        for _ in range(rounds):
            for name, executor in (("processes", ""), ("dask", address)):
                taken, checksums = run_stages(folder, cores, executor, nannies)
                seconds[name].append(taken)
                made.append(checksums)
        os.environ["WMT_EXECUTOR"], killed, with_kill = address, list[int](), {}
        for stage in STAGES:
            thread = threading.Thread(target=kill_worker, args=(nannies, killed))
            thread.start()
            with_kill[stage] = float(in_child(stage, folder, cores)["seconds"])
            thread.join()
        made.append(digests(folder / "data/tokenized") | digests(folder / "data/binned"))
    rates = {name: [pairs / one_run["total"] for one_run in runs] for name, runs in seconds.items()}
    cpu = {name: statistics.median(one_run["cpu"] for one_run in runs) for name, runs in seconds.items()}
    return {
        **conditions(),
        "pairs": pairs,
        "seconds": seconds,
        "pairs_a_second": rates,
        "ratio": statistics.median(rates["dask"]) / statistics.median(rates["processes"]),
        "cpu_ratio": cpu["processes"] / cpu["dask"],
        "with_killed_workers": {"killed": len(killed), "seconds": with_kill},
        "same_bytes": all(one == made[0] for one in made),
    }


def main() -> int:
    """Print the measurements; the exit status is 1 where outputs differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.cluster", description=__doc__)
    parser.add_argument("--pairs", type=int, default=200_000)
    parser.add_argument("--merges", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    announce(parser.prog)
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        result = measure(Path(folder), options.pairs, options.merges, options.rounds)
    print(json.dumps(result, indent=2))
    return 0 if result["same_bytes"] else 1


if __name__ == "__main__":
    sys.exit(main())
