"""infra/compose.yaml in containers: built, started, its servers killed in turn during a run, stopped and started again.

Then infra/slurm/train.sbatch on two containers as the nodes of a cluster.

Base images that no registry gives are made from Debian's packages: that needs root, mmdebstrap and rclone.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from agents import until
from clones import SHRUNKEN, Clone
from mlflow import MlflowClient
from ports import free_port

from tests.soak.team import PASSWORD, programs, use_dask_for_short_texts, use_small_blocks


def answers(*words: str) -> bool:
    """Whether a program is there and its command succeeds."""
    return (
        shutil.which(words[0]) is not None and subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (answers("docker", "info") and answers("docker", "compose", "version")),
        reason="needs a Docker daemon, with Compose 2.24 or newer",
    ),
]
KILLED = ("postgres", "s3", "prefect", "mlflow")
STEP = 100  # updates between two kills
UPDATES = STEP * (len(KILLED) + 2)
LONG: dict[str, Any] = {**SHRUNKEN, "training": {**SHRUNKEN["training"], "updates": UPDATES, "checkpoint_every": 100}}
LASTING = 900.0  # seconds that a step may take on a busy machine

PYTHON, POSTGRES, RCLONE = "python:3.13-slim-trixie", "postgres:17.6", "rclone/rclone:1.75.2"
FIRST_START = """#!/bin/sh
set -eu
export PATH=/usr/lib/postgresql/17/bin:$PATH PGDATA=/var/lib/postgresql/data
if [ "$(id -u)" = 0 ]; then
    install --directory --owner=postgres /run/postgresql
    chown -R postgres "$PGDATA"
    exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "$POSTGRES_PASSWORD" > /tmp/password
    initdb --username="$POSTGRES_USER" --pwfile=/tmp/password --auth=scram-sha-256
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    echo "listen_addresses = '*'" >> "$PGDATA/postgresql.conf"
    pg_ctl --wait --options="-c listen_addresses=''" start
    for file in /docker-entrypoint-initdb.d/*.sql; do
        PGPASSWORD=$POSTGRES_PASSWORD psql --username="$POSTGRES_USER" --dbname=postgres --file="$file"
    done
    pg_ctl --wait --mode=fast stop
fi
exec "$@"
"""
"""What the image of PostgreSQL does, as far as compose.yaml uses it."""


def debian(folder: Path, packages: str, *hooks: str) -> Path:
    """The files of a Debian with `packages`, as an archive."""
    archive = folder / f"{packages.split(',', maxsplit=1)[0]}.tar"
    words = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={packages},ca-certificates"]
    subprocess.run([*words, *(f"--customize-hook={hook}" for hook in hooks), "trixie", str(archive)], check=True)
    return archive


def make_base_image(name: str, folder: Path) -> None:
    """Make what stands for an image that no registry gives."""
    changes: list[str] = []
    if name == PYTHON:
        link = 'ln -s /usr/bin/python3 "$1/usr/local/bin/python" && rm "$1"/usr/lib/python3*/EXTERNALLY-MANAGED'
        certificates = Path("/etc/ssl/certs/ca-certificates.crt")
        trust = [f'cp {certificates} "$1{certificates}"'] if certificates.exists() else []
        archive = debian(folder, "python3,python3-venv,python3-pip", link, *trust)
        changes = [f"ENV SSL_CERT_FILE={certificates}"]
    elif name == POSTGRES:
        entry = folder / "first-start"
        entry.write_text(FIRST_START)
        entry.chmod(0o755)
        data = 'rm -rf "$1"/var/lib/postgresql/* && mkdir "$1/var/lib/postgresql/data"'
        archive = debian(folder, "postgresql-17", f'cp {entry} "$1/usr/local/bin"', data)
        changes = ['ENTRYPOINT ["first-start"]', "STOPSIGNAL SIGINT"]
    else:
        archive = folder / "rclone.tar"
        rclone = Path(str(shutil.which("rclone", path=programs()))).resolve()
        subprocess.run(
            ["tar", "--create", f"--file={archive}", f"--directory={rclone.parent}", rclone.name], check=True
        )
        changes = ["ENV PATH=/"]
    words = [word for change in changes for word in ("--change", change)]
    subprocess.run(["docker", "import", *words, str(archive), name], check=True, capture_output=True)
    archive.unlink()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    """A checkout with passwords, ports and volumes of its own."""
    for name in (PYTHON, POSTGRES, RCLONE):
        if not (answers("docker", "image", "inspect", name) or answers("docker", "pull", name)):
            if os.getuid() != 0 or not all(shutil.which(one, path=programs()) for one in ("mmdebstrap", "rclone")):
                pytest.skip(f"{name} cannot be pulled, nor made: that needs root, mmdebstrap and rclone")
            make_base_image(name, tmp_path)
    clone = Clone(tmp_path / "clone")
    clone.params(overrides=LONG)
    values = {
        **dict.fromkeys(("POSTGRES_PASSWORD", "PREFECT_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY"), PASSWORD),
        **{name: str(free_port()) for name in ("MLFLOW_PORT", "PREFECT_PORT", "S3_PORT")},
        "WMT_TORCH": os.environ.get("WMT_TORCH", "cuda"),
        "WMT_USER": f"{os.getuid() or 1000}:{os.getgid() or 1000}",
        "COMPOSE_PROJECT_NAME": "wmt-soak",
    }
    (clone.folder / "infra/.env").write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    if os.getuid() == 0:
        subprocess.run(["chown", "--recursive", "1000:1000", str(clone.folder)], check=True)
    try:
        yield clone
    finally:
        print(compose(clone, "ps", "--all"), compose(clone, "logs", "--no-color", "--tail=40"))
        compose(clone, "down", "--volumes", "--timeout=20")


def compose(clone: Clone, *words: str, must: bool = False) -> str:
    """The output of a command of Compose."""
    result = clone.run("docker", "compose", "--file", "infra/compose.yaml", *words)
    assert result.returncode == 0 or not must, result.stdout + result.stderr
    return result.stdout


def docker(*words: str, given: str | None = None) -> str:
    return subprocess.run(["docker", *words], input=given, capture_output=True, text=True, check=True).stdout


def start(clone: Clone) -> None:
    """The command of infra/README.md, at its first try, and the deployments."""
    compose(clone, "up", "--detach", "--build", must=True)
    deploy = compose(clone, "ps", "--all", "--quiet", "deploy", must=True).strip()
    assert clone.run("docker", "wait", deploy).stdout.strip() == "0", compose(clone, "logs", "deploy")
    page = urllib.request.Request(f"http://127.0.0.1:{env(clone)['PREFECT_PORT']}/")
    page.add_header("Authorization", f"Basic {base64.b64encode(f'wmt:{PASSWORD}'.encode()).decode()}")
    with urllib.request.urlopen(page, timeout=60) as answer:
        assert b"<html" in answer.read().lower()


def flow_run(clone: Clone, identity: str) -> str:
    """The state of a run, from PostgreSQL."""
    query = f"SELECT state_type FROM flow_run WHERE id = '{identity}'"
    words = ["psql", "--username=wmt", "--dbname=prefect", "--no-align", "--tuples-only", f"--command={query}"]
    environment = f"--env=PGPASSWORD={PASSWORD}"
    return compose(clone, "exec", "--no-TTY", environment, "postgres", *words, "--host=127.0.0.1").strip()


def trained(clone: Clone) -> int:
    """The last update of the training."""
    histories = [path.read_text() for path in (clone.folder / "work/train").glob("*/history.jsonl")]
    return max((json.loads(line)["update"] for text in histories for line in text.split("\n")[:-1]), default=0)


def tracked(server: str) -> tuple[Any, dict[str, list[int]], bytes]:
    """A run of MLflow, finished: what it says of itself, the steps of its numbers, and its report."""
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("wmt-en-de")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    histories = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    steps = {key: sorted(point.step for point in points) for key, points in histories.items() if "system/" not in key}
    # As the page of the run fetches it.
    url = f"{server}/get-artifact?path=report.html&run_uuid={run.info.run_id}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        return (run.info.status, run.data.metrics), steps, answer.read()


def blocks(clone: Clone) -> int:
    """The number of blocks that the Dask worker with the fewest has computed; 0 until both are there."""
    count = "list(client.run(lambda dask_worker: dask_worker.state.executed_count).values())"
    script = f"import distributed; client = distributed.Client('tcp://dask-scheduler:8786'); print(*{count})"
    counts = compose(clone, "exec", "--no-TTY", "worker", "python", "-c", script, must=True).split()
    return min(map(int, counts)) if len(counts) == 2 else 0


def test_services_that_are_killed_in_their_containers_lose_nothing(clone: Clone) -> None:
    with (clone.folder / "infra/.env").open("a") as file:
        file.write("COMPOSE_PROFILES=dask\nWMT_EXECUTOR=dask://dask-scheduler:8786\n")
    use_dask_for_short_texts(clone)
    use_small_blocks(clone)
    start(clone)
    words = ["exec", "--no-TTY", "worker", "prefect", "deployment", "run", "wmt-en-de", "-p", "row=sample"]
    compose(clone, *words, must=True)
    until(lambda: blocks(clone) > 20, "blocks from both Dask workers", LASTING)
    for word in ("kill", "start"):
        docker(word, f"{env(clone)['COMPOSE_PROJECT_NAME']}-dask-worker-1")
    assert trained(clone) == 0, "no data stage was at work when the worker was killed"
    for number, name in enumerate((*KILLED, "worker")):
        until(lambda at=number: trained(clone) > STEP * at, f"update {STEP * number}", LASTING)
        compose(clone, "kill", name, must=True)
        compose(clone, "start", name, must=True)
    # The first run ended with its worker; the second resumes its training.
    assert trained(clone) < UPDATES
    identity = compose(clone, *words, must=True).split("UUID: ")[1].split()[0]
    until(lambda: flow_run(clone, identity) not in {"", "PENDING", "SCHEDULED", "RUNNING"}, "the run's end", LASTING)
    assert flow_run(clone, identity) == "COMPLETED"
    compose(clone, "exec", "--no-TTY", "worker", "wmt", "publish")  # what a server that was away has not taken
    server = f"http://{compose(clone, 'port', 'mlflow', env(clone)['MLFLOW_PORT'], must=True).strip()}"
    (state, metrics), steps, report = before = tracked(server)
    assert state == "FINISHED"
    assert "bleu" in metrics
    assert b"BLEU" in report
    assert all(updates_sent == sorted(set(updates_sent)) for updates_sent in steps.values()), steps
    assert steps["valid_loss"][-1] == UPDATES
    compose(clone, "down", must=True)
    start(clone)
    assert tracked(server) == before
    assert flow_run(clone, identity) == "COMPLETED"


def env(clone: Clone) -> dict[str, str]:
    lines = (clone.folder / "infra/.env").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.skipif(find_spec("prefect_docker") is None, reason="needs the package prefect-docker")
def test_a_run_in_a_container_of_its_own(clone: Clone) -> None:
    """A worker on this machine starts it in the servers' network; it works in the checkout, as its owner."""
    clone.params(overrides=SHRUNKEN)
    start(clone)
    values = env(clone)
    text = (clone.folder / "infra/prefect.yaml").read_text()
    for before, after in (
        ("<<: *in_process", "<<: *in_docker"),
        ("wmt-transformer:cpu", f"wmt-transformer:{values['WMT_TORCH']}"),
        ("wmt_default", f"{values['COMPOSE_PROJECT_NAME']}_default"),
        ("mlflow:5000", f"mlflow:{values['MLFLOW_PORT']}"),
        ("prefect:4200", f"prefect:{values['PREFECT_PORT']}"),
    ):
        assert before in text
        text = text.replace(before, after)
    (clone.folder / "infra/prefect.yaml").write_text(text)
    variables = {
        "PREFECT_API_URL": f"http://127.0.0.1:{values['PREFECT_PORT']}/api",
        "PREFECT_API_AUTH_STRING": f"wmt:{PASSWORD}",
        "WMT_CHECKOUT": str(clone.folder),
        "WMT_USER": values["WMT_USER"],
    }

    def prefect(*words: str) -> str:
        given = (f"{name}={value}" for name, value in variables.items())
        result = clone.run("env", *given, sys.executable, "-m", "prefect", *words)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    prefect("work-pool", "create", "wmt-docker", "--type", "docker")
    prefect("--no-prompt", "deploy", "--all", "--prefect-file", "infra/prefect.yaml")
    with (clone.folder.parent / "worker.log").open("wb") as log:
        command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "wmt-docker", "--limit", "4"]
        worker = subprocess.Popen(
            command, cwd=clone.folder, env={**clone.environment(), **variables}, stdout=log, stderr=log
        )
        try:
            said = prefect("deployment", "run", "wmt-en-de/wmt-en-de", "-p", "row=sample")
            identity = said.split("UUID: ")[1].split()[0]
            ended = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
            until(lambda: flow_run(clone, identity) in ended, "the run's end", LASTING)
        finally:
            worker.terminate()
            worker.wait()
    assert flow_run(clone, identity) == "COMPLETED", (clone.folder.parent / "worker.log").read_text()[-5000:]
    (done,) = (clone.folder / "work/train").glob("*/done.json")
    assert f"{done.stat().st_uid}:{done.stat().st_gid}" == values["WMT_USER"]
    (state, metrics), _, _ = tracked(f"http://127.0.0.1:{values['MLFLOW_PORT']}")
    assert state == "FINISHED"
    assert "bleu" in metrics


NODES = ("node1", "node2")
SLURM = """FROM {image}
USER root
RUN apt-get update && apt-get install --yes --no-install-recommends slurm-wlm munge
HEALTHCHECK NONE
CMD ["sleep", "infinity"]
"""
CONFIGURATION = """ClusterName=test
SlurmctldHost=node1
SlurmUser=root
StateSaveLocation=/run/slurm
SlurmdSpoolDir=/run/slurmd
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
ReturnToService=2
KillWait=120
NodeName=node[1-2] CPUs=1 RealMemory=2000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
SERVICES = """install --directory --owner=munge /run/munge
install --owner=munge --mode=0600 /etc/slurm/munge.key /etc/munge
setpriv --reuid=munge --regid=munge --clear-groups munged
mkdir /run/slurm
[ "$(hostname)" != node1 ] || slurmctld
slurmd
"""
"""What each node starts."""


def on_node(*words: str) -> str:
    """The output of a command on the first node, in the repository's folder."""
    return docker("exec", "wmt-soak-node1", *words)


def job(number: str) -> dict[str, str]:
    """What Slurm says of a job."""
    return dict(word.split("=", 1) for word in on_node("scontrol", "show", "job", number).split() if "=" in word)


@pytest.fixture
def cluster(clone: Clone, tmp_path: Path) -> Iterator[Clone]:
    """Two nodes that share the clone as their folder."""
    compose(clone, "build", "mlflow", must=True)
    docker("build", "--tag=wmt-slurm", "-", given=SLURM.format(image=f"wmt-transformer:{env(clone)['WMT_TORCH']}"))
    settings = tmp_path / "slurm"
    settings.mkdir()
    (settings / "slurm.conf").write_text(CONFIGURATION)
    (settings / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
    (settings / "munge.key").write_bytes(os.urandom(1024))
    docker("network", "create", "wmt-slurm")
    try:
        for node in NODES:
            words = ["--detach", "--init", f"--name=wmt-soak-{node}", f"--hostname={node}", f"--network-alias={node}"]
            volumes = [f"--volume={clone.folder}:/srv/wmt", f"--volume={settings}:/etc/slurm:ro"]
            docker("run", *words, *volumes, "--network=wmt-slurm", "wmt-slurm")
            docker("exec", f"wmt-soak-{node}", "sh", "-ec", SERVICES)
        until(
            lambda: "idle" in (shown := on_node("sinfo", "--noheader", "--format=%T %D")) and "2" in shown, "nodes", 120
        )
        yield clone
    finally:
        for node in NODES:
            subprocess.run(["docker", "rm", "--force", f"wmt-soak-{node}"], check=False)
        docker("network", "rm", "wmt-slurm")


def test_a_job_on_two_nodes_trains_on_both_and_resumes_when_it_is_requeued(cluster: Clone) -> None:
    training = {**LONG["training"], "shards": 2}
    cluster.params(overrides={**LONG, "training": training})
    number = on_node("sbatch", "--parsable", "--nodes=2", "infra/slurm/train.sbatch").strip()
    log = cluster.folder / f"wmt-{number}.log"

    def at(update: int) -> bool:
        assert job(number)["JobState"] not in {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"}, log.read_text()
        return trained(cluster) >= update

    until(lambda: at(UPDATES // 4), "training", LASTING)
    on_node("scontrol", "requeue", number)
    until(lambda: job(number)["Restarts"] == "1" and job(number)["JobState"] == "RUNNING", "a second try", LASTING)
    assert trained(cluster) < UPDATES
    until(lambda: job(number)["JobState"] == "COMPLETED" or not at(0), "the end of the job", LASTING)
    assert "BLEU" in log.read_text()
    (done,) = (json.loads(path.read_text()) for path in (cluster.folder / "work/train").glob("*/done.json"))
    assert done["resumes"] == 1
    assert done["processes"] == 2
