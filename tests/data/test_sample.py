"""The archives of the embedded sample; tests/soak/test_sample.py makes them anew."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]


def names(archive: str) -> list[str]:
    with tarfile.open(ROOT / "data/sample" / archive) as tar:
        return tar.getnames()


def test_catalog_names_the_archives_on_disk() -> None:
    catalog = yaml.safe_load((ROOT / "data/catalog/sample.yaml").read_text(encoding="utf-8"))
    total = 0
    for name, facts in catalog["archives"].items():
        data = (ROOT / facts["urls"][0].removeprefix("file:")).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"]), name
        total += len(data)
    assert total < 3_000_000
    for sets in catalog["pairs"].values():
        for parallel in [*sets["train"], sets["valid"], sets["test"]]:
            for side in ("source", "target"):
                assert parallel[side]["member"] in names(parallel[side]["archive"])
