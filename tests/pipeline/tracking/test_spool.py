"""The events of a run on disk, where writing them was cut short."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.tracking.spool import Spool, SpoolTracker


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """One that holds an event."""
    made = Spool(tmp_path / "run")
    made.make(b"{}")
    made.append("resolve", "begin")
    return made


@contextmanager
def room(path: Path, count: int) -> Iterator[None]:
    """Let the file grow by `count` bytes: what is longer is written in part, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def kinds(spool: Spool) -> list[str]:
    return [event["kind"] for event in spool.read()[0]]


@pytest.mark.parametrize("ending", [b"", b'{"half'])
def test_an_event_that_does_not_fit_is_not_there_at_all(spool: Spool, ending: bytes) -> None:
    with spool.events.open("ab") as file:
        file.write(ending)
    before = spool.events.read_bytes()
    with pytest.raises(OSError, match="File too large"), room(spool.events, 10):
        spool.append("train", "tags", values={})
    assert spool.events.read_bytes() == before
    spool.append("train", "end")
    assert kinds(spool) == ["begin", "end"]


def test_the_event_after_half_a_line_has_a_line_of_its_own(spool: Spool) -> None:
    _, offset = spool.read()
    with spool.events.open("ab") as file:
        file.write('{"time": 1, "kind": "ü'.encode()[:-1])
    spool.append("train", "metrics", values={})
    events, _ = spool.read(offset)
    assert [event["kind"] for event in events] == ["metrics"]
    assert spool.ending() == "KILLED"


def test_a_later_stage_goes_on_after_half_a_line(spool: Spool, capsys: pytest.CaptureFixture[str]) -> None:
    # As versions before this one left it: the next event stands in the same line.
    with spool.events.open("ab") as file:
        file.write(b'{"time": 1, "ki{"time": 2, "kind": "end"}\n')
    tracker = SpoolTracker("train", lambda: spool.folder, spool.config)
    tracker.metrics({"loss": 1.0}, 1)
    tracker.close()
    assert kinds(spool) == ["begin", "begin", "metrics"]
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_told_once_and_stops_nothing(spool: Spool, capsys: pytest.CaptureFixture[str]) -> None:
    tracker = SpoolTracker("train", lambda: spool.folder, spool.config)
    tracker.open()
    with room(spool.events, 10):
        tracker.metrics({"loss": 1.0}, 1)
        tracker.metrics({"loss": 1.0}, 2)
    tracker.metrics({"loss": 1.0}, 3)
    tracker.close()
    assert [event["update"] for event in spool.read()[0] if event["kind"] == "metrics"] == [3]
    assert capsys.readouterr().err.count("the stage goes on without it") == 1
