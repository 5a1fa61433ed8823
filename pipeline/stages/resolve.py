"""Merge params.yaml, the row, the catalog and the defaults into one checked configuration."""

from __future__ import annotations

from nmt.common.files import writing
from pipeline.config import resolution
from pipeline.config.settings import CONFIG
from pipeline.stage import Tracker


def run(tracker: Tracker) -> None:
    """params.yaml -> results/config.yaml."""
    configuration = resolution.resolve(resolution.read_params())
    if shortage := resolution.shortage(configuration):
        instead = "those are averaged" if configuration.checkpoints else "the last weights take the average's place"
        print(f"resolve: {shortage}; the run was shortened by its overrides, so {instead}")
    with writing(CONFIG) as temporary:
        temporary.write_text(resolution.text(configuration), encoding="utf-8", newline="\n")
    tracker.tags({key: str(value) for key, value in configuration.run.model_dump().items()})
