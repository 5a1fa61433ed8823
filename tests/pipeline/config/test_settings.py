"""The sections of results/config.yaml, and what is refused of them, also by stages that other libraries would run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from data_stages import configure, data_section
from pydantic import ValidationError

from nmt.errors import InputError
from pipeline.config.corpora import MemberSettings, RunSettings
from pipeline.config.sections import AveragingSettings, load_section
from pipeline.stages import attention, binarize, decode, learn_subwords, score

SUBWORDS = ("subword_nmt", "sentencepiece")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, " is missing: run `dvc repro`, or `python -m pipeline resolve`, first"),
        ("model: {}", " has no section `averaging`: run `python -m pipeline resolve` again"),
        ("averaging: {last: 0}", ", section `averaging`: Input should be greater than or equal to 1; resolve it again"),
    ],
)
def test_a_section_that_cannot_be_read_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_section("averaging", AveragingSettings, path)
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "\u00e9"])
def test_names_are_those_of_files(name: str) -> None:
    with pytest.raises(ValidationError, match="String should match pattern"):
        RunSettings(row="base", pair="en-de", corpus=name, seed=0)
    assert RunSettings(row="base", pair="en-fr", corpus="0.News_v9-x", seed=0).corpus == "0.News_v9-x"


def test_a_text_is_in_an_archive_or_in_a_file_whose_sum_is_known() -> None:
    packed: dict[str, Any] = {"archive": "a", "member": "m"}
    local: dict[str, Any] = {"path": "p", "sha256": "0" * 64}
    for place in (packed, local):
        assert MemberSettings(**place).model_dump(exclude_none=True) == place
    for wrong in ({"path": "p"}, {"archive": "a"}, {"member": "m"}, packed | {"path": "p"}, local | {"member": "m"}):
        with pytest.raises(ValidationError, match="give archive and member, or path and sha256"):
            MemberSettings(**wrong)


@pytest.mark.parametrize(
    ("stage", "library"),
    [
        *((stage, name) for stage in (learn_subwords, binarize) for name in SUBWORDS),
        *((stage, name) for stage in (decode, attention) for name in ("sacremoses", *SUBWORDS)),
        *((score, name) for name in ("sacrebleu", "sacremoses")),
    ],
)
def test_stages_refuse_another_version_of_a_library(
    stage: Any, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sections: dict[str, Any] = {"search": {"beam": 4, "alpha": 0.6, "max_extra": 50, "stop": "exact"}}
    sections |= {"binning": {"max_length": 256, "growth": 1.1}}
    sections |= {"subwords": {"kind": "bpe", "merges": 30, "vocabulary": None, "multiple_of": 8}}
    configure(data_section("x"), {library: "0.0.1"}, **sections)
    with pytest.raises(InputError, match=rf"{library} .* resolved with 0\.0\.1"):
        stage.run()
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    assert [path.name for path in Path("results").iterdir()] == ["config.yaml"]
