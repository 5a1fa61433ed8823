"""torchrun on one machine: what it is started with, where it listens, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from nmt.config import InputError
from nmt.training import checkpoint
from pipeline.training import launch

ROOT = Path(__file__).resolve().parents[3]
MakeJob = Callable[..., dict[str, Any]]
STAGE = """
import sys
from pathlib import Path
from pipeline.training import launch
launch.train(Path(sys.argv[1]), lambda: None)
"""
"""What the stage `train` does, in a process that can be killed."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WMT_PROCESSES", "WMT_NODES", "WMT_RENDEZVOUS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("asked", "count"), [("1", 1), ("8", 8)])
def test_processes_are_those_asked_for(asked: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_PROCESSES", asked)
    monkeypatch.setattr(launch, "count_gpus", lambda: 3)
    assert launch.processes(16) == count


@pytest.mark.parametrize(("asked", "shards"), [("3", 16), ("4", 2), ("32", 16)])
def test_processes_among_which_shards_cannot_be_divided_are_refused(
    asked: str, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_PROCESSES", asked)
    rule = rf"^{asked} processes cannot train together: training.shards is {shards}, and their number must divide it; "
    with pytest.raises(InputError, match=rf"{rule}use (2|16) processes, or change training.shards$"):
        launch.processes(shards)


@pytest.mark.parametrize(
    ("gpus", "shards", "count"), [(0, 1, 1), (1, 16, 1), (8, 16, 8), (6, 16, 4), (8, 2, 2), (3, 1, 1)]
)
def test_processes_are_one_a_gpu_as_far_as_shards_can_be_divided(
    gpus: int, shards: int, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "count_gpus", lambda: gpus)
    assert launch.processes(shards) == count
    message = f"training uses {count} of {gpus} GPUs: training.shards is {shards}, and the processes must divide it\n"
    assert capsys.readouterr().out == ("" if count in (gpus, gpus + 1) else message)


def test_gpus_are_what_another_process_counts() -> None:
    import torch

    assert launch.count_gpus() == torch.cuda.device_count()


@pytest.mark.parametrize("asked", ["0", "-1", "two", "", "1.5"])
def test_other_numbers_of_processes_are_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_PROCESSES", asked)
    with pytest.raises(
        InputError, match=rf"^WMT_PROCESSES is '{asked}': it must be a whole number from 1 on; unset it"
    ):
        launch.processes(16)


@pytest.mark.parametrize("asked", ["0", "-1", "two", "", "1.5", "2:1", "1:", ":2", "0:2", "1:2:3"])
def test_other_numbers_of_nodes_are_refused(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_NODES", asked)
    with pytest.raises(
        InputError, match=rf"^WMT_NODES is '{asked}': it must be a whole number from 1 on, or the least"
    ):
        launch.nodes()


def test_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launch.nodes() == (1, 1, None)
    monkeypatch.setenv("WMT_NODES", "2")
    for wrong in ("first", "first:", ":29400", "first:port", "fir st:29400", "first:29400 "):
        monkeypatch.setenv("WMT_RENDEZVOUS", wrong)
        with pytest.raises(InputError, match=f"WMT_NODES is 2, so WMT_RENDEZVOUS must .*HOST:PORT; it is '{wrong}'"):
            launch.nodes()
    monkeypatch.delenv("WMT_RENDEZVOUS")
    with pytest.raises(InputError, match="it is None"):
        launch.nodes()
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    assert launch.nodes() == (2, 2, "first:29400")
    monkeypatch.setenv("WMT_NODES", "1:4")
    assert launch.nodes() == (1, 4, "first:29400")
    monkeypatch.setenv("WMT_NODES", "1")
    assert launch.nodes() == (1, 1, "first:29400")


def test_torchrun_meets_over_a_file_on_one_node_and_over_the_network_on_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "0123-4567"
    command = launch.command(3, job)
    words = [sys.executable, "-m", "pipeline.training.launch", "nmt.training.trainer", "3", str(job), str(os.getpid())]
    assert command == words
    scratch = tmp_path / "scratch"
    each = ["--log-dir", os.devnull, "--nproc-per-node", "3", "-m", "nmt.training.trainer", str(job), str(os.getpid())]
    assert launch.arguments("nmt.training.trainer", "3", str(job), scratch) == [
        "--nnodes",
        "1:1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        str(scratch / "rendezvous"),
        "--rdzv-id",
        "0123-4567",
        "--rdzv-conf",
        "store_type=file,keep_alive_interval=600",
        "--local-addr",
        "127.0.0.1",
        *each,
    ]
    monkeypatch.setenv("WMT_NODES", "1:2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    assert launch.arguments("nmt.training.trainer", "3", str(job), scratch) == [
        "--nnodes",
        "1:2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "first:29400",
        "--rdzv-id",
        "0123-4567",
        "--rdzv-conf",
        "join_timeout=600",
        "--max-restarts",
        "100",
        *each,
    ]


def test_processes_share_the_cores_and_stay_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    malloc = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", *malloc):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OF_THE_USER", "kept")
    assert [launch.environment(count)["OMP_NUM_THREADS"] for count in (1, 2, 7, 8)] == ["7", "3", "1", "1"]
    made = launch.environment(1)
    ours = {
        *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", *malloc),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    }
    assert 30 < int(made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < launch.GRACE
    assert (made["OMP_WAIT_POLICY"], made["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]) == ("PASSIVE", "1")
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert made["OF_THE_USER"] == "kept"
    assert int(made["GOMP_SPINCOUNT"]) > 0
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert "GOMP_SPINCOUNT" not in launch.environment(1), "it would overrule the user's policy"
    monkeypatch.delenv("OMP_WAIT_POLICY")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    made = launch.environment(1)
    assert (made["OMP_NUM_THREADS"], made["GLOO_SOCKET_IFNAME"]) == ("5", "eth0")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    assert launch.environment(1).keys() - os.environ.keys() == ours - {"OMP_NUM_THREADS"}


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def listening(processes: list[psutil.Process]) -> set[str]:
    found = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            connections = process.net_connections("inet")
            found |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="asks to die with its parent")
@pytest.mark.timeout(240)
def test_one_process_listens_nowhere_and_leaves_nothing_where_its_stage_is_killed(
    tmp_path: Path, tiny_job: MakeJob
) -> None:
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    state.mkdir()
    temporary.mkdir()
    job = tiny_job(updates=1_000_000, resume_minutes=0.0001)
    (state / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
        "WMT_PROCESSES": "1",
    }
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(state)], cwd=tmp_path, env=environment)
    running = [psutil.Process(stage.pid)]
    try:
        wait_for(lambda: checkpoint.trained(state) > 0)
        running += running[0].children(recursive=True)
        assert len(running) >= 3, "the stage, torchrun and its one rank"
        assert listening(running) == set()
        (scratch,) = state.glob(".torchrun.*")
        # A name that the next start of the stage removes, should torchrun be killed too.
        assert scratch.match(".*.tmp")
        stage.kill()
        stage.wait()
        wait_for(lambda: not any(map(alive, running)))
    finally:
        for process in filter(alive, running):
            process.kill()
    assert (state / "interrupted").exists(), "no time to save the state"
    assert not [*state.glob(".*"), *temporary.glob("torchelastic*")]


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


SLEEPER = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1], "terminated").touch(), sys.exit(9)))
Path(sys.argv[1], "on").touch()
signal.pause()
"""


def test_an_error_in_watching_ends_torchrun_with_time_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_PROCESSES", "4")
    (tmp_path / "job.yaml").write_text("training: {shards: 4}")
    asked: list[tuple[int, Path]] = []

    def command(count: int, job: Path) -> list[str]:
        asked.append((count, job))
        return [sys.executable, "-c", SLEEPER, str(job)]

    def watch() -> None:
        if (tmp_path / "on").exists():
            raise InputError("enough")

    monkeypatch.setattr(launch, "command", command)
    with pytest.raises(InputError, match="enough"):
        launch.train(tmp_path, watch)
    assert (tmp_path / "terminated").exists()
    assert asked == [(4, tmp_path)]


def test_training_returns_torchruns_exit_status_and_gives_it_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_PROCESSES", "1")
    (tmp_path / "job.yaml").write_text("training: {shards: 1}")
    for code, status in (("pass", 0), ("import sys; sys.exit(3)", 3)):
        says = f"import os, sys; open(sys.argv[1], 'w').write(os.environ['OMP_WAIT_POLICY']); {code}"
        monkeypatch.setattr(
            launch, "command", lambda _, job, says=says: [sys.executable, "-c", says, str(job / "policy")]
        )
        assert launch.train(tmp_path, lambda: None) == status
        assert (tmp_path / "policy").read_text() == "PASSIVE"


@pytest.mark.parametrize(("status", "kind"), [(73, SystemExit), (1, ChildFailedError)])
def test_torchrun_hands_on_that_a_failure_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, kind: type[BaseException]
) -> None:
    from torch.distributed import run

    def main(_: list[str]) -> None:
        raise ChildFailedError("trainer", {0: ProcessFailure(0, 1, status, "")})

    monkeypatch.setattr(run, "main", main)
    monkeypatch.setattr(launch, "die_with_parent", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["launch", "trainer", "1", str(tmp_path), "1"])
    with pytest.raises(kind) as ended:
        launch.main()
    assert getattr(ended.value, "code", 1) == status


def test_a_process_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE", 0.1)
    ignores = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == b"on\n"
    launch._end(process)
    assert process.returncode == -signal.SIGKILL
    process.stdout.close()
    # Twice does no harm: its group is gone.
    launch._end(process)
