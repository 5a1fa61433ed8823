"""Blocks of text over a pool of processes, and over a Dask cluster."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from agents import ROOT, is_over, wait_for
from data_stages import configure, data_section, write_sides
from refusals import check_refusal

from nmt.errors import InputError
from nmt.text.parallel_text import Block, read_blocks
from pipeline.config import rows
from pipeline.data import blocks
from pipeline.data.blocks import DaskExecutor, executor, map_in_order
from pipeline.stages import tokenize

pytestmark = pytest.mark.timeout(600)
ON_LOOPBACK = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0", "silence_logs": 50}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, **ON_LOOPBACK) as started:
        yield started


@pytest.fixture
def on_dask(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor is the cluster."""
    monkeypatch.setattr(blocks, "_SMALL", 0)
    monkeypatch.setenv("WMT_EXECUTOR", cluster.scheduler_address.replace("tcp", "dask"))
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 0)  # Each start of a worker takes seconds.


def square(number: int) -> int:
    time.sleep(0.02 * (number % 3 == 0))
    return number * number


def refuse(number: int) -> int:
    raise InputError(f"{number} is refused")


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_results_come_in_order_from_at_most_so_many_ahead() -> None:
    pool: Any = ThreadPoolExecutor()
    pool.ahead, pool.submit, results = 4, Mock(wraps=pool.submit), []
    for result in map_in_order(pool, square, range(50)):
        results.append(result)
        assert pool.submit.call_count - len(results) < 4
    assert results == [number * number for number in range(50)]


@pytest.mark.parametrize("kind", [ProcessPoolExecutor, DaskExecutor])
def test_results_and_errors_come_back_and_a_killed_worker_ends_the_stage(
    kind: type, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "available_cores", lambda: 2)
    if kind is DaskExecutor:
        request.getfixturevalue("on_dask")
    with executor(1 << 30) as pool:
        assert isinstance(pool, kind)
        assert list(map_in_order(pool, square, range(20))) == [number * number for number in range(20)]
        check_refusal("", list, map_in_order(pool, refuse, [3]))
        with pytest.raises(OSError, match=r"^a worker process was killed"):
            list(map_in_order(pool, die, [3]))


@pytest.mark.parametrize("chosen", ["", "dask://127.0.0.1:1"])
def test_little_text_starts_no_process_and_asks_no_cluster(chosen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_EXECUTOR", chosen)
    assert isinstance(executor(1000), ThreadPoolExecutor)


def test_workers_end_with_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, time\n"
        "from pipeline.data import blocks\n"
        "if __name__ == '__main__':\n"
        "    blocks.available_cores = lambda: 2\n"
        "    print(blocks.executor(1 << 30).submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(60)\n"
    )
    command, environment = [sys.executable, script], {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as parent:
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_for(lambda: is_over(worker))


def test_a_cluster_writes_the_bytes_of_one_process(here: Path, on_dask: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(f"Number {n}, it's {n % 7} - {n}.", f"Zahl {n}, das ist {n}." * (n % 5)) for n in range(99)]
    for name in ("train.web", "valid.dev", "test.exam"):
        write_sides(tokenize.RAW / name, pairs)
    configure(data_section("web"), preparation=rows.settings("sample", "en-de")["preparation"])
    with monkeypatch.context() as patch:
        patch.delenv("WMT_EXECUTOR")
        patch.setattr(blocks, "available_cores", lambda: 1)
        tokenize.run()
    alone = {path.name: path.read_bytes() for path in tokenize.TOKENIZED.iterdir()}
    monkeypatch.setattr(tokenize, "PAIRS", 7)
    tokenize.run()
    assert {path.name: path.read_bytes() for path in tokenize.TOKENIZED.iterdir()} == alone
    assert json.loads(alone["stats.json"])["pairs"] == 99


class Noted:
    """An item that becomes the id of the process in which it is unpickled, as a block is read there."""

    def __reduce__(self) -> tuple[Callable[[], int], tuple[()]]:
        return os.getpid, ()


def both(unpickled_by: int) -> tuple[int, int]:
    return unpickled_by, os.getpid()


def test_a_block_is_read_by_its_worker_and_not_by_the_scheduler(on_dask: None) -> None:
    """The scheduler may have another working folder, and no text. Here it is a thread of this process."""
    with executor(1 << 30) as pool:
        ((reader, worker),) = map_in_order(pool, both, [Noted()])
    assert reader == worker != os.getpid()


def test_a_block_travels_without_its_text(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    check_refusal(f"^WMT_EXECUTOR is '{value}': it must be dask://HOST:PORT", executor, 1 << 30)


def test_a_scheduler_that_is_away_or_lost_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import distributed

    monkeypatch.setattr(blocks, "CONNECT", "1s")
    monkeypatch.setenv("WMT_EXECUTOR", "dask://127.0.0.1:1")
    with pytest.raises(OSError, match=r"^no Dask scheduler answers at tcp://127\.0\.0\.1:1: start it, correct WMT_EX"):
        executor(1 << 30)
    monkeypatch.undo()
    with distributed.LocalCluster(n_workers=0, **ON_LOOPBACK) as without_workers:
        monkeypatch.setenv("WMT_EXECUTOR", without_workers.scheduler_address.replace("tcp", "dask"))
        with executor(1 << 30) as pool:
            end = threading.Timer(1.0, without_workers.close)
            end.start()
            with pytest.raises(OSError, match="the Dask scheduler was lost: start it and run again"):
                list(map_in_order(pool, abs, [1]))
            end.join()
