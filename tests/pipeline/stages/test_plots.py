"""`dvc plots show`: every plot of dvc.yaml, drawn from a history as training writes it."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from clones import ROOT

from pipeline.config import paths
from pipeline.trainings.outputs import write_curves

UPDATES, EVERY, VALIDATE_EVERY = 120, 10, 25
"""Validations stand between the intervals, and once in an interval's own update."""


def history() -> list[dict[str, float]]:
    """What training measures, a record an interval and one a validation, without a device whose peak is known."""
    records: list[dict[str, float]] = []
    for update in range(1, UPDATES + 1):
        loss = 9.0 - update / 40
        if update % VALIDATE_EVERY == 0:
            records.append({"update": update, "seconds": update, "valid_loss": loss, "valid_ppl": 2.0**loss})
        if update % EVERY == 0:
            measured = {"loss": loss + 1, "nll": loss, "ppl": 2.0**loss, "gradient_norm": 1.5}
            speed = {"tokens_per_second": 2000.0, "flops_per_second": 1e9, "padding": 0.1}
            measured["learning_rate"] = update * 1e-5
            records.append({"update": update, "seconds": update, "tokens": 800.0, "skipped": 0, **measured, **speed})
    return records


def test_tables_hold_a_number_in_every_cell(here: Path) -> None:
    write_curves(history(), Path())
    measured, validated = paths.read_table(paths.CURVES), paths.read_table(paths.VALIDATION)
    assert b"\r" not in paths.CURVES.read_bytes() + paths.VALIDATION.read_bytes()
    assert list(validated[0]) == ["update", "valid_loss", "valid_ppl", "seconds"]
    assert all(value >= 0 for row in (*measured, *validated) for value in row.values())
    made = {"update": 30, "loss": 9.25, "nll": 8.25, "ppl": 2.0**8.25, "learning_rate": 30 * 1e-5, "gradient_norm": 1.5}
    assert measured[2] == {**made, "tokens_per_second": 2000, "flops_per_second": 1e9, "padding": 0.1, "seconds": 30}
    assert validated[1] == {"update": 50, "valid_loss": 7.75, "valid_ppl": 2.0**7.75, "seconds": 50}


def test_utilisation_has_a_column_where_every_interval_has_it(here: Path) -> None:
    """A training may move to a device whose peak is not on record."""
    records = [{**record, "utilisation": 0.25} if "loss" in record else record for record in history()]
    write_curves(records, Path())
    assert {row["utilisation"] for row in paths.read_table(paths.CURVES)} == {0.25}
    del records[0]["utilisation"]
    write_curves(records, Path())
    assert "utilisation" not in paths.read_table(paths.CURVES)[0]


def encodings(content: Any, axis: str) -> list[dict[str, Any]]:
    """Every definition of an axis, wherever it stands in a specification."""
    if isinstance(content, dict):
        direct = [content["encoding"][axis]] if axis in content.get("encoding", {}) else []
        return direct + [encoding for value in content.values() for encoding in encodings(value, axis)]
    return [encoding for value in content for encoding in encodings(value, axis)] if isinstance(content, list) else []


def test_every_plot_has_a_point_for_every_record(here: Path) -> None:
    """In the Vega-Lite specification that DVC makes from this repository's dvc.yaml and templates."""
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    shutil.copytree(ROOT / ".dvc", ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local"))
    Path(".dvc/config.local").write_text("[core]\n    no_scm = true\n", encoding="utf-8")
    write_curves(history(), Path())
    command = [sys.executable, "-m", "dvc", "plots", "show", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    content = json.loads(result.stdout)
    assert not content.get("errors"), content["errors"]
    shown = {name: plots[0]["content"] for name, plots in content["data"].items()}
    intervals = list(range(EVERY, UPDATES + 1, EVERY))
    validations = list(range(VALIDATE_EVERY, UPDATES + 1, VALIDATE_EVERY))
    expected = {
        "loss": {"loss": intervals, "nll": intervals, "valid_loss": validations},
        "perplexity": {"ppl": intervals, "valid_ppl": validations},
        "learning_rate": {"learning_rate": intervals},
    }
    assert shown.keys() == expected.keys()
    for name, specification in shown.items():
        x, y = ({definition["field"] for definition in encodings(specification, axis)} for axis in "xy")
        assert (x, len(y)) == ({"update"}, 1), name
        points: dict[str, list[int]] = {}
        for point in specification["data"]["values"]:
            value = float(point[next(iter(y))])
            assert value > 0, name
            # DVC names the file and the column where a plot has several.
            series = point.get("filename::field", next(iter(y))).split("::")[-1]
            points.setdefault(series, []).append(int(point["update"]))
            assert value == pytest.approx(float(point[series]))
        assert points == expected[name]
        scales = {definition.get("scale", {}).get("type", "linear") for definition in encodings(specification, "y")}
        assert scales == {"log" if name == "perplexity" else "linear"}
        assert "<DVC_METRIC" not in json.dumps(specification)
