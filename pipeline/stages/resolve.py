"""Merge params.yaml, the row, the catalog and the defaults into one checked configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

from nmt.common.files import write_text
from nmt.errors import InputError
from pipeline.config import catalogs, resolution
from pipeline.config.paths import CATALOGS, CONFIG, LOCAL, REPORT
from pipeline.config.settings import Configuration
from pipeline.data import parent, user_text


def configuration_here() -> Configuration:
    """Return what params.yaml asks for; raise InputError for wrong settings, an unfit parent, an edited local file."""
    configuration = parent.with_parent(resolution.resolve(resolution.read_params()))
    # Checked here, so that only this stage depends on data/local: another corpus added there reruns no download.
    return configuration.model_copy(update={"data": user_text.with_checksums(configuration.data)})


def is_current(status: Mapping[str, Sequence[Any]]) -> bool:
    """Return whether nothing changed by DVC's `status`, or only corpora that results/config.yaml does not use."""
    if not status:
        return True  # without reading local files for their hashes
    entries = [entry if isinstance(entry, dict) else {entry: [""]} for why in status.values() for entry in why]
    changed = {(kind, path) for entry in entries for kind, paths in entry.items() for path in paths}
    if not changed <= {("changed deps", path) for path in (str(CATALOGS), str(LOCAL))}:
        return False
    try:
        configuration = configuration_here()
        # The report has it, escaped, and results/config.yaml not.
        description = catalogs.load(configuration.run.corpus).description.replace("\\", "")
        described = description in REPORT.read_text(encoding="utf-8").replace("\\", "")
        return described and CONFIG.read_text(encoding="utf-8") == resolution.text(configuration)
    except (InputError, OSError):
        return False


def run() -> None:
    """Write results/config.yaml; raise InputError as `configuration_here` does."""
    write_text(CONFIG, resolution.text(configuration_here()))
