"""Parallel work with an Executor: a pool of processes here, or a Dask cluster (`WMT_EXECUTOR`)."""

import multiprocessing
import os
import pickle
import re
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from nmt.common.processes import die_with_parent
from nmt.errors import InputError
from pipeline.config.machine import available_cores

Item = TypeVar("Item")
Result = TypeVar("Result")

_SMALL = 16 * 2**20  # bytes of text below which starting processes takes longer than they save
CONNECT = "30s"  # time for Dask's scheduler to answer


def _start_worker(main: int) -> None:
    """Leave Ctrl-C to the main process, and end when it ends: if killed, it cannot stop its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(ancestor=main)


def executor(size: int) -> Executor:
    """Return an executor for `size` bytes of text: one process per core.

    Short texts, and a machine with one core, get one thread of this process.
    `$WMT_EXECUTOR` chooses Dask instead of processes. Raises InputError for other values, OSError if Dask is away.
    """
    chosen = os.environ.get("WMT_EXECUTOR", "")
    if not re.fullmatch(r"(dask://[^\s/:]+:\d+)?", chosen):
        raise InputError(f"WMT_EXECUTOR is {chosen!r}: it must be dask://HOST:PORT; unset it for processes")
    if size < _SMALL or (not chosen and available_cores() == 1):
        return ThreadPoolExecutor(1)
    if chosen:
        return DaskExecutor(chosen.replace("dask", "tcp", 1))
    # Spawned, not forked: a fork of a process that has threads (Arrow's, tqdm's) can hang.
    return ProcessPoolExecutor(available_cores(), multiprocessing.get_context("spawn"), _start_worker, (os.getpid(),))


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
        raise OSError("the Dask scheduler was lost: start it and run again") from error
    except (BrokenExecutor, getattr(pool, "killed", BrokenExecutor)) as error:
        message = "a worker process was killed, most likely because memory ran out: free some and run again"
        raise OSError(message) from error
    finally:
        for future in pending:
            future.cancel()


class DaskExecutor(Executor):
    """Submits tasks to a Dask cluster whose machines see this folder under the same path."""

    def __init__(self, address: str) -> None:
        """Raises InputError if Dask is not installed, OSError if no scheduler answers."""
        try:
            import distributed  # It takes half a second.
        except ImportError as error:
            raise InputError("WMT_EXECUTOR names Dask, which is not here: run `pip install -e '.[dask]'`") from error
        try:
            self._client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
        except OSError as error:
            message = f"no Dask scheduler answers at {address}: start it, correct WMT_EXECUTOR, or unset it"
            raise OSError(message) from error
        self._tasks = self._client.get_executor(pure=False)
        self.killed = distributed.KilledWorker  # what a task raises whose workers were killed again and again

    @property
    def ahead(self) -> int:
        """The number of tasks that keep all workers busy."""
        cores: dict[str, int] = self._client.nthreads()
        return 2 * max(2, sum(cores.values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        # As bytes: the scheduler unpickles what it passes on, and a block would be read there.
        task: Future[Any] = self._tasks.submit(_run, pickle.dumps(partial(fn, *args, **kwargs)))
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._tasks.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def _run(task: bytes) -> Any:
    return pickle.loads(task)()  # noqa: S301 - it came from the stage, over Dask's own connection
