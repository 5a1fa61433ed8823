"""infra/slurm/train.sbatch on a Slurm cluster of one node, started here: Debian's slurm-wlm and munge, as root."""

import json
import os
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agents import until
from clones import SHRUNKEN, STAGES, Clone
from ports import free_port

from nmt.common.files import sha256_of

pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, ("munged", "slurmctld", "slurmd"))),
        reason="needs root and Debian's slurm-wlm and munge",
    ),
]
UPDATES = 1500  # slurm looks at time limits once a minute, and the training must still be going on then
LONG: dict[str, Any] = {
    **SHRUNKEN,
    "training": {**SHRUNKEN["training"], "updates": UPDATES, "checkpoint_every": 50, "validate_every": 100},
}
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
KillWait=120
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=4000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
LASTING = 600.0  # seconds that a step of the job may take on a busy machine


@contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """A cluster of this machine alone."""
    folder.chmod(0o755)
    (folder / "spool").mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o600)
    configuration = folder / "slurm.conf"
    ports = {"controller": free_port(), "node": free_port()}
    configuration.write_text(CONFIGURATION.format(host=socket.gethostname(), folder=folder, **ports))
    names = {name: folder / f"munge.{name}" for name in ("socket", "pid-file", "log-file", "seed-file")}
    munged = ["munged", "--foreground", "--force", f"--key-file={key}", *(f"--{n}={path}" for n, path in names.items())]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, ready in (
            (munged, names["socket"].exists),
            (["slurmctld", "-D"], lambda: answers("scontrol", "ping", have="is UP")),
            (["slurmd", "-D"], lambda: answers("sinfo", "--noheader", "--format=%T", have="idle")),
        ):
            with (folder / "services.log").open("ab") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
            until(ready, f"{command[0]}: {(folder / 'services.log').read_text()[-2000:]}", 60)
        yield
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()


def answers(*words: str, have: str) -> bool:
    result = subprocess.run(words, capture_output=True, text=True, check=False)
    return result.returncode == 0 and have in result.stdout


def job(number: str) -> dict[str, str]:
    """What Slurm says of a job."""
    shown = subprocess.run(["scontrol", "show", "job", number], capture_output=True, text=True, check=True).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


def trained(clone: Clone) -> int:
    """The last update in the history of the clone's training."""
    histories = list((clone.folder / "work/train").glob("*/history.jsonl"))
    lines = [line for history in histories for line in history.read_bytes().split(b"\n")[:-1]]
    return int(json.loads(lines[-1])["update"]) if lines else 0


def weights(clone: Clone) -> dict[str, str]:
    return {str(path.parent.name): sha256_of(path) for path in (clone.folder / "models").glob("*/model.safetensors")}


def test_a_job_that_is_requeued_twice_ends_with_the_same_bits(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clones = [Clone(tmp_path / name) for name in ("undisturbed", "queued")]
    for clone in clones:
        clone.params(overrides=LONG)
    assert clones[0].repro() == STAGES
    clone, folder = clones[1], tmp_path_factory.mktemp("slurm")
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    with slurm(folder):
        submitted = clone.run("sbatch", "--parsable", "infra/slurm/train.sbatch")
        assert submitted.returncode == 0, submitted.stderr
        number = submitted.stdout.strip()
        log = clone.folder / f"wmt-{number}.log"

        def at(update: int) -> bool:
            assert job(number)["JobState"] not in {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, log.read_text()
            return trained(clone) >= update

        until(lambda: at(UPDATES // 6), "training", LASTING)
        subprocess.run(["scontrol", "requeue", number], check=True)
        until(lambda: job(number)["Restarts"] == "1" and job(number)["JobState"] == "RUNNING", "a second try", LASTING)
        before = trained(clone)
        assert before < UPDATES
        until(lambda: at(before + UPDATES // 6), "training again", LASTING)
        # Two minutes before its time is over the job gets SIGTERM, saves its state and queues itself again. Slurm
        # counts from the start of this try, and kills a job at once whose time is over already.
        hours, minutes, _ = map(int, job(number)["RunTime"].split(":"))
        limit = f"TimeLimit={60 * hours + minutes + 3}"
        subprocess.run(["scontrol", "update", f"JobId={number}", limit], check=True)
        until(lambda: job(number)["Restarts"] == "2", "the job to queue itself again", LASTING)
        subprocess.run(["scontrol", "update", f"JobId={number}", "TimeLimit=UNLIMITED"], check=True)
        until(lambda: job(number)["JobState"] == "COMPLETED" or not at(0), "the end of the job", LASTING)
    text = log.read_text()
    assert "BLEU" in text.splitlines()[-5], text[-2000:]
    (done,) = (clone.folder / "work/train").glob("*/done.json")
    assert json.loads(done.read_text())["resumes"] == 2
    assert weights(clone) == weights(clones[0])
    assert not list(clone.folder.glob(".status.*"))
