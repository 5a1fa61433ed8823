"""Parallel work with an Executor: a pool of processes here, or the executor of a cluster."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_SMALL = 16 * 2**20  # bytes of text below which starting processes takes longer than they save


def workers() -> int:
    """Return the number of processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _start_worker() -> None:
    """Ignore interrupts, which the main process handles, and end with it, because a killed one stops no workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if main := multiprocessing.parent_process():
        threading.Thread(target=_end_after, args=(main.join,), daemon=True).start()


def _end_after(wait: Callable[[], None]) -> None:
    wait()
    os._exit(1)


def executor(size: int | None = None) -> Executor:
    """Return an executor for `size` bytes of text: one process per core, or one thread of this one for short texts."""
    if workers() == 1 or (size is not None and size < _SMALL):
        return ThreadPoolExecutor(1)
    # Spawned, not forked: a fork of a process that has threads (Arrow's, tqdm's) can hang.
    return ProcessPoolExecutor(workers(), multiprocessing.get_context("spawn"), _start_worker)


def ordered(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int | None = None
) -> Iterator[Result]:
    """Yield `function` of each item in the items' order; at most `ahead` items (2 per core) are in work at a time.

    So memory does not grow with the number of items. Raises what `function` raises, and OSError where a worker was
    killed.
    """
    ahead = 2 * workers() if ahead is None else ahead
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(function, item))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor as error:
        raise OSError("a worker process was killed, most likely for want of memory: free some and run again") from error
    finally:
        for future in pending:
            future.cancel()
