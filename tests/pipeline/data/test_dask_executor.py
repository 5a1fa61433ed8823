from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from data_stages import configure, data_section, write_sides

from nmt.errors import InputError
from nmt.text.parallel_text import Block, read_blocks
from pipeline.config import rows
from pipeline.data import blocks
from pipeline.data.blocks import executor, map_in_order
from pipeline.stages import tokenize

pytestmark = pytest.mark.timeout(600)
ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
PREPARATION = rows.settings("sample", "en-de")["preparation"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **ON_LOOPBACK) as started:
        yield started


@pytest.fixture
def here(here: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository whose executor is the cluster."""
    monkeypatch.setattr(blocks, "_SMALL", 0)
    monkeypatch.setenv("WMT_EXECUTOR", cluster.scheduler_address.replace("tcp", "dask"))
    return here


def refuse(number: int) -> int:
    raise InputError(f"{number} is refused")


def kill(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_the_same_bytes_as_from_one_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"Number {n}, it's {n % 7} - {n}.", f"Zahl {n}, das ist {n}." * (n % 5)) for n in range(99)]
    for name in ("train.web", "valid.dev", "test.exam"):
        write_sides(tokenize.RAW / name, pairs)
    configure(data_section("web"), preparation=PREPARATION)
    with monkeypatch.context() as patch:
        patch.delenv("WMT_EXECUTOR")
        patch.setattr(blocks, "available_cores", lambda: 1)
        tokenize.run()
    alone = {path.name: path.read_bytes() for path in tokenize.TOKENIZED.iterdir()}
    monkeypatch.setattr(tokenize, "PAIRS", 7)
    tokenize.run()
    assert {path.name: path.read_bytes() for path in tokenize.TOKENIZED.iterdir()} == alone
    assert json.loads(alone["stats.json"])["pairs"] == 99


def test_errors_come_back_and_a_block_that_kills_its_workers_ends_the_stage(
    here: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)  # Each start of a worker takes seconds.
    with executor(1 << 30) as pool:
        with pytest.raises(InputError, match="3 is refused"):
            list(map_in_order(pool, refuse, [3]))
        with pytest.raises(OSError, match="a worker process was killed, most likely because memory ran out"):
            list(map_in_order(pool, kill, [3]))


class Noted:
    """An item that becomes the id of the process in which it is unpickled, as a block is read there."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return os.getpid, ()


def both(unpickled_by: int) -> tuple[int, int]:
    return unpickled_by, os.getpid()


def test_a_block_is_read_by_its_worker_and_not_by_the_scheduler(here: Path) -> None:
    """The scheduler may have another working folder, and no text. Here it is a thread of this process."""
    with executor(1 << 30) as pool:
        ((reader, worker),) = map_in_order(pool, both, [Noted()])
    assert reader == worker != os.getpid()


def test_a_block_travels_without_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("".join(f"line {number}\n" for number in range(1000)))
    _, second = read_blocks(Path("text"), 600)
    pickled = pickle.dumps(second)
    assert len(pickled) < 400 < len(second.content)
    monkeypatch.chdir("/")
    copy: Block = pickle.loads(pickled)
    assert copy == second
    assert copy.lines()[0] == "line 600"


@pytest.mark.parametrize("value", ["ray", "dask", "dask://host", "tcp://host:8786", "dask://host:x"])
def test_other_executors_are_refused(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_EXECUTOR", value)
    with pytest.raises(InputError, match=f"^WMT_EXECUTOR is '{value}': it must be dask://HOST:PORT"):
        executor(1 << 30)


def test_a_scheduler_that_is_away_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CONNECT", "1s")
    monkeypatch.setenv("WMT_EXECUTOR", "dask://127.0.0.1:1")
    with pytest.raises(OSError, match="no Dask scheduler answers: start it, correct WMT_EXECUTOR, or unset it") as away:
        executor(1 << 30)
    assert away.value.filename == "tcp://127.0.0.1:1"


def test_a_scheduler_that_is_lost_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    with distributed.LocalCluster(n_workers=0, **ON_LOOPBACK) as without_workers:
        monkeypatch.setenv("WMT_EXECUTOR", without_workers.scheduler_address.replace("tcp", "dask"))
        with executor(1 << 30) as pool:
            end = threading.Timer(1.0, without_workers.close)
            end.start()
            with pytest.raises(OSError, match="the Dask scheduler was lost: start it and run again"):
                list(map_in_order(pool, abs, [1]))
            end.join()
