"""`python -m pipeline STAGE`: exit statuses, one sentence an error, a status file."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nmt.common import tensors
from nmt.config import InputError
from pipeline import __main__ as runner
from pipeline.common import stage
from pipeline.common.settings import ArchiveSettings
from pipeline.common.stage import Interrupted, Tracker
from pipeline.corpora import archive_cache
from pipeline.corpora.fetch import Patience
from pipeline.parallel.parallel_map import map_in_order
from pipeline.stages import decode

ROOT = Path(__file__).resolve().parents[2]


class NoTracker:
    """Keeps nothing."""

    def metrics(self, values: object, update: int | None = None) -> None: ...

    def tags(self, values: object) -> None: ...


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """The stages that opened a run; state lives in the test's folder, and the arguments are empty."""
    names: list[str] = []

    @contextmanager
    def open_run(name: str) -> Iterator[Tracker]:
        names.append(name)
        yield NoTracker()

    monkeypatch.setattr(runner.stage_tracker, "open_run", open_run)
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    yield names
    signal.signal(signal.SIGTERM, before)


def status_of(run: Callable[[Tracker], None]) -> tuple[object, str]:
    """The exit status of the stage decode when its function is `run`, and the state that it reports."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "run", run)
        with pytest.raises(SystemExit) as exit_:
            runner.run("decode")
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


def test_a_finished_stage_tells_its_time_what_it_made_and_its_score(
    opened: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {decode: {cmd: x, outs: [models, results/scores.json, left/out]}}")
    scores = {
        "bleu": 27.3,
        "bleu_low": 26.5,
        "bleu_high": 28.1,
        "bleu_set": "newstest2014",
        "bleu_signature": "nrefs:1",
    }

    def work(_: Tracker) -> None:
        for name in ("models/a", "models/b/c"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(bytes(1000))
        (tmp_path / "results").mkdir()
        (tmp_path / "results/scores.json").write_text(json.dumps(scores))

    assert status_of(work) == (0, "done")
    made, score = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"decode: \d+\.\d s: models \(2\.0 kB\), results/scores\.json \(\d+ Bytes\)", made)
    assert score == "BLEU    27.3 (95% interval 26.5 to 28.1) on newstest2014; sacreBLEU, nrefs:1"


def test_a_users_error_is_one_sentence(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of(raising(InputError("row `bas` is unknown; nearest: base"))) == (1, "refused")
    assert capsys.readouterr().err == "decode: row `bas` is unknown; nearest: base\n"
    assert reported()["message"] == "row `bas` is unknown; nearest: base"


def test_a_full_disk_is_one_sentence(opened: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "models/last")
    assert status_of(raising(error)) == (1, "failed")
    assert capsys.readouterr().err == "decode: No space left on device: models/last\n"
    assert reported()["message"] == "No space left on device: models/last"


def without_network(_: Tracker) -> None:
    url = "http://127.0.0.1:1/a.tgz"
    archive = ArchiveSettings(name="a", urls=[url], bytes=None, sha256=None, md5=None, licence="", source="")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("http_proxy", "HTTP_PROXY"):
            patch.delenv(name, raising=False)
        archive_cache.obtain([archive], Path("work"), Patience(1))


def without_memory(_: Tracker) -> None:
    class Broken(ThreadPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise BrokenExecutor

    list(map_in_order(Broken(1), len, [""]))


def without_room(_: Tracker) -> None:
    def full(*_: Any) -> None:
        raise tensors.SafetensorError("No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "save_file", full)
        tensors.save_tensors(Path("last.safetensors"), {})


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (without_network, r"the archive a could not be downloaded: http://127\.0\.0\.1:1/a\.tgz .*; run again .*"),
        (without_memory, "a worker process was killed, most likely because memory ran out: free some and run again"),
        (without_room, r"the weights could not be written \(No space left on device\): last\.safetensors"),
    ],
)
def test_what_the_machine_lacks_is_one_sentence(
    opened: list[str], capsys: pytest.CaptureFixture[str], work: Callable[[Tracker], None], sentence: str
) -> None:
    assert status_of(work) == (1, "failed")
    assert re.fullmatch(f"decode: {sentence}", capsys.readouterr().err.splitlines()[-1])
    assert re.fullmatch(sentence, reported()["message"])


@pytest.mark.parametrize("error", [InputError("the disk is full"), OSError(errno.ENOSPC, "the disk is full")])
def test_a_status_file_that_cannot_be_written_hides_no_sentence(
    opened: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, error: Exception
) -> None:
    def fail(tracker: Tracker) -> None:
        shutil.rmtree(tmp_path / "state")
        (tmp_path / "state").touch()
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "run", fail)
        with pytest.raises(SystemExit, match="1"):
            runner.run("decode")
    assert capsys.readouterr().err == "decode: the disk is full\n"


@pytest.mark.parametrize("error", [Interrupted("stopped"), KeyboardInterrupt()])
def test_an_interrupted_stage_says_that_it_can_be_resumed(
    opened: list[str], capsys: pytest.CaptureFixture[str], error: BaseException
) -> None:
    assert status_of(raising(error)) == (runner.INTERRUPTED, "interrupted")
    assert capsys.readouterr().err == "decode: interrupted; run the same command again to resume\n"


def test_sigterm_interrupts(opened: list[str]) -> None:
    assert status_of(lambda _: signal.raise_signal(signal.SIGTERM)) == (runner.INTERRUPTED, "interrupted")
    assert reported()["message"] == "stopped by SIGTERM"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent died")
def test_a_stage_whose_supervisor_died_before_it_started_ends(
    opened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    monkeypatch.setenv("DVC_STAGE", "decode")
    monkeypatch.setenv("WMT_SUPERVISOR", str(dead.pid))
    assert status_of(raising(AssertionError("the stage ran"))) == (runner.INTERRUPTED, "interrupted")
    monkeypatch.setenv("WMT_SUPERVISOR", str(os.getpid()))
    assert status_of(lambda _: None) == (0, "done")


@pytest.mark.parametrize("error", [ZeroDivisionError("division by zero"), OSError(errno.EBADF, "Bad file descriptor")])
def test_faults_of_ours_keep_their_traceback(opened: list[str], error: Exception) -> None:
    with pytest.raises(type(error)):
        status_of(raising(error))
    assert reported()["state"] == "failed"


def test_an_unknown_stage_is_refused_before_anything_runs(opened: list[str], tmp_path: Path) -> None:
    shutil.copyfile(ROOT / "dvc.yaml", tmp_path / "dvc.yaml")
    command = [sys.executable, "-m", "pipeline"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for wrong in (["decod"], ["decode", "--fast"], []):
        done = subprocess.run(
            [*command, *wrong], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 2
        assert (wrong[-1] if wrong else "stage") in done.stderr
    assert (opened, stage.state_root().exists()) == ([], False)


def test_a_second_sigterm_does_not_disturb_what_the_first_has_begun() -> None:
    """Whoever adopts a stage sends it another; the training is still saving its state then."""
    before = signal.signal(signal.SIGTERM, runner.stop)
    try:
        with pytest.raises(Interrupted, match="stopped by SIGTERM"):
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
