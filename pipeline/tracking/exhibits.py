"""What a finished run gives to be kept with it, beside what its stages told: the model, translations, pictures.

No result comes from here, so that no stage imports it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.text.parallel_text import read_lines
from pipeline.config.paths import CONFIG
from pipeline.tracking.spool import SpoolTracker

METRICS = Path("results/metrics.json")
REPORT = Path("results/report.md")
TRANSLATIONS = Path("results/translations")
ATTENTION = Path("results/attention")
RAW = Path("data/raw")
MODEL = Path("models/average")

SAMPLES = 20
"""Lines of the test set: the same in every run, so that runs compare line by line."""


def hand_over(tracker: SpoolTracker) -> None:
    """Tell what the run has made; nothing where it was not scored."""
    if not METRICS.exists():
        return
    with tracker.warning():
        configuration = yaml.safe_load(CONFIG.read_bytes())
        metrics = json.loads(METRICS.read_bytes())
        tracker.artifact(TRANSLATIONS)
        tracker.table("samples.json", samples(configuration["data"]))
        tracker.tags({"mlflow.note.content": summary(REPORT.read_text(encoding="utf-8"))})
        if ATTENTION.is_dir() and newest(ATTENTION) >= newest(MODEL):
            tracker.artifact(ATTENTION)
        run = configuration["run"]
        tracker.model(
            MODEL,
            name=f"wmt-{run['pair']}",
            metrics={key: value for key, value in metrics.items() if isinstance(value, int | float)},
            tags={
                **{key: str(value) for key, value in run.items()},
                **{key: value for key, value in metrics.items() if key.startswith("bleu") and isinstance(value, str)},
            },
            search=configuration["search"],
        )


def samples(data: Mapping[str, Any]) -> dict[str, Any]:
    """The first lines of the test set with their references and translations, as a table of MLflow's."""
    name, target = data["test"]["name"], data["target"]
    paths = (
        RAW / f"test.{name}.{data['source']}",
        RAW / f"test.{name}.{target}",
        TRANSLATIONS / f"{name}.average.{target}",
    )
    rows = zip(*(itertools.islice(read_lines(path), SAMPLES) for path in paths), strict=True)
    return {"columns": ["source", "reference", "translation"], "data": [list(row) for row in rows]}


def summary(report: str) -> str:
    """The report's first table: the run beside the paper's row."""
    return report.split("\n## ")[1].partition("\n")[2].strip()


def newest(folder: Path) -> float:
    """When the last file of a folder was written. Pictures older than the model are of another."""
    return max((path.stat().st_mtime for path in folder.rglob("*") if path.is_file()), default=0.0)
