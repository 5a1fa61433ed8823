from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from agents import ROOT, wait_for
from orchestra import is_over

from pipeline.data import blocks
from pipeline.data.blocks import executor, map_in_order


def square(number: int) -> int:
    time.sleep(0.02 * (number % 3 == 0))
    return number * number


def die(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


class Counting(ThreadPoolExecutor):
    """Knows how many results nobody has taken yet."""

    submitted = 0
    ahead = 4

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        return super().submit(fn, *args, **kwargs)


def test_results_come_in_order_from_at_most_so_many_ahead() -> None:
    pool = Counting()
    results = []
    for result in map_in_order(pool, square, range(50)):
        results.append(result)
        assert pool.submitted - len(results) < 4
    assert results == [number * number for number in range(50)]


def test_processes_give_what_one_process_gives_and_tell_of_death(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "available_cores", lambda: 2)
    with executor(1 << 30) as pool:
        assert isinstance(pool, ProcessPoolExecutor)
        assert list(map_in_order(pool, square, range(20))) == [number * number for number in range(20)]
        # With the number of an error that the runner explains.
        with pytest.raises(OSError, match=rf"\[Errno {errno.EIO}\] a worker process was killed"):
            list(map_in_order(pool, die, range(3)))


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
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    wait_for(lambda: is_over(worker))
