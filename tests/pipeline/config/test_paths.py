"""Where state lives, and JSON files."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import check_refusal

from nmt.common.files import write_json
from pipeline.config.paths import read_json, state_root, state_store


def test_the_state_root_and_a_store_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (state_root(), state_store()) == (Path("work"), None)
    for name, value, root, store in (
        ("DVC_ROOT", "/repository", "/repository/work", None),
        ("WMT_STATE", "state", "/repository/state", None),  # In a queued experiment, too.
        ("WMT_STATE", "/state", "/state", None),
        ("WMT_STATE", "s3://bucket/prefix", "/repository/work", "s3://bucket/prefix"),
    ):
        monkeypatch.setenv(name, value)
        assert (state_root(), state_store()) == (Path(root), store)
    monkeypatch.setenv("WMT_STATE", "s3:/bucket/prefix")
    check_refusal("WMT_STATE is s3:/bucket/prefix: write s3://bucket/prefix for a store", state_root)


def test_json_goes_round_whole_and_what_cannot_be_read_is_a_users_error(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    write_json(path, {"b": 1.5, "a": "ü"})
    assert path.read_text(encoding="utf-8") == '{\n  "b": 1.5,\n  "a": "ü"\n}\n'
    assert read_json(path) == {"b": 1.5, "a": "ü"}
    for content in ("{", "[1]"):
        path.write_text(content)
        check_refusal(r"numbers\.json .*dvc repro", read_json, path)
