from __future__ import annotations

import json
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from data_stages import configure, data_section

from nmt.errors import InputError
from nmt.text.parallel_text import Block, read_blocks
from pipeline.data import blocks
from pipeline.data.blocks import executor, map_in_order
from pipeline.stages import tokenize

pytestmark = pytest.mark.timeout(600)
ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}
PREPARATION = {
    "tokenizer": {"tokenizer": "moses", "normalize_punctuation": True, "aggressive_hyphens": False},
    "filters": {"min_tokens": 1, "max_tokens": 80, "max_ratio": 9.0, "drop_identical": False},
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **ON_LOOPBACK) as started:
        yield started


@pytest.fixture
def here(tmp_path: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository whose executor is the cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(blocks, "_SMALL", 0)
    monkeypatch.setenv("WMT_EXECUTOR", cluster.scheduler_address.replace("tcp", "dask"))
    return tmp_path


def count(number: int) -> tuple[int, int]:
    time.sleep(0.01)
    return number, os.getpid()


def refuse(number: int) -> int:
    raise InputError(f"{number} is refused")


def kill(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def kill_once(marks: Path, number: int) -> int:
    if number == 5 and not (marks / "killed").exists():
        (marks / "killed").touch()
        kill(number)
    return number


def test_the_same_bytes_as_from_one_process(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenize.RAW.mkdir(parents=True)
    for name in ("train.web", "valid.dev", "test.exam"):
        for side, word in (("en", "Number"), ("de", "Zahl")):
            lines = (f"{word} {n}, it's {n % 7} - {n}.\n" for n in range(99))
            (tokenize.RAW / f"{name}.{side}").write_text("".join(lines))
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


def test_a_killed_worker_costs_its_block_only(here: Path) -> None:
    with executor() as pool:
        workers = {process for _, process in map_in_order(pool, count, range(20))}
        assert len(workers) == 2
        assert os.getpid() not in workers
        assert list(map_in_order(pool, partial(kill_once, here), range(40))) == list(range(40))


def test_errors_come_back_and_a_block_that_kills_its_workers_ends_the_stage(
    here: Path, cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)  # Each start of a worker takes seconds.
    with executor() as pool:
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
    with executor() as pool:
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
        executor()


def test_a_scheduler_that_is_away_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "CONNECT", "1s")
    monkeypatch.setenv("WMT_EXECUTOR", "dask://127.0.0.1:1")
    with pytest.raises(OSError, match="no Dask scheduler answers: start it, correct WMT_EXECUTOR, or unset it") as away:
        executor()
    assert away.value.filename == "tcp://127.0.0.1:1"


def test_a_scheduler_that_is_lost_is_one_sentence(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    with distributed.LocalCluster(n_workers=0, **ON_LOOPBACK) as without_workers:
        monkeypatch.setenv("WMT_EXECUTOR", without_workers.scheduler_address.replace("tcp", "dask"))
        with executor() as pool:
            end = threading.Timer(1.0, without_workers.close)
            end.start()
            with pytest.raises(OSError, match="the Dask scheduler was lost: start it and run again"):
                list(map_in_order(pool, count, [1]))
            end.join()
