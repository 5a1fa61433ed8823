"""The benchmark of growth runs whole, at a tiny size; the others are too large for `make test`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_growth_measures_every_step_and_draws(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.growth", "--pairs", "100", "--merges", "60", "--rounds", "1"]
    figure = tmp_path / "growth.svg"
    run = subprocess.run(
        [*command, "--json", "--figure", str(figure)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "threads" in run.stderr
    report = json.loads(run.stdout.splitlines()[-1])
    assert report["pairs"] == [100, 400, 1600]
    assert list(report["steps"]) == ["tokenize", "learn_subwords", "binarize", "train", "translate"]
    for values in report["steps"].values():
        assert all(one["median"] > 0 for one in values["seconds"])
        assert all(one > 10 for one in values["megabytes"])
    assert report["updates"][2] > 8 * report["updates"][0] >= 8
    train = report["steps"]["train"]["seconds"]
    assert train[0]["median"] < train[1]["median"] < train[2]["median"]
    assert figure.read_text().startswith("<?xml")
