"""Where state lives."""

from pathlib import Path

import pytest
from refusals import check_refusal

from pipeline.config.paths import state_root, state_store


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
    monkeypatch.setenv("WMT_STATE", "file:///mnt/state")
    check_refusal("WMT_STATE is file:///mnt/state: name a folder by its path alone", state_root)
    monkeypatch.setenv("WMT_STATE", "s3:/bucket/prefix")
    check_refusal("WMT_STATE is s3:/bucket/prefix: write s3://bucket/prefix for a store", state_root)
