"""An output in the making: what its record says is what the file holds, and what it is made from is told apart."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nmt.config import InputError
from nmt.deployment import resumable_output
from nmt.deployment.resumable_output import Partial, fingerprint


def begun(path: Path, *lines: str, identity: str = "a") -> Partial:
    """An output that has the lines in capitals."""
    one = Partial(path, identity)
    assert one.begin(iter(lines), resume=False) == 0
    for line in lines:
        one.write(line, f"{line.upper()}\n")
    return one


def test_it_goes_on_from_the_last_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_output, "SECONDS", 0.0)
    killed = begun(tmp_path / "out", "first")
    killed.file.write(b"HALF OF THE SEC")
    killed.file.close()
    again = Partial(tmp_path / "out", "a")
    rest = iter(["first", "second"])
    assert again.begin(rest, resume=True) == 1
    again.write(next(rest), "SECOND\n")
    again.finish()
    assert (tmp_path / "out").read_text() == "FIRST\nSECOND\n"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_closed_early_it_records_what_is_complete(tmp_path: Path) -> None:
    one = begun(tmp_path / "out", "first", "second")
    one.file.write(b"HALF OF THE TH")
    one.close()
    again = Partial(tmp_path / "out", "a")
    assert again.begin(iter(["first", "second", "third"]), resume=True) == 2
    again.finish()
    assert (tmp_path / "out").read_text() == "FIRST\nSECOND\n"


def test_begun_anew_and_killed_early_it_remembers_nothing_of_the_attempt_before(tmp_path: Path) -> None:
    begun(tmp_path / "out", "first").close()
    begun(tmp_path / "out").file.close()
    last = Partial(tmp_path / "out", "a")
    assert last.begin(iter(["first"]), resume=True) == 0
    last.finish()
    assert (tmp_path / "out").read_bytes() == b""


@pytest.mark.parametrize(
    ("identity", "lines"), [("b", ["first", "second"]), ("a", ["first", "other"]), ("a", ["first"])]
)
def test_other_options_or_another_text_are_refused(tmp_path: Path, identity: str, lines: list[str]) -> None:
    begun(tmp_path / "out", "first", "second").close()
    with pytest.raises(InputError, match="begun from another text, model or options"):
        Partial(tmp_path / "out", identity).begin(iter(lines), resume=True)


def test_one_process_at_a_time_writes_an_output(tmp_path: Path) -> None:
    first = begun(tmp_path / "out", "first")
    for resume in (False, True):
        with pytest.raises(InputError, match=r"another process writes .*out: wait until it has ended"):
            Partial(tmp_path / "out", "a").begin(iter(["first"]), resume=resume)
    first.finish()
    assert (tmp_path / "out").read_text() == "FIRST\n"
    begun(tmp_path / "out", "next").finish()
    assert (tmp_path / "out").read_text() == "NEXT\n"


def test_a_file_that_lost_bytes_is_not_continued(tmp_path: Path) -> None:
    begun(tmp_path / "out", "first").close()
    (tmp_path / ".out.part").write_bytes(b"FI")
    with pytest.raises(InputError, match="is shorter than the 6 bytes of its record: leave --resume out"):
        Partial(tmp_path / "out", "a").begin(iter(["first"]), resume=True)


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"lines": null, "bytes": 0, "identity": "a"}'])
def test_a_damaged_record_is_refused(tmp_path: Path, record: str) -> None:
    begun(tmp_path / "out", "first").close()
    (tmp_path / ".out.part.json").write_text(record)
    with pytest.raises(InputError, match="is damaged: leave --resume out to begin anew"):
        Partial(tmp_path / "out", "a").begin(iter(["first"]), resume=True)


def test_later_lines_may_have_changed(tmp_path: Path) -> None:
    begun(tmp_path / "out", "first").close()
    again = Partial(tmp_path / "out", "a")
    assert again.begin(iter(["first", "mended"]), resume=True) == 1
    again.close()


def test_a_link_leads_to_the_output_and_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to("elsewhere/out")
    begun(tmp_path / "out", "first").finish()
    assert (tmp_path / "out").is_symlink()
    assert (tmp_path / "elsewhere/out").read_text() == "FIRST\n"
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path / "elsewhere", Path(os.devnull)):
        with pytest.raises(InputError, match="is no regular file"):
            Partial(path, "a")


def test_every_file_of_a_model_decides(tmp_path: Path) -> None:
    (tmp_path / "model/subwords").mkdir(parents=True)
    (tmp_path / "model/config.yaml").write_text("a")
    (tmp_path / "model/subwords/codes.bpe").write_text("a b")
    before = fingerprint({"beam": 4}, [tmp_path / "model"])
    assert before == fingerprint({"beam": 4, "output": "elsewhere"}, [tmp_path / "model"])
    (tmp_path / "model/subwords/codes.bpe").write_text("b a")
    assert before != fingerprint({"beam": 4}, [tmp_path / "model"])
