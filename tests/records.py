"""A repository with a resolved configuration, for tests of the records of runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MEMBER = {"archive": "a", "member": "a.en", "path": None}
TRAIN, VALID, TEST = ({"name": name, "source": MEMBER, "target": MEMBER} for name in ("news", "valid", "test"))
CONFIGURATION = {
    "run": {"row": "base", "pair": "en-de", "corpus": "wmt14", "seed": 1},
    "data": {
        "source": "en",
        "target": "de",
        "train": [TRAIN],
        "valid": VALID,
        "test": TEST,
        "archives": [
            {
                "name": "a",
                "urls": ["https://example.org/a.tgz"],
                "bytes": None,
                "sha256": "0" * 64,
                "md5": None,
                "licence": "",
                "source": "",
            }
        ],
    },
    "model": {"N": 6, "P_drop": 0.2},
}


def configure(differences: Mapping[str, Any]) -> None:
    """Write results/config.yaml."""
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump({**CONFIGURATION, **differences}))


def run(row: str, pair: str = "en-de", seed: int = 1) -> dict[str, Any]:
    """The configuration's section `run` for another row."""
    return {"run": {"row": row, "pair": pair, "corpus": "wmt14", "seed": seed}}
