"""What the report says of its run: times of the stages and names."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.common.files import write_json
from pipeline.config.paths import status_file
from pipeline.tracking import provenance


def test_stages_have_the_time_that_they_last_took_here(root: Path) -> None:
    for name, content in (
        ("train", {"state": "done", "seconds": 90.0}),
        ("score", {"state": "failed"}),
        ("report", {"state": "done", "seconds": 1.0}),
    ):
        write_json(status_file(name), content)
    times = provenance.of_present_run()[0]
    assert next(iter(times)) == "resolve"
    assert "report" not in times
    assert (times["train"], times["score"], times["decode"]) == (90.0, None, None)


def test_the_run_is_named_as_dvc_and_prefect_name_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert provenance.of_present_run()[1] == ["commit unknown"]
    monkeypatch.setenv("DVC_EXP_NAME", "bold-run")
    monkeypatch.setenv("PREFECT__FLOW_RUN_ID", "0a1b")
    assert provenance.of_present_run()[1] == ["commit unknown", "DVC experiment bold-run", "Prefect run 0a1b"]
