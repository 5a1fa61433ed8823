"""The sections of results/config.yaml, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nmt.config import AveragingSettings, InputError
from pipeline.config.settings import MemberSettings, RunSettings, load_section

SUM = "0" * 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "{path} is missing: run `dvc repro`, or `python -m pipeline resolve`, first"),
        ("model: {{}}", "{path} has no section `averaging`: run `python -m pipeline resolve` again"),
        (
            "averaging: {{last: 0}}",
            "{path}, section `averaging`: Input should be greater than or equal to 1; resolve it again",
        ),
    ],
)
def test_a_section_that_cannot_be_read_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content.format(), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_section("averaging", AveragingSettings, path)
    assert str(caught.value).startswith(message.format(path=path))


@pytest.mark.parametrize("name", ["", "-x", ".x", "a b", "a/b", "\u00e9"])
def test_names_are_those_of_files(name: str) -> None:
    with pytest.raises(ValidationError, match="String should match pattern"):
        RunSettings(row="base", pair="en-de", corpus=name, seed=0)
    assert RunSettings(row="base", pair="en-fr", corpus="0.News_v9-x", seed=0).corpus == "0.News_v9-x"


@pytest.mark.parametrize(
    ("place", "fine"),
    [
        ({"archive": "a", "member": "m"}, True),
        ({"path": "p", "sha256": SUM}, True),
        ({"path": "p"}, False),
        ({"archive": "a"}, False),
        ({"member": "m"}, False),
        ({"archive": "a", "member": "m", "path": "p"}, False),
        ({"member": "m", "path": "p", "sha256": SUM}, False),
    ],
)
def test_a_text_is_in_an_archive_or_in_a_file_whose_sum_is_known(place: dict[str, Any], fine: bool) -> None:
    if fine:
        assert MemberSettings(**place).model_dump(exclude_none=True) == place
    else:
        with pytest.raises(ValidationError, match="give archive and member, or path and sha256"):
            MemberSettings(**place)
