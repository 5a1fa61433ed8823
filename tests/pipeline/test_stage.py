"""What the shared main() of the stages promises: exit statuses, one sentence an error, a status file."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from nmt.config import InputError
from pipeline import stage
from pipeline.stage import Interrupted, Tracker


class NoTracker:
    """Keeps nothing."""

    def metrics(self, values: object, update: int | None = None) -> None: ...

    def tags(self, values: object) -> None: ...

    def artifact(self, path: Path, folder: str | None = None) -> None: ...


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The stages that opened a run; state lives in the test's folder, and the arguments are empty."""
    names: list[str] = []

    @contextmanager
    def open_run(name: str) -> Iterator[Tracker]:
        names.append(name)
        yield NoTracker()

    monkeypatch.setitem(sys.modules, "pipeline.tracking.stage_tracker", SimpleNamespace(open_run=open_run))
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(sys, "argv", ["stage"])
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield names
    signal.signal(signal.SIGTERM, before)


def status_of(run: Callable[[Tracker], None]) -> tuple[object, str]:
    """The exit status of a stage that runs `run`, and the state it reports."""
    with pytest.raises(SystemExit) as exit_:
        stage.main("decode", "Translate.", run)
    return exit_.value.code, reported()["state"]


def reported() -> dict[str, str]:
    content: dict[str, str] = json.loads((stage.state_root() / "status/decode.json").read_text())
    return content


def raising(error: BaseException) -> Callable[[Tracker], None]:
    def run(tracker: Tracker) -> None:
        assert reported()["state"] == "running"
        raise error

    return run


def test_a_stage_that_ends_well(opened: list[str]) -> None:
    assert status_of(lambda _: None) == (0, "done")
    assert opened == ["decode"]


def test_a_users_error_is_one_sentence(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(raising(InputError("row `bas` is unknown; nearest: base"))) == (1, "refused")
    assert capsys.readouterr().err == "decode: row `bas` is unknown; nearest: base\n"
    assert reported()["message"] == "row `bas` is unknown; nearest: base"


def test_a_full_disk_is_one_sentence(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "models/last")
    assert status_of(raising(error)) == (1, "failed")
    assert capsys.readouterr().err == "decode: No space left on device: models/last\n"


@pytest.mark.parametrize("error", [Interrupted("stopped"), KeyboardInterrupt()])
def test_an_interrupted_stage_says_that_it_can_be_resumed(
    opened: list[str], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    assert status_of(raising(error)) == (stage.INTERRUPTED, "interrupted")
    assert capsys.readouterr().err == "decode: interrupted, resumable: run it again to go on\n"


def test_sigterm_interrupts(opened: list[str]) -> None:
    assert status_of(lambda _: signal.raise_signal(signal.SIGTERM)) == (stage.INTERRUPTED, "interrupted")
    assert reported()["message"] == "stopped by SIGTERM"


def test_our_own_mistakes_keep_their_traceback(opened: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        stage.main("decode", None, raising(ZeroDivisionError("division by zero")))
    assert reported()["state"] == "failed"


def test_unknown_arguments_are_refused_before_anything_runs(
    opened: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["stage", "--fast"])
    with pytest.raises(SystemExit) as exit_:
        stage.main("decode", "Translate.", lambda _: None)
    assert exit_.value.code == 2
    assert "--fast" in capsys.readouterr().err
    assert (opened, stage.state_root().exists()) == ([], False)


def test_state_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WMT_STATE", raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert stage.state_root() == Path("work")
    monkeypatch.setenv("DVC_ROOT", "/repository")
    assert stage.state_root() == Path("/repository/work")
    monkeypatch.setenv("WMT_STATE", "/state")
    assert stage.state_root() == Path("/state")


def test_json_goes_round_whole(tmp_path: Path) -> None:
    path = tmp_path / "numbers.json"
    stage.write_json(path, {"b": 1.5, "a": "ü"})
    assert path.read_text(encoding="utf-8") == '{\n  "b": 1.5,\n  "a": "ü"\n}\n'
    assert stage.read_json(path) == {"b": 1.5, "a": "ü"}


@pytest.mark.parametrize("content", [None, "{", "[1]"])
def test_json_that_cannot_be_read_is_a_users_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "numbers.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"numbers\.json .*dvc repro"):
        stage.read_json(path)


def test_versions_other_than_resolved_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.2.0")
    stage.check_versions({"sacremoses": "0.2.0"})
    with pytest.raises(InputError, match=r"subword_nmt 0\.2\.0 is installed.*0\.3\.8"):
        stage.check_versions({"sacremoses": "0.2.0", "subword_nmt": "0.3.8"})
