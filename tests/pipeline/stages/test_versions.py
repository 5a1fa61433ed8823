"""Stages refuse libraries of other versions than the run was resolved with, before they read or write anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_stages import Recorder, configure, data_section

from nmt.config import InputError
from pipeline.stages import attention, binarize, decode

SEARCH = {"beam": 4, "alpha": 0.6, "max_extra": 50, "stop": "exact"}
BINNING = {"max_length": 256, "growth": 1.1}


SUBWORDS = ("subword_nmt", "sentencepiece")
ALL = ("sacremoses", *SUBWORDS)


@pytest.mark.parametrize(
    ("stage", "library"),
    [(stage, name) for stage, names in ((binarize, SUBWORDS), (decode, ALL), (attention, ALL)) for name in names],
)
def test_another_version_is_refused(stage: Any, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configure(data_section("x"), {library: "0.0.1"}, search=SEARCH, binning=BINNING)
    with pytest.raises(InputError, match=rf"{library} .* resolved with 0\.0\.1"):
        stage.run(Recorder())
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert [path.name for path in Path("results").iterdir()] == ["config.yaml"]
