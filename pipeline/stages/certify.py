"""Write the certificate of the run: what was asked for, the hash of every file that came of it, for `wmt verify`.

The same settings, code and bytes give the same certificate, wherever and whenever it is made.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nmt.common.files import read_yaml, sha256_of, write_json
from pipeline.config import graph, sections
from pipeline.config.paths import CERTIFICATE, CHAIN, PARAMS, TRAINING, read_json
from pipeline.config.sections import plain_section

CERTIFIED = ("run", "data", *sections.SECTIONS, "versions")
"""The sections of results/config.yaml that decide results. That file itself has more, so it is not hashed."""


def run() -> None:
    """Write results/certificate.json: params.yaml, resolved settings, versions, the chain, times, hashes by path."""
    stages = graph.stages()
    made = [path for path in stages["certify"].deps if graph.made_by(path, stages)]
    content = {
        "params": read_yaml(PARAMS),
        "settings": {name: plain_section(name) for name in CERTIFIED},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}},
        "training": read_json(CHAIN),
        "measured": read_json(TRAINING),
        "files": hashes(made, Path()),
    }
    write_json(CERTIFICATE, {**content, "seal": seal(content)})


def hashes(paths: Iterable[str | Path], root: Path) -> dict[str, str]:
    """Return the sha256 of the files that are there, and of those in folders, by their paths in `root`."""
    made = [root / path for path in paths]
    files = (file for path in made for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    return {str(file.relative_to(root)): sha256_of(file) for file in sorted(files)}


def seal(content: Mapping[str, Any]) -> str:
    """Return the sha256 of a certificate's content, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
