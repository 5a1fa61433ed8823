"""Parallel work with an Executor: a pool of processes here, or a Dask cluster (`WMT_EXECUTOR`)."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TypeVar

from nmt.config import InputError
from pipeline.config.machine import available_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

_SMALL = 16 * 2**20  # bytes of text below which starting processes takes longer than they save


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end when it ends: if killed, it cannot stop its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
    os._exit(1)


def executor(size: int | None = None) -> Executor:
    """Return an executor for `size` bytes of text, or for any amount: one process per core.

    Short texts, and a machine with one core, get one thread of this process.
    `$WMT_EXECUTOR` chooses Dask instead of processes. Raises InputError for other values, OSError if Dask is away.
    """
    chosen = os.environ.get("WMT_EXECUTOR", "")
    if not re.fullmatch(r"(dask://[^\s/:]+:\d+)?", chosen):
        raise InputError(f"WMT_EXECUTOR is {chosen!r}: it must be dask://HOST:PORT; unset it for processes")
    if size is not None and size < _SMALL:
        return ThreadPoolExecutor(1)
    if chosen:
        # Dask takes half a second to import.
        from pipeline.data.dask_executor import DaskExecutor

        return DaskExecutor(chosen.replace("dask", "tcp", 1))
    if available_cores() == 1:
        return ThreadPoolExecutor(1)
    # Spawned, not forked: a fork of a process that has threads (Arrow's, tqdm's) can hang.
    return ProcessPoolExecutor(available_cores(), multiprocessing.get_context("spawn"), _start_worker)


def map_in_order(pool: Executor, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield `function` of each item in the items' order; raise what it raises, and OSError where a worker was killed.

    At most 2 items per core, or `pool.ahead` if it has that, are in work: memory does not grow with their number.
    """
    ahead = getattr(pool, "ahead", 2 * available_cores())
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except CancelledError as error:
        raise OSError(errno.EIO, "the Dask scheduler was lost: start it and run again") from error
    except (BrokenExecutor, getattr(pool, "killed", BrokenExecutor)) as error:
        message = "a worker process was killed, most likely because memory ran out: free some and run again"
        raise OSError(errno.EIO, message) from error
    finally:
        for future in pending:
            future.cancel()
