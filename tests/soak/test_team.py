"""The servers of infra/compose.yaml for real: Postgres, S3, MLflow and Prefect on both, workers, and DVC's remote."""

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from clones import ROOT, SHRUNKEN, Clone

from tests.soak.team import BUCKET, PASSWORD, Team, blocks_by_worker, skip_without_servers, use_dask_for_short_texts

README = ROOT / "infra/README.md"
pytestmark = pytest.mark.timeout(900)
LASTING = 600.0  # seconds that the run may take on a busy machine


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
    # The short name of the command line is tried in tests/end_to_end/test_flows.py.
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
    # Nothing after this runs a data stage, and they take processor time also when they have no work.
    for name in ("dask-worker-1", "dask-worker-2", "dask-scheduler"):
        team.stop_service(name)


def test_prometheus_reads_both_servers(team: Team, finished: str) -> None:
    assert b"mlflow_http_request_total" in get(f"http://127.0.0.1:{team.mlflow}/metrics")
    assert b"prefect_" in get(f"http://127.0.0.1:{team.prefect}/api/metrics", Authorization=team.authorization())


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


TABLES = {"mlflow": ("runs", "metrics", "model_versions"), "prefect": ("flow_run", "task_run", "deployment")}
COMPOSE = "docker compose --file infra/compose.yaml "


def backup_commands() -> list[str]:
    """The commands of infra/README.md, without comments."""
    block = re.search(r"^### Backup and restore$.*?^```sh$(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    return [line.split("  #")[0].strip() for line in block[1].splitlines() if line]


def test_a_backup_is_restored_by_the_commands_of_the_readme(team: Team, finished: str, tmp_path: Path) -> None:
    """The last test: MLflow, Prefect and the worker stay stopped, because starting them again takes longer."""
    bucket, endpoint = team.objects / BUCKET, team.values["S3_ENDPOINT"]
    environment = {**team.environment(), "PGPASSWORD": PASSWORD}

    def run(words: str) -> None:
        shell = ["bash", "-c", words]
        result = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, words + result.stderr

    def objects() -> dict[str, bytes]:
        return {path.relative_to(bucket).as_posix(): path.read_bytes() for path in bucket.rglob("*") if path.is_file()}

    def rows() -> dict[str, str]:
        pairs = [(database, table) for database, tables in TABLES.items() for table in tables]
        return {table: team.psql(f"SELECT count(*) FROM {table}", database) for database, table in pairs}

    before = rows(), objects()
    assert "0" not in before[0].values()
    assert any("/artifacts/" in name for name in before[1])
    stopped: list[str] = []
    for command in backup_commands():
        action, _, rest = command.removeprefix(COMPOSE).partition(" ")
        if not command.startswith(COMPOSE) or action == "exec":
            # Here PostgreSQL's programs are not in a container.
            words = command.removeprefix(f"{COMPOSE}exec --no-TTY postgres ")
            run(words.replace("http://127.0.0.1:9000", endpoint))
        elif action == "stop":
            stopped = rest.split()
            for name in stopped:
                team.stop_service(name)
            for database, (table, *_) in TABLES.items():
                team.psql(f"DROP TABLE {table} CASCADE", database)
            # The store's server must know of what is lost: it remembers lists of files.
            (tmp_path / "other").mkdir()
            (tmp_path / "other/late").write_text("newer than the backup")
            run(f"rclone sync other :s3,env_auth,provider=Rclone,endpoint=\\'{endpoint}\\':{BUCKET}")
            assert objects().keys() == {"late"}
        else:
            assert (action, rest.split()) == ("start", stopped)
    assert stopped
    assert (rows(), objects()) == before
