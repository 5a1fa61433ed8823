"""Stages refuse libraries of other versions than the run was resolved with, before they read or write anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_stages import configure, data_section

from nmt.config import InputError
from pipeline.stages import attention, binarize, decode, learn_subwords, score

SEARCH = {"beam": 4, "alpha": 0.6, "max_extra": 50, "stop": "exact"}
BINNING = {"max_length": 256, "growth": 1.1}
SUBWORDS = ("subword_nmt", "sentencepiece")
BPE = {"kind": "bpe", "merges": 30, "vocabulary": None, "multiple_of": 8}


@pytest.mark.parametrize(
    ("stage", "library"),
    [
        *((stage, name) for stage in (learn_subwords, binarize) for name in SUBWORDS),
        *((stage, name) for stage in (decode, attention) for name in ("sacremoses", *SUBWORDS)),
        *((score, name) for name in ("sacrebleu", "sacremoses")),
    ],
)
def test_another_version_is_refused(stage: Any, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    configure(data_section("x"), {library: "0.0.1"}, search=SEARCH, binning=BINNING, subwords=BPE)
    with pytest.raises(InputError, match=rf"{library} .* resolved with 0\.0\.1"):
        stage.run()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert [path.name for path in Path("results").iterdir()] == ["config.yaml"]
