"""What stages share: where state lives, JSON files, versions of libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.config import InputError
from pipeline.common import stage


def test_state_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WMT_STATE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert stage.state_root() == Path("work")
    monkeypatch.setenv("DVC_ROOT", "/repository")
    assert stage.state_root() == Path("/repository/work")
    monkeypatch.setenv("WMT_STATE", "state")
    assert stage.state_root() == Path("/repository/state"), "in a queued experiment, too"
    monkeypatch.setenv("WMT_STATE", "/state")
    assert stage.state_root() == Path("/state")
    monkeypatch.setenv("WMT_STATE", "s3:/bucket/prefix")
    with pytest.raises(InputError, match="WMT_STATE is s3:/bucket/prefix: write s3://bucket/prefix for a store"):
        stage.state_root()


def test_a_store_is_beside_the_state_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WMT_STATE", "WMT_STATE_STORE", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    assert stage.state_store() is None
    monkeypatch.setenv("WMT_STATE", "s3://bucket/prefix")
    assert (stage.state_root(), stage.state_store()) == (Path("work"), "s3://bucket/prefix")
    monkeypatch.setenv("WMT_STATE", "/state")
    assert stage.state_store() is None
    monkeypatch.setenv("WMT_STATE_STORE", "s3://bucket/other")
    assert (stage.state_root(), stage.state_store()) == (Path("/state"), "s3://bucket/other")


def test_json_goes_round_whole(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    stage.write_json(path, {"b": 1.5, "a": "ü"})
    assert path.read_text(encoding="utf-8") == '{\n  "b": 1.5,\n  "a": "ü"\n}\n'
    assert stage.read_json(path) == {"b": 1.5, "a": "ü"}


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_json_that_cannot_be_read_is_a_users_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "numbers.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"numbers\.json .*dvc repro"):
        stage.read_json(path)


def test_versions_other_than_resolved_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.2.0")
    stage.check_versions({"sacremoses": "0.2.0"})
    with pytest.raises(InputError, match=r"subword_nmt 0\.2\.0 is installed.*0\.3\.8"):
        stage.check_versions({"sacremoses": "0.2.0", "subword_nmt": "0.3.8"})
