"""A repository with the results of a run, and the MLflow store beside it."""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from clones import ROOT
from model_folders import folder_of
from shared import shared

CONFIGURATION = {
    "run": {"row": "base", "pair": "en-de", "corpus": "wmt14", "seed": 1},
    "model": {"N": 6, "P_drop": 0.2},
    "data": {"source": "en", "target": "de", "valid": {"name": "news13"}, "test": {"name": "news14"}},
    "search": {"beam": 4, "alpha": 0.6, "max_extra": 50},
}
SCORES = {
    "bleu": 27.3, "bleu_low": 26.5, "bleu_high": 28.1, "bleu_set": "newstest2014, 3003 lines",
    "bleu_signature": "nrefs:1", "valid_bleu": 25.8, "valid_bleu_set": "newstest2013, 3000 lines", "valid_ppl": 54.6,
    "params": 65_000_000, "updates": 200, "devices": 8, "device": "P100", "train_seconds": 122.0,
    "train_flops_counted": 1e18, "train_flops_paper": 3e18, "model_flops_utilisation": None,
}  # fmt: skip
STATE = "abc-def"  # name of the training's state


def configure(differences: Mapping[str, Any]) -> None:
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump({**CONFIGURATION, **differences}))


def run(row: str, pair: str = "en-de", seed: int = 1) -> dict[str, Any]:
    """The configuration's section `run` for another row."""
    return {"run": {"row": row, "pair": pair, "corpus": "wmt14", "seed": seed}}


def write_results(state: str = STATE, **scores: Any) -> None:
    """What the stages have left when the last one ends; `scores` change results/scores.json."""
    Path("results/chain.json").write_text(json.dumps({"state": state}))
    Path("results/scores.json").write_text(json.dumps({**SCORES, **scores}))
    Path("results/training.csv").write_text("update,loss,ppl,seconds\n100,5.0,148.4,60.0\n200,4.0,54.6,120.5\n")
    Path("results/validation.csv").write_text("update,valid_loss,valid_ppl,seconds\n200,4.0,54.6,121.0\n")
    Path("results/report.md").write_text("# Report\n")
    Path("data/raw").mkdir(parents=True, exist_ok=True)
    for target in ("de", "tree"):
        Path(f"data/raw/valid.news13.{target}").write_text("(S (NN a))\n")
    if not Path("models/average").exists():
        folder_of(Path("models/average"), N=1)


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty MLflow database: making one takes seconds."""

    def make(path: Path) -> None:
        with connected(path) as client:
            client.search_experiments()

    return shared(tmp_path_factory, "mlflow.db", make)


@pytest.fixture
def root(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a resolved configuration as working directory; its state root, with an MLflow database."""
    state_root = tmp_path / "work"
    state_root.mkdir()
    (tmp_path / "data/catalog").mkdir(parents=True)
    shutil.copyfile(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    shutil.copyfile(store, state_root / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    # MLflow sets the first one.
    for name in ("MLFLOW_TRACKING_URI", "DVC_EXP_NAME", "PREFECT__FLOW_RUN_ID"):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("WMT_STATE", str(state_root))
    monkeypatch.setattr("pipeline.tracking.server.PATIENCE", 200.0)  # The tests share their machine.
    configure({})
    return state_root


@contextlib.contextmanager
def connected(path: Path) -> Iterator[Any]:
    """MLflow's client of a database, whose connections are closed afterwards."""
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    client = MlflowClient(f"sqlite:///{path}")
    yield client
    client._tracking_client.store.engine.dispose()
    client._get_registry_client().store.engine.dispose()


def recorded(root: Path) -> list[Any]:
    """Every run in the store as MLflow gives it, oldest first."""
    with connected(root / "mlflow.db") as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        return list(client.search_runs(experiments, order_by=["attributes.start_time"]))


def history(root: Path, run: Any, key: str) -> list[tuple[int, float]]:
    """Every value of a metric with its update."""
    with connected(root / "mlflow.db") as client:
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))
