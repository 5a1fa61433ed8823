"""The names of deployments on Prefect's command line."""

from __future__ import annotations

import pytest

from pipeline.short_names import long_name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("deployment run wmt-en-de -p row=big", "deployment run wmt-en-de/wmt-en-de -p row=big"),
        ("deployment run -p row=big wmt-en-fr", "deployment run -p row=big wmt-en-fr/wmt-en-fr"),
        ("deployment inspect wmt-en-de", "deployment inspect wmt-en-de/wmt-en-de"),
        ("deployment run wmt-en-de/nightly", "deployment run wmt-en-de/nightly"),
        ("deployment run --flow-run-name wmt-1 wmt-en-de", "deployment run --flow-run-name wmt-1 wmt-en-de/wmt-en-de"),
        ("deployment run other", "deployment run other"),
        ("deployment ls", "deployment ls"),
        ("flow-run inspect wmt-en-de", "flow-run inspect wmt-en-de"),
        ("", ""),
    ],
)
def test_a_short_name_is_written_out(typed: str, meant: str) -> None:
    assert long_name(["prefect", *typed.split()]) == ["prefect", *meant.split()]
