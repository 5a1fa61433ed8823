"""Merge params.yaml, the row, the catalog and the defaults into one checked configuration."""

from __future__ import annotations

from nmt.common.files import write_text
from pipeline.config import resolution
from pipeline.config.paths import CONFIG
from pipeline.data import parent, user_text


def run() -> None:
    """Write results/config.yaml; raise InputError for wrong settings, an unfit parent or an edited local file."""
    configuration = parent.with_parent(resolution.resolve(resolution.read_params()))
    # Checked here, so that only this stage depends on data/local: another corpus added there reruns no download.
    data = user_text.with_checksums(configuration.data)
    configuration = configuration.model_copy(update={"data": data})
    if shortage := resolution.checkpoint_shortage(configuration):
        instead = "those are averaged" if configuration.checkpoints else "the last weights take the average's place"
        print(f"resolve: {shortage}; the run was shortened by its overrides, so {instead}")
    write_text(CONFIG, resolution.text(configuration))
