"""The servers of infra/compose.yaml for real: Postgres, S3, MLflow and Prefect on both, workers, and DVC's remote."""

from __future__ import annotations

import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import SHRUNKEN, Clone
from compose import BUCKET, PASSWORD, Team, blocks_by_worker, skip_without_servers, use_dask_for_short_texts

pytestmark = pytest.mark.timeout(900)
LASTING = 600.0
"""Seconds that the run may take on a busy machine."""


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    skip_without_servers()
    clone = Clone(tmp_path_factory.mktemp("clone"))
    clone.params(overrides={**SHRUNKEN, "training": {**SHRUNKEN["training"], "updates": 8}})
    team = Team(clone, tmp_path_factory.mktemp("home"))
    use_dask_for_short_texts(clone)
    with team.started("deploy", "dask-worker"):
        yield team


@pytest.fixture(scope="module")
def finished(team: Team) -> str:
    # The short name of the command line is tried in tests/end_to_end/test_flow.py.
    identity = team.deploy(row="sample")
    assert team.ended(identity, LASTING)["state_type"] == "COMPLETED", team.messages(identity)
    return identity


def get(url: str, **headers: str) -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as answer:
        return bytes(answer.read())


def test_a_run_is_in_prefect_and_in_mlflow_with_its_artifacts_in_the_store(team: Team, finished: str) -> None:
    assert set(team.how(finished).values()) == {"Ran"}
    assert team.psql(f"SELECT state_type FROM flow_run WHERE id = '{finished}'", "prefect") == "COMPLETED"
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    server = f"http://127.0.0.1:{team.mlflow}"
    client = MlflowClient(server)
    experiment = client.get_experiment_by_name("wmt-en-de")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.data.tags["prefect.flow_run_id"]) == ("FINISHED", finished)
    assert team.psql(f"SELECT status FROM runs WHERE run_uuid = '{run.info.run_id}'", "mlflow") == "FINISHED"
    # As the page of the run fetches it.
    page = get(f"{server}/get-artifact?path=report.html&run_uuid={run.info.run_id}")
    assert b"BLEU" in page
    (stored,) = (team.objects / BUCKET / "mlflow").glob(f"**/{run.info.run_id}/artifacts/report.html")
    assert stored.read_bytes() == page
    assert client.get_model_version_by_alias("wmt-en-de", "best").run_id == run.info.run_id
    text = (team.home / "services.log").read_text(errors="replace") + team.messages(finished)
    assert PASSWORD not in text


def test_the_data_stages_ran_on_both_dask_workers(team: Team, finished: str) -> None:
    """Blocks of 24,000 pairs: 3 in tokenize and in binarize, 2 in learn_subwords; 4 more of the held-out texts."""
    computed = blocks_by_worker(team)
    assert sum(computed) == 12
    assert len(computed) == 2
    assert min(computed) > 0
    assert not list((team.clone.folder / "work/blocks").iterdir())
    # Nothing after this runs a data stage, and they take processor time also when they have no work.
    for name in ("dask-worker-1", "dask-worker-2", "dask-scheduler"):
        team.stop_service(name)


def test_prometheus_reads_both_servers(team: Team, finished: str) -> None:
    assert b"mlflow_http_request_total" in get(f"http://127.0.0.1:{team.mlflow}/metrics")
    assert b"prefect_" in get(f"http://127.0.0.1:{team.prefect}/api/metrics", Authorization=team.authorization())


def test_a_wrong_password_of_the_database_is_said(team: Team) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        team.psql("SELECT 1", "mlflow", "a-wrong-password")
    assert 'password authentication failed for user "wmt"' in refused.value.stderr
    assert PASSWORD not in refused.value.stderr


def test_another_machine_pulls_the_run_and_repeats_nothing(team: Team, finished: str, tmp_path: Path) -> None:
    mine = team.clone
    environment = team.environment()

    def run(folder: Path, *words: str) -> str:
        result = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    run(mine.folder, "dvc", "exp", "apply", team.run(finished)["name"])
    run(mine.folder, "dvc", "remote", "add", "--default", "store", f"s3://{BUCKET}/dvc")
    run(mine.folder, "dvc", "push")
    run(mine.folder, "git", "add", "dvc.lock")
    run(mine.folder, "git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--all", "-m", "run")
    other, replacement = tmp_path / "other", tmp_path / "replacement"
    for folder in (other, replacement):
        run(tmp_path, "git", "clone", "--quiet", str(mine.folder), str(folder))
        assert not (folder / "models").exists()
    run(other, "dvc", "pull")
    environment["PYTHONPATH"] = str(other)
    assert "Running stage" not in run(other, "dvc", "repro")
    # A machine that takes the place of another has no lock file: it finds the stages by their dependencies.
    (replacement / "dvc.lock").unlink()
    environment["PYTHONPATH"] = str(mine.folder)
    run(mine.folder, "infra/recover", f"s3://{BUCKET}/recovery")
    environment["PYTHONPATH"] = str(replacement)
    assert "Running stage" not in run(replacement, "infra/recover", f"s3://{BUCKET}/recovery")
    metrics = {folder: (folder / "results/metrics.json").read_bytes() for folder in (mine.folder, other, replacement)}
    assert len(set(metrics.values())) == 1


def test_a_backup_of_a_database_is_restored(team: Team, finished: str) -> None:
    """The last test: MLflow stays stopped, because nobody may use a database that is replaced."""
    tables = ("runs", "metrics", "model_versions")
    before = {table: team.psql(f"SELECT count(*) FROM {table}", "mlflow") for table in tables}
    assert "0" not in before.values()
    environment = {**team.variables("postgres"), "PGPASSWORD": PASSWORD}

    def run(program: str, *words: str, given: bytes = b"") -> bytes:
        command = [str(shutil.which(program, path=environment["PATH"])), "--username=wmt", *words]
        return subprocess.run(command, env=environment, input=given, check=True, capture_output=True).stdout

    backup = run("pg_dump", "--format=custom", "mlflow")
    team.stop_service("mlflow")
    team.psql("DROP TABLE model_versions CASCADE", "mlflow")
    run("pg_restore", "--clean", "--create", "--dbname=postgres", given=backup)
    assert {table: team.psql(f"SELECT count(*) FROM {table}", "mlflow") for table in tables} == before
