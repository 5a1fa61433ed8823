"""`python -m pipeline STAGE`: exit statuses, one sentence an error, a status file."""

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from clones import ROOT

from nmt.common.processes import Interrupted
from nmt.errors import InputError
from pipeline import __main__ as runner
from pipeline.stages import decode

Told = list[tuple[str, ...]]


@pytest.fixture
def told(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What MLflow would be told; the repository is the test's folder."""
    calls: Told = []
    Path("dvc.yaml").write_text("stages: {decode: {cmd: x}}")
    monkeypatch.setattr(runner.publish, "finish", lambda *given: calls.append(given))
    monkeypatch.setattr(runner.publish, "end", lambda *given: calls.append(given))
    monkeypatch.setenv("WMT_STATE", str(here / "state"))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield calls
    for number, handler in before.items():
        signal.signal(number, handler)


def status_of(run: Callable[[], None]) -> tuple[object, str]:
    """The exit status of the stage decode when its function is `run`, and the state that it reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "run", run)
        with pytest.raises(SystemExit) as exit_:
            runner.run("decode")
    return exit_.value.code, reported()["state"]


def reported() -> dict[str, str]:
    return json.loads(Path(".dvc/tmp/status/decode.json").read_text())


def raising(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        assert reported()["state"] == "running"
        raise error

    return run


def test_a_finished_stage_tells_its_time_its_outputs_and_score(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    Path("dvc.yaml").write_text("stages: {decode: {cmd: x, outs: [models, results/scores.json, left/out]}}")
    scores = {"bleu": 27.3, "bleu_low": 26.5, "bleu_high": 28.1, "bleu_set": "newstest2014", "bleu_signature": "x"}

    def work() -> None:
        for folder in ("models/b", "results"):
            Path(folder).mkdir(parents=True)
        for name in ("models/a", "models/b/c"):
            Path(name).write_bytes(bytes(1000))
        Path("results/scores.json").write_text(json.dumps(scores))

    assert status_of(work) == (0, "done")
    assert told == [("decode",)]
    made, score = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"decode: \d+\.\d s: models \(2\.0 kB\), results/scores\.json \(\d+ Bytes\)", made)
    assert score == "BLEU    27.3 (95% interval 26.5 to 28.1) on newstest2014; sacreBLEU, x"


@pytest.mark.parametrize(
    ("work", "state", "sentence"),
    [
        (raising(InputError("row `bas` is unknown")), "refused", "row `bas` is unknown"),
        (raising(OSError(errno.ENOSPC, "No room", "models/last")), "failed", "No room: models/last; make room .*"),
        (raising(OSError(errno.ENOSPC, "No room", "a", None, "models/b")), "failed", "No room: models/b; make room .*"),
        # As from an address that does not answer, and where a worker of the executor was killed.
        (raising(ConnectionError("not downloaded")), "failed", "not downloaded"),
        (raising(OSError("a worker was killed")), "failed", "a worker was killed"),
        # As where `work` is a link to a disk that is not mounted.
        (raising(FileExistsError(errno.EEXIST, "File exists", "work")), "failed", "work: File exists"),
        (raising(MemoryError()), "failed", r"memory ran out \(\): free some, or raise its limit .*"),
        (raising(ImportError("libtorch.so: failed to map segment from shared object")), "failed", "memory ran out .*"),
    ],
)
def test_what_the_user_or_the_machine_must_mend_is_one_sentence(
    told: Told, capsys: pytest.CaptureFixture[str], work: Callable[[], None], state: str, sentence: str
) -> None:
    assert status_of(work) == (1, state)
    assert re.fullmatch(f"decode: {sentence}", capsys.readouterr().err.splitlines()[-1])
    assert re.fullmatch(sentence, reported()["message"])


@pytest.mark.parametrize("error", [InputError("the disk is full"), OSError(errno.EROFS, "the disk is full")])
def test_a_status_file_that_cannot_be_written_hides_no_sentence(
    told: Told, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail() -> None:
        shutil.rmtree(".dvc")
        Path(".dvc").touch()
        raise error

    monkeypatch.setattr(decode, "run", fail)
    with pytest.raises(SystemExit, match="1"):
        runner.run("decode")
    assert capsys.readouterr().err == "decode: the disk is full\n"


@pytest.mark.parametrize("error", [Interrupted("stopped"), KeyboardInterrupt()])
def test_interrupted_it_can_be_resumed(told: Told, capsys: pytest.CaptureFixture[str], error: BaseException) -> None:
    assert status_of(raising(error)) == (runner.INTERRUPTED, "interrupted")
    assert told == [("decode", "KILLED")]
    why = f" ({error})" if str(error) else ""
    assert capsys.readouterr().err == f"decode: interrupted{why}; run the same command again to resume\n"


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_closed_terminal_interrupts_once(told: Told, monkeypatch: pytest.MonkeyPatch, first: signal.Signals) -> None:
    """SIGHUP comes to the stage and to DVC, whose end sends SIGTERM while a state is saved; nothing can be printed."""

    def work() -> None:
        try:
            signal.raise_signal(first)
        finally:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
            Path("saved").touch()

    closed = Mock(write=Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    monkeypatch.setattr(sys, "stderr", closed)
    assert status_of(work) == (runner.INTERRUPTED, "interrupted")
    assert (Path("saved").exists(), reported()["message"]) == (True, f"stopped by {first.name}")
    assert told == [("decode", "KILLED")]


def test_under_nohup_a_closed_terminal_interrupts_nothing(told: Told) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert status_of(lambda: signal.raise_signal(signal.SIGHUP)) == (0, "done")


INTERRUPTED = b"decode: interrupted (stopped by SIGTERM); run the same command again to resume\n"


def python(folder: Path, *words: str, **options: Any) -> tuple[int, bytes]:
    """The exit status of a process of its own and what it says."""
    command, environment = [sys.executable, *words], {**os.environ, "PYTHONPATH": str(ROOT), "DVC_STAGE": "decode"}
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False, **options)
    return result.returncode, result.stderr


def test_a_stage_whose_dvc_died_before_it_could_follow_it_does_not_begin(tmp_path: Path) -> None:
    """DVC and its stages share a process group; who adopts an orphan is in another one."""
    shutil.copyfile(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    assert python(tmp_path, "-m", "pipeline", "decode", start_new_session=True) == (75, INTERRUPTED)


RUNS = """
import atexit, os, signal
from types import SimpleNamespace
from pipeline import __main__ as runner
def again(*_): {again}
runner.importlib = SimpleNamespace(import_module=lambda _: SimpleNamespace(run=lambda: {first}))
runner.publish = SimpleNamespace(end=again, finish=lambda _: None)
atexit.register(again)
runner.run("decode")
"""


@pytest.mark.parametrize("later", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(("first", "status"), [("os.kill(os.getpid(), signal.SIGINT)", 75), ("None", 0)])
def test_ctrl_c_while_a_stage_ends_leaves_no_traceback(tmp_path: Path, first: str, status: int, later: str) -> None:
    """MLflow may take half a minute; the threads of a stage that is done end in milliseconds."""
    program = RUNS.format(first=first, again=f"os.kill(os.getpid(), signal.{later})")
    (tmp_path / "dvc.yaml").write_text("stages: {decode: {cmd: x}}")
    told = INTERRUPTED.replace(b" (stopped by SIGTERM)", b"") if status else b""
    assert python(tmp_path, "-c", program, "decode") == (status, told)


def test_a_stage_whose_reader_is_gone_is_done(tmp_path: Path) -> None:
    closed = "import os; reading, writing = os.pipe(); os.dup2(writing, 1); os.close(reading)"
    program = closed + RUNS.format(first="None", again="None")
    (tmp_path / "dvc.yaml").write_text("stages: {decode: {cmd: x}}")
    assert python(tmp_path, "-c", program) == (0, b"")


def test_faults_of_ours_keep_their_traceback(told: Told) -> None:
    with pytest.raises(ZeroDivisionError):
        status_of(raising(ZeroDivisionError("division by zero")))
    assert reported()["state"] == "failed"
    assert told == [("decode", "FAILED")]


def test_an_unknown_stage_is_refused_before_anything_runs(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    monkeypatch.setattr(sys, "argv", ["pipeline", "decod"])
    with pytest.raises(SystemExit, match="2"):
        runner.main()
    assert not Path(".dvc").exists()
