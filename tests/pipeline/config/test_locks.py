"""What DVC leaves of its locks when it is killed, and what it holds while it works."""

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from command_line import printed, refused
from dvc.exceptions import DvcException

from pipeline.config.locks import mend_locks

ELSEWHERE = f'{{"write": {{"/a/out": {{"pid": {os.getppid()}, "cmd": "dvc repro"}}}}}}'
"""Of a process that was killed, whose number a process of another folder has."""


@pytest.fixture
def locks(empty_repository: Path) -> Path:
    (empty_repository / ".dvc/tmp").mkdir(parents=True)
    return empty_repository / ".dvc/tmp/rwlock"


def dvc_working() -> AbstractContextManager[None]:
    from dvc.fs import localfs  # It takes a fifth of a second, which each of pytest's processes would spend.
    from dvc.rwlock import rwlock

    return rwlock(".dvc/tmp", localfs, "dvc repro", [], ["/a/out"], False)


@pytest.mark.parametrize("left", ["", '{"write": {"/a/o', "[1]", '{"write": {"/a/out": {}}}', ELSEWHERE])
def test_what_a_killed_dvc_left_is_removed(locks: Path, left: str) -> None:
    locks.write_text(left)
    with pytest.raises(DvcException), dvc_working():
        pass
    assert printed("unlock") == ""
    with dvc_working():
        pass


def test_a_read_only_disk_is_one_sentence_before_dvc_fails(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert refused("unlock").startswith(f"unlock: {Path.cwd()} is read-only, ")


def test_what_dvc_holds_stays(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with dvc_working():
        before = locks.read_text()
        assert str(os.getpid()) in before
        assert not mend_locks()
        assert printed("unlock").startswith("unlock: .dvc/tmp/rwlock stays: a process")
        both = json.loads(before) | {"read": {"/a/in": [{"pid": os.getppid(), "cmd": "dvc repro"}]}}
        locks.write_text(json.dumps(both))
        assert not mend_locks(), "one of them works here"
        (holder,) = json.loads(before)["write"].values()
        locks.write_text(json.dumps({"read": {"/a/in": [holder]}}))
        assert not mend_locks(), "it reads"
        with monkeypatch.context() as patch:
            patch.setattr(psutil.Process, "cwd", Mock(side_effect=psutil.AccessDenied))
            assert not mend_locks(), "another user's process may work here"
        locks.write_text(before)
    locks.write_text("")
    program = "import zc.lockfile; held = zc.lockfile.LockFile('.dvc/tmp/rwlock.lock'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        assert not mend_locks(), "it may be writing the file"
        writer.kill()
    assert mend_locks()
    assert not mend_locks()
