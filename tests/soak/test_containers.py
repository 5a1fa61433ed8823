"""infra/compose.yaml in containers: built, started, its servers killed in turn during a run, stopped and started again.

Base images that no registry gives are made from Debian's packages: that needs root, mmdebstrap and rclone.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clones import SHRUNKEN, Clone
from compose import PASSWORD, programs
from mlflow import MlflowClient
from orchestra import until
from ports import free_port


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
STEP = 100
"""Updates between two kills."""
UPDATES = STEP * (len(KILLED) + 1)
LONG: dict[str, Any] = {**SHRUNKEN, "training": {**SHRUNKEN["training"], "updates": UPDATES, "checkpoint_every": 100}}
LASTING = 900.0
"""Seconds that a step may take on a busy machine."""

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
    lines = [line for one in (clone.folder / "work/train").glob("*/history.jsonl") for line in one.open()]
    return max((json.loads(line)["update"] for line in lines if line.endswith("\n")), default=0)


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


def test_servers_that_are_killed_in_their_containers_lose_nothing(clone: Clone) -> None:
    start(clone)
    words = ["exec", "--no-TTY", "worker", "prefect", "deployment", "run", "wmt-en-de", "-p", "row=sample"]
    said = compose(clone, *words, must=True)
    identity = next(word for word in said.split("UUID: ")[1].split())
    for number, name in enumerate(KILLED):
        until(lambda at=number: trained(clone) > STEP * at, f"update {STEP * number}", LASTING)
        compose(clone, "kill", name, must=True)
        compose(clone, "start", name, must=True)
    until(lambda: flow_run(clone, identity) not in {"", "PENDING", "SCHEDULED", "RUNNING"}, "the run's end", LASTING)
    assert flow_run(clone, identity) == "COMPLETED"
    compose(clone, "exec", "--no-TTY", "worker", "wmt", "publish")  # what a server that was away has not taken
    server = f"http://{compose(clone, 'port', 'mlflow', env(clone)['MLFLOW_PORT'], must=True).strip()}"
    (state, metrics), steps, report = before = tracked(server)
    assert state == "FINISHED"
    assert "bleu" in metrics
    assert b"BLEU" in report
    assert all(found == sorted(set(found)) for found in steps.values()), steps
    assert steps["valid_loss"][-1] == UPDATES
    compose(clone, "down", must=True)
    start(clone)
    assert tracked(server) == before
    assert flow_run(clone, identity) == "COMPLETED"


def env(clone: Clone) -> dict[str, str]:
    lines = (clone.folder / "infra/.env").read_text().splitlines()
    return {name: value for name, _, value in (line.partition("=") for line in lines)}
