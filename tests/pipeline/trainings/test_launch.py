"""torchrun on one machine: what it is started with, where it listens, and what it leaves behind."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch
import yaml
from agents import family, is_over, listening, wait_for
from clones import ROOT
from refusals import check_refusal
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from trainings import MakeJob

from nmt.common.processes import UNUSABLE
from nmt.errors import InputError
from nmt.training import checkpoint
from pipeline.config import machine
from pipeline.trainings import launch

STAGE = """
import sys
from pathlib import Path
from pipeline.trainings import launch
launch.torchrun(Path(sys.argv[1]), lambda: None)
"""
"""What the stage `train` does, in a process that can be killed."""


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS")


def here(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = [machine.Gpu(f"GPU-{number}", "H100", "81559 MiB", "9.0") for number in range(gpus)]
    monkeypatch.setattr(machine, "gpus", lambda: installed)


@pytest.mark.parametrize(
    ("asked", "gpus", "shards", "count"),
    [
        *(("1", 0, 16, 1), ("8", 0, 16, 8), ("1", 2, 16, 1), ("2", 2, 16, 2)),
        *((None, 0, 1, 1), (None, 0, 2, 2), (None, 0, 16, 4), (None, 1, 16, 1), (None, 8, 16, 8)),
        *((None, 6, 16, 4), (None, 8, 2, 2), (None, 3, 1, 1)),
    ],
)
def test_processes_are_those_asked_for_or_one_a_gpu_or_core_as_far_as_shards_can_be_divided(
    asked: str | None, gpus: int, shards: int, count: int, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    here(gpus, monkeypatch)
    monkeypatch.setattr(machine, "available_cores", lambda: 6)
    if asked:
        monkeypatch.setenv("WMT_PROCESSES", asked)
    assert launch.process_count(shards) == count
    message = f"training uses {count} of {gpus} GPUs: training.shards is {shards}, and the processes must divide it\n"
    assert capsys.readouterr().out == (message if asked is None and count < gpus else "")


def test_gpus_that_stand_by_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    here(8, monkeypatch)
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    told = "training.shards is 8; set overrides.training.shards to 16, or use fewer nodes\n"
    for shards, line in ((8, f"8 of 16 GPUs work, the others stand by: {told}"), (16, "")):
        assert launch.process_count(shards) == 8
        assert capsys.readouterr().out == line


@pytest.mark.parametrize(
    ("asked", "gpus", "rule"),
    [
        *((asked, 0, f"WMT_PROCESSES is '{asked}', and .* it must be a whole") for asked in ("0", "-1", "", "1.5")),
        ("4", 2, "WMT_PROCESSES is '4', and this machine has 2 GPUs .* on GPUs at most one"),
        ("3", 0, "3 processes cannot train together: training.shards is 16, .* must divide it; use 2 pro"),
        ("32", 0, "32 processes cannot train together: .* use 16 processes, or change training.shards$"),
    ],
)
def test_other_process_counts_are_refused(asked: str, gpus: int, rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here(gpus, monkeypatch)
    monkeypatch.setenv("WMT_PROCESSES", asked)
    check_refusal(f"^{rule}", launch.process_count, 16)


@pytest.mark.parametrize(
    ("nodes", "place"),
    [
        *((nodes, "first:29400") for nodes in ("0", "two", "", "2:1", "1:", "0:2", "1:2:3")),
        *(("2", place) for place in ("", "first", ":29400", "first:port", "first:29400 ")),
    ],
)
def test_other_nodes_and_meeting_places_are_refused(nodes: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_NODES", nodes)
    monkeypatch.setenv("WMT_RENDEZVOUS", place)
    check_refusal(f"^WMT_NODES is '{nodes}' and WMT_RENDEZVOUS '{place}': the first must be a", launch.nodes)


def test_torchrun_meets_over_a_file_or_the_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With patience; real trainings here and in tests/distributed have all other arguments."""
    alone = launch.arguments("nmt.training.loop", "3", "0123-4567", tmp_path)
    assert {f"{tmp_path}/rendezvous", "store_type=file,keep_alive_interval=600"} < set(alone)
    monkeypatch.setenv("WMT_NODES", "1:2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    several = launch.arguments("nmt.training.loop", "3", "0123-4567", tmp_path)
    assert {"1:2", "first:29400", "0123-4567", "join_timeout=600", "100"} < set(several)


def test_processes_share_the_cores_and_stay_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(7)))
    monkeypatch.setattr(machine, "CGROUP", Path("without groups"))
    malloc = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", *malloc):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OF_THE_USER", "kept")
    # They are arguments: PET_NO_PYTHON would start no trainer, PET_STANDALONE leaves a file.
    monkeypatch.setenv("PET_NO_PYTHON", "1")
    assert [launch.environment(count)["OMP_NUM_THREADS"] for count in (1, 2, 7, 8)] == ["7", "3", "1", "1"]
    made = launch.environment(1)
    assert 30 < int(made["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < launch.GRACE
    assert (made["OMP_WAIT_POLICY"], made["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"]) == ("PASSIVE", "1")
    assert (made["GLOO_SOCKET_IFNAME"], made["NCCL_SOCKET_IFNAME"]) == ("lo", "=lo")
    assert (made["OF_THE_USER"], made.keys() & {"PET_NO_PYTHON"}) == ("kept", set())
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
    assert {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"}.isdisjoint(launch.environment(1).keys() - os.environ.keys())


@pytest.mark.timeout(240)
def test_one_process_listens_nowhere_and_leaves_nothing_when_killed(tmp_path: Path, tiny_job: MakeJob) -> None:
    state, temporary = tmp_path / "state", tmp_path / "tmp"
    state.mkdir()
    temporary.mkdir()
    job = tiny_job(updates=1_000_000, resume_minutes=0.0001)
    (state / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)}
    environment |= {"OMP_NUM_THREADS": "1", "WMT_PROCESSES": "1"}
    stage = subprocess.Popen([sys.executable, "-c", STAGE, str(state)], cwd=tmp_path, env=environment)
    running = [psutil.Process(stage.pid)]
    try:
        wait_for(lambda: checkpoint.last_saved_update(state) > 0)
        running = family(stage.pid)
        assert len(running) >= 3, "the stage, torchrun and its one rank"
        assert listening(running) == set()
        (scratch,) = state.glob(".torchrun.*")
        # A name that the next start removes, should torchrun be killed too.
        assert scratch.match(".*.tmp")
        _, torchrun, rank = running
        rank.suspend()
        for _ in range(4):  # As where a whole group is ended more than once; the stage's death is one more.
            torchrun.terminate()
            time.sleep(0.5)
        stage.kill()
        stage.wait()
        time.sleep(0.5)
        rank.resume()
        wait_for(lambda: all(map(is_over, running)))
    finally:
        for process in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
    assert (state / "interrupted").exists(), "no time to save the state"
    assert not [*state.glob(".*"), *temporary.glob("torchelastic*")]


SLEEPER = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGTERM, lambda *_: (Path(sys.argv[1], "terminated").touch(), sys.exit(9)))
Path(sys.argv[1], "on").touch()
signal.pause()
"""


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_model_larger_than_the_memory_is_refused_before_torchrun_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: MakeJob, gpus: int
) -> None:
    here(gpus, monkeypatch)
    monkeypatch.setenv("WMT_PROCESSES", "1")
    monkeypatch.setattr(machine.os, "sysconf", lambda name: 2**18)  # 64 GiB in all
    monkeypatch.setattr(machine, "CGROUP", Path("without groups"))
    monkeypatch.setattr(launch, "command", lambda *_: ["true"])

    def train(d_ff: int) -> int:
        job = tiny_job(shards=1)
        job["model"] |= {"N": 100, "d_ff": d_ff}  # 6.4 thousand parameters a unit, with 16 bytes each
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        return launch.torchrun(tmp_path, lambda: None)

    if gpus:  # which torch does not find
        check_refusal("torch .* cannot use this machine's GPUs", train, 8_000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert train(8_000) == 0
    check_refusal(r"take 98\.\d GiB, but the device has (64\.0|79\.6) GiB: lower model\.", train, 1_000_000)


def test_an_error_in_watching_ends_torchrun_with_time_for_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: MakeJob
) -> None:
    monkeypatch.setenv("WMT_PROCESSES", "4")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job(shards=4)))
    command = Mock(return_value=[sys.executable, "-c", SLEEPER, str(tmp_path)])

    def watch() -> None:
        if (tmp_path / "on").exists():
            raise InputError("enough")

    monkeypatch.setattr(launch, "command", command)
    check_refusal("", launch.torchrun, tmp_path, watch)
    assert (tmp_path / "terminated").exists()
    command.assert_called_once_with(4, tmp_path)


def test_training_returns_torchruns_exit_status_and_gives_it_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: MakeJob
) -> None:
    monkeypatch.setenv("WMT_PROCESSES", "1")
    monkeypatch.setenv("WMT_NODES", "2")
    monkeypatch.setenv("WMT_RENDEZVOUS", "first:29400")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job(shards=1)))
    for code, status in (("pass", 0), ("sys.exit(3)", 3), ("sys.exit(1)", 1)):
        says = f"import os, sys; open(sys.argv[1], 'w').write(os.environ['OMP_WAIT_POLICY']); {code}"
        command = [sys.executable, "-c", says, str(tmp_path / "policy")]
        monkeypatch.setattr(launch, "command", lambda *_, command=command: command)
        assert launch.torchrun(tmp_path, lambda: None) == status
        assert (tmp_path / "policy").read_text() == "PASSIVE"
    assert (tmp_path / "rendezvous").read_text() == "first:29400", "`wmt join` finds the training by it"
    monkeypatch.delenv("WMT_NODES")
    assert launch.torchrun(tmp_path, lambda: None) == UNUSABLE, "alone it lost nobody"


def test_portable_arithmetic_sees_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_job: MakeJob) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU-1, H100, 81559 MiB, 9.0'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    machine.gpus.cache_clear()
    for arithmetic, processes, gpus in (("ordinary", 1, "0"), ("portable", 2, "")):
        sees = ["sh", "-c", f'test "$CUDA_VISIBLE_DEVICES" = "{gpus}"']
        monkeypatch.setattr(launch, "command", command := Mock(return_value=sees))
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job(shards=2, arithmetic=arithmetic)))
        assert launch.torchrun(tmp_path, lambda: None) == 0
        command.assert_called_once_with(processes, tmp_path)


@pytest.mark.parametrize(("status", "told"), [(73, 73), (1, 1), (-9, 137), (RuntimeError("unknown first node"), 70)])
def test_torchrun_hands_on_how_its_processes_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int | Exception, told: int
) -> None:
    from torch.distributed import run

    failed = ChildFailedError("trainer", {0: ProcessFailure(0, 1, status, "")}) if isinstance(status, int) else status
    monkeypatch.setattr(run, "main", Mock(side_effect=failed))
    monkeypatch.setattr(sys, "argv", ["launch", "trainer", "1", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        launch.main()
    assert ended.value.code == told
