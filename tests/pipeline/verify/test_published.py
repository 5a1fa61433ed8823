"""The published certificates: whole, and of the settings as they are resolved today."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from clones import ROOT

from pipeline.config import paths
from pipeline.stages import certify, resolve
from pipeline.verify import certificate as certificates

PUBLISHED = sorted((ROOT / "data/certificates").glob("*.json"))


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_published_run_can_be_made_again(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert certificates.sealed(path).status == "recomputed"
    certificate = certificates.load(path)
    assert certificate.training.portable
    monkeypatch.chdir(tmp_path)
    for name in ("data", "dvc.yaml"):
        Path(name).symlink_to(ROOT / name)
    paths.PARAMS.write_text(yaml.safe_dump(certificate.params))
    resolve.run()
    sections = set(certify.SECTIONS) - {"versions"}  # Of the environment, which may be another.
    assert {name: certify.plain_section(name) for name in sections} == {
        name: certificate.settings[name] for name in sections
    }
