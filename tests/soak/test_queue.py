"""Two rows of Table 3 queued as DVC experiments, trained and compared."""

import json
import time
from pathlib import Path

import pytest
from clones import SHRUNKEN, Clone


@pytest.mark.timeout(900)
def test_queued_rows_train_in_the_state_root_of_their_repository(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    model = {key: value for key, value in SHRUNKEN["model"].items() if key != "N"}
    overrides = {
        **SHRUNKEN,
        "model": model,
        "subwords": {"merges": 4000},
        "training": {**SHRUNKEN["training"], "precision": "float32", "updates": 4, "checkpoint_every": 2},
    }
    clone.params(overrides=overrides)
    queued = clone.run("dvc", "exp", "run", "--queue", "-S", "row=C-N2,C-N4")
    assert queued.returncode == 0, queued.stderr
    assert clone.run("dvc", "queue", "start").returncode == 0
    deadline = time.monotonic() + 400
    while (status := clone.run("dvc", "queue", "status").stdout).count("Success") < 2:
        assert "Failed" not in status, clone.run("dvc", "queue", "logs", status.split()[6]).stdout
        assert time.monotonic() < deadline, status
        time.sleep(1)
    shown = json.loads(clone.run("dvc", "exp", "show", "--json").stdout)
    runs = [revision["data"] for entry in shown[1]["experiments"] for revision in entry["revs"]]
    assert {run["params"]["results/config.yaml"]["data"]["model"]["N"] for run in runs} == {2, 4}
    assert all(run["metrics"]["results/metrics.json"]["data"]["bleu"] >= 0 for run in runs)
    assert len(list((clone.folder / "work/train").iterdir())) >= 2
