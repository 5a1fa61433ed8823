"""An output in the making: what its record says is what the file holds, and what it is made from is told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from nmt.config import InputError
from nmt.inference import resumable_output
from nmt.inference.resumable_output import Partial, fingerprint


def test_it_goes_on_from_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_output, "SECONDS", 0.0)
    one = Partial(tmp_path / "out", "a")
    assert one.begin(resume=False) == 0
    one.write("first\n")
    one.line(1)
    one.write("half of the sec")
    one.close()
    again = Partial(tmp_path / "out", "a")
    assert again.begin(resume=True) == 1
    again.write("second\n")
    again.finish()
    assert (tmp_path / "out").read_text() == "first\nsecond\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_begun_anew_and_killed_early_it_remembers_nothing_of_the_attempt_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumable_output, "SECONDS", 0.0)
    old = Partial(tmp_path / "out", "a")
    old.begin(resume=False)
    old.write("first\n")
    old.line(1)
    old.close()
    anew = Partial(tmp_path / "out", "a")
    anew.begin(resume=False)
    anew.close()
    last = Partial(tmp_path / "out", "a")
    assert last.begin(resume=True) == 0
    last.finish()
    assert (tmp_path / "out").read_bytes() == b""


def test_another_identity_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_output, "SECONDS", 0.0)
    one = Partial(tmp_path / "out", "a")
    one.begin(resume=False)
    one.line(1)
    one.close()
    with pytest.raises(InputError, match="begun from another text, model or options"):
        Partial(tmp_path / "out", "b").begin(resume=True)


def test_every_file_of_a_model_decides(tmp_path: Path) -> None:
    (tmp_path / "model/subwords").mkdir(parents=True)
    (tmp_path / "model/config.yaml").write_text("a")
    (tmp_path / "model/subwords/codes.bpe").write_text("a b")
    before = fingerprint({"beam": 4}, [tmp_path / "model"], None)
    assert before == fingerprint({"beam": 4, "output": "elsewhere"}, [tmp_path / "model"], None)
    (tmp_path / "model/subwords/codes.bpe").write_text("b a")
    assert before != fingerprint({"beam": 4}, [tmp_path / "model"], None)
