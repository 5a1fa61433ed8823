"""Tables of a run's results: the curves that `train` wrote, and the test set with its translations."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import writing
from pipeline.common.paths import RAW, TRANSLATIONS
from pipeline.common.stage import write_json

SAMPLES = 20
"""Lines of the test set in samples.json. They are the same in all runs, so that runs compare line by line."""
COLUMNS = ["source", "reference", "translation"]


def curve(path: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """Yield update and values of every row of a table that `train` wrote; none where there is no such file."""
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                yield int(row.pop("update")), {name: float(value) for name, value in row.items()}


def write_translations(data: Mapping[str, Any], folder: Path) -> None:
    """Write the test set with references and translations: all lines as translations.csv, the first as samples.json.

    MLflow shows samples.json of several runs side by side. `data`: the section of the resolved configuration.
    """
    name, target = data["test"]["name"], data["target"]
    paths = (
        RAW / f"test.{name}.{data['source']}",
        RAW / f"test.{name}.{target}",
        TRANSLATIONS / f"{name}.average.{target}",
    )
    texts = (path.read_bytes().decode().removesuffix("\n").split("\n") for path in paths)
    lines = [list(line) for line in zip(*texts, strict=True)]
    write_json(folder / "samples.json", {"columns": COLUMNS, "data": lines[:SAMPLES]})
    with writing(folder / "translations.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
