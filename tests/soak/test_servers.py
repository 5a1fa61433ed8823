"""The servers of infra/compose.yaml and a Dask worker are killed in turn, and come back, while a run works on them."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agents import until
from clones import SHRUNKEN, Clone
from mlflow import MlflowClient

from nmt.common.files import sha256_of
from tests.soak.team import (
    Team,
    blocks_by_worker,
    skip_without_servers,
    tree,
    use_dask_for_short_texts,
    use_small_blocks,
)

pytestmark = pytest.mark.timeout(5400)
SERVERS = ("postgres", "s3", "prefect", "mlflow")
STEP = 60  # updates between two kills
UPDATES = STEP * (len(SERVERS) + 1)
LONG: dict[str, Any] = {
    **SHRUNKEN,
    "training": {**SHRUNKEN["training"], "updates": UPDATES, "checkpoint_every": 100, "validate_every": 100},
}
LASTING = 1200.0  # seconds that a step of the run may take on a busy machine


def weights(clone: Clone) -> dict[str, str]:
    return {path.parent.name: sha256_of(path) for path in (clone.folder / "models").glob("*/model.safetensors")}


def killed(team: Team, name: str) -> None:
    """Kill a server with all of its processes, as a machine that fails does, and start it again."""
    service = team.running.pop(name)
    for process in tree(service.pid):
        if process.is_running():
            process.kill()
            process.wait()
    # Close its pipe, too.
    service.communicate()
    team.start_service(name)


def test_servers_that_are_killed_change_nothing(tmp_path: Path) -> None:
    skip_without_servers()
    (tmp_path / "home").mkdir()
    undisturbed, clone = Clone(tmp_path / "undisturbed"), Clone(tmp_path / "clone")
    for one in (undisturbed, clone):
        one.params(overrides=LONG)
    undisturbed.repro()
    use_dask_for_short_texts(clone)
    use_small_blocks(clone)
    team = Team(clone, tmp_path / "home")
    with team.started("deploy", "dask-worker"):
        identity, other = team.deploy(row="sample"), team.deploy(row="sample", seed=2, target="binarize")
        until(lambda: min(blocks_by_worker(team), default=0) > 20, "blocks from both Dask workers", LASTING)
        killed(team, "dask-worker-1")
        assert team.trained(0) is None, "no data stage was at work when the worker was killed"
        for number, name in enumerate(SERVERS):
            until(lambda at=number: team.trained(STEP * at + 1), f"update {STEP * number}", LASTING)
            killed(team, name)
        run = team.ended(identity, LASTING)
        assert run["state_type"] == "COMPLETED", team.messages(identity)
        assert team.ended(other, LASTING)["state_type"] == "COMPLETED", team.messages(other)
        # What a server that was away has not taken.
        for words in (["python", "-m", "pipeline.cli", "publish"], ["dvc", "exp", "apply", run["name"]]):
            subprocess.run(words, cwd=clone.folder, env=team.environment(), check=True)
        assert weights(clone) == weights(undisturbed)
        assert len(blocks_by_worker(team)) == 2
        client = MlflowClient(f"http://127.0.0.1:{team.mlflow}")
        experiment = client.get_experiment_by_name("wmt-en-de")
        assert experiment is not None
        (mlflow_run,) = client.search_runs([experiment.experiment_id])  # The other flow trains nothing.
        assert mlflow_run.data.tags["prefect.flow_run_id"] == identity
        assert mlflow_run.info.status == "FINISHED"
        metrics = json.loads((clone.folder / "results/metrics.json").read_text())
        assert mlflow_run.data.metrics["bleu"] == round(metrics["bleu"], 2)
        for key in mlflow_run.data.metrics:
            # Without times: MLflow's primary key has both, so no two points are equal in step and time.
            if not key.startswith("system/"):
                steps = [point.step for point in client.get_metric_history(mlflow_run.info.run_id, key)]
                assert steps == sorted(set(steps)), (key, client.get_metric_history(mlflow_run.info.run_id, key))
        losses = [point.step for point in client.get_metric_history(mlflow_run.info.run_id, "valid_loss")]
        assert losses == sorted(set(losses))
        assert losses[-1] == UPDATES
