"""The archives of the embedded sample and their catalog."""

from __future__ import annotations

import hashlib
import tarfile

import yaml
from clones import ROOT


def test_catalog_names_the_archives_on_disk() -> None:
    catalog = yaml.safe_load((ROOT / "data/catalog/sample.yaml").read_text(encoding="utf-8"))
    total, members = 0, {}
    for name, facts in catalog["archives"].items():
        path = ROOT / facts["urls"][0].removeprefix("file:")
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"]), name
        total += len(data)
        with tarfile.open(path) as archive:
            members[name] = archive.getnames()
    assert total < 3_000_000
    for sets in catalog["pairs"].values():
        for parallel in [*sets["train"], sets["valid"], sets["test"]]:
            for side in ("source", "target"):
                assert parallel[side]["member"] in members[parallel[side]["archive"]]
