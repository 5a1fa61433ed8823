"""The scripts of infra/ with stand-ins for the programs that they start: in which order, and with which arguments."""

import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from agents import until
from clones import ROOT, commit
from stores import BUCKET, rclone

from pipeline import __main__ as runner

INFRA = ROOT / "infra"
DVC = """
end() { mkdir -p .dvc/tmp/status; cp "$TMPDIR/.dvc/tmp/status/$1.json" .dvc/tmp/status/train.json; exit 1; }
trap 'end interrupted' TERM
[[ $STATE = interrupted ]] || end $STATE
echo training
while :; do sleep 0.1; done
"""
"""A stand-in for `dvc`, whose last stage ends with the status $STATE."""


def stand_in(name: str, body: str = "") -> None:
    """A program that notes its name and arguments in `calls` of its working folder, then runs `body`."""
    program = Path(".venv/bin", name)
    program.write_text(f"#!/bin/bash\necho {name} $* >> calls\n{body}\n")
    program.chmod(0o755)


@pytest.fixture
def here(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder whose programs come first; `wmt` is one that does nothing."""
    (here / ".venv/bin").mkdir(parents=True)
    stand_in("wmt")
    monkeypatch.setenv("PATH", f"{here / '.venv/bin'}:{os.environ['PATH']}")
    return here


def run(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def calls() -> list[str]:
    return Path("calls").read_text().splitlines()


def submit(
    here: Path, nodes: int, node: str = "", squeue: str = "", dvc: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the job's script as the first of `nodes` nodes would; `node` is what Slurm says of that node."""
    for name in ("dvc.yaml", "params.yaml"):
        (here / name).touch()
    stand_in("scontrol", f'[ "$2" = node ] && echo "{node}" || seq --format=n%g 9')
    stand_in("squeue", squeue)
    stand_in("dvc", dvc)
    # What follows the options.
    stand_in("srun", 'while [[ $1 = -* ]]; do shift; done\nexec "$@"')
    job = {"SLURM_SUBMIT_DIR": str(here), "SLURM_JOB_NODELIST": "n[1-9]", "SLURM_JOB_ID": "7"}
    return run(INFRA / "slurm/train.sbatch", **job, SLURM_JOB_NUM_NODES=str(nodes), **variables)


@pytest.mark.parametrize("nodes", [1, 4])
def test_a_job_of_several_nodes_starts_one_process_on_each(here: Path, nodes: int) -> None:
    """Without --ntasks, srun starts as many tasks as the job has, on however few nodes."""
    assert submit(here, nodes).returncode == 0
    (first,) = (call.split() for call in calls() if call.startswith("srun ") and "dvc repro" in call)
    assert {"--nodes=1", "--ntasks=1", "--nodelist=n1"} <= set(first)
    others = [call.split() for call in calls() if call.startswith("srun ") and call.endswith(" wmt join")]
    assert len(others) == (nodes > 1)
    for words in others:
        assert {f"--nodes={nodes - 1}", f"--ntasks={nodes - 1}", "--exclude=n1"} <= set(words)


def test_a_second_job_in_the_folder_is_refused_before_it_unlocks(here: Path) -> None:
    (here / ".dvc/tmp").mkdir(parents=True)
    with (here / ".dvc/tmp/job.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stand_in("flock", "exec /usr/bin/flock --nonblock $3")
        result = submit(here, 1)
    assert result.returncode == 1
    assert f"sbatch: another job works in {here}: wait for its end, or submit this in a clone" in result.stderr
    assert calls() == ["flock --timeout 120 9"]
    assert "submit this: sbatch infra/slurm/train.sbatch" in run(INFRA / "slurm/train.sbatch").stderr


def test_a_job_that_makes_no_progress_is_queued_again_three_times(here: Path) -> None:
    """As one whose process is killed for its memory; each new state of the training begins the count anew."""
    status, newest = here / ".dvc/tmp/status/train.json", here / "work/train/1-2/resume/update-00000005"
    newest.mkdir(parents=True)

    def requeued() -> bool:
        Path("calls").unlink(missing_ok=True)
        report = f'mkdir -p {status.parent}; echo \'"state": "interrupted"\' > {status}; exit 1'
        submit(here, 1, squeue="echo RUNNING", dvc=report)
        return any(call == "scontrol requeue 7" for call in calls())

    assert [requeued() for _ in range(5)] == [True, True, True, False, False]
    newest.rename(newest.with_name("update-00000010"))
    assert [requeued() for _ in range(4)] == [True, True, True, False]


@pytest.mark.parametrize(
    ("node", "given", "warned"), [("Gres=gpu:h100:8", "", True), ("Gres=gpu:8", "8", False), ("Gres=(null)", "", False)]
)
def test_a_job_that_leaves_gpus_unused_says_so(here: Path, node: str, given: str, warned: bool) -> None:
    result = submit(here, 1, node, SLURM_GPUS_ON_NODE=given)
    assert result.returncode == 0
    assert ("n1 has GPUs, but this job asked for none and works on the CPU: add --gpus" in result.stderr) == warned


@pytest.mark.parametrize("script", ["slurm/train.sbatch", "kubernetes/node", "recover"])
def test_scripts_mend_the_locks_of_dvc_before_it_works(script: str) -> None:
    lines = (INFRA / script).read_text().splitlines()
    assert lines.index("wmt unlock") < next(at for at, line in enumerate(lines) if line.strip().startswith("dvc r"))


def test_a_recovery_pushes_what_is_finished_before_training(here: Path) -> None:
    stand_in("dvc")
    assert run(INFRA / "recover", "s3://bucket/dvc").returncode == 0
    order = [call.split()[-1] for call in calls() if " repro" in call or " push" in call]
    assert order == ["resolve", "--run-cache", "binarize", "--run-cache", "--pull", "--run-cache"]


FORBIDDEN = "Forbidden: An error occurred (403)"
PUSHES = f"""
import sys
from dvc.cli import main
for words in ("init --no-scm --quiet", "add result --quiet", "remote add --default store s3://{BUCKET}/dvc --quiet"):
    assert main(words.split()) == 0
sys.exit(main(["push"]))
"""
"""Pushes by DVC's command line in one process: it takes longer to import than to run."""


def test_dvc_answers_a_wrong_secret_with_a_403_that_recover_explains(here: Path) -> None:
    (here / "result").write_text("of a run")
    with rclone(here / "buckets") as store:
        wrong = {**store, "AWS_SECRET_ACCESS_KEY": "a-wrong-secret-of-mine"}
        result = run(sys.executable, "-c", PUSHES, **wrong)
    assert result.returncode == 255
    assert FORBIDDEN in result.stderr
    assert "of-mine" not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("call", "said", "done"),
    [("fetch", FORBIDDEN, []), ("push", FORBIDDEN, ["repro", "push"]), ("push", "no bucket", ["repro", "push"])],
)
def test_a_refusing_store_ends_a_recovery_at_once(here: Path, call: str, said: str, done: list[str]) -> None:
    """A 403 has two causes, which are named. What is fetched on a first machine is an error as well."""
    stand_in("dvc", f'[ $1 != {call} ] || {{ echo "ERROR: {said}: HeadObject" >&2; exit 255; }}\n[ $1 != fetch ]')
    result = run(INFRA / "recover", "s3://bucket/folder")
    assert result.returncode == 1
    both = "recover: s3://bucket/folder answers 403: the key or the secret is wrong, or this machine's clock, which is"
    assert (both if said == FORBIDDEN else f"ERROR: {said}: HeadObject\n") in result.stderr
    assert [words.split()[1] for words in calls()] == ["unlock", "remote", "fetch", *done]
    assert not any("--quiet" in words for words in calls() if " push" in words), "it hides what is wrong"
    assert ("not everything was fetched, as on a first machine" in result.stderr) == (call == "push")


@pytest.mark.parametrize(("state", "status"), [("refused", 3), ("failed", 1), ("interrupted", 128 + signal.SIGINT)])
def test_a_pod_tells_a_mistake_of_the_users_from_what_may_succeed_later(here: Path, state: str, status: int) -> None:
    image, shared = here / "image", here / "shared/work"
    runner.report_status(state, state, "the reason")
    image.mkdir()
    stand_in("dvc", DVC)
    (image / "infra").symlink_to(INFRA)
    commit(image)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "WMT_STATE": str(shared), "STATE": state, "TMPDIR": str(here)}
    log = here / "log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            ["infra/kubernetes/node"], cwd=image, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        ) as pod,
    ):
        if state == "interrupted":
            until(lambda: "training" in log.read_text() or pod.poll() is not None, "training", 60, 0.05)
            # Only to the container's first process, as it is stopped.
            pod.send_signal(signal.SIGINT)
        assert pod.wait(timeout=60) == status, log.read_text()
    assert f'"state": "{state}"' in (here / "shared/.dvc/tmp/status/train.json").read_text()
