"""What tests of the data stages share: a resolved configuration, a pool of one thread."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

ONE_THREAD = ThreadPoolExecutor(1)
PACKAGES = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")


def data_section(*corpora: str, valid: str = "dev", test: str = "exam") -> dict[str, Any]:
    """Return the section `data` with local files of these names."""

    def named(name: str) -> dict[str, Any]:
        member = {"path": name, "sha256": "0" * 64}
        return {"name": name, "source": member, "target": member}

    texts = {"train": [named(corpus) for corpus in corpora], "valid": named(valid), "test": named(test)}
    return {"source": "en", "target": "de", "archives": [], **texts}


def configure(data: dict[str, Any], versions: Mapping[str, str] | None = None, **sections: Any) -> None:
    """Write results/config.yaml with the installed versions, but for those given."""
    installed = {package: version(package.replace("_", "-")) for package in PACKAGES}
    config = {"data": data, **sections, "versions": {**installed, **(versions or {})}}
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
