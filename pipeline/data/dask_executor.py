"""Work on a Dask cluster whose machines see this folder under the same path: a task names a block of a file."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from nmt.config import InputError

CONNECT = "30s"
"""Time for the scheduler to answer."""


class DaskExecutor(Executor):
    """Submits tasks to the Dask cluster whose scheduler is at `address`."""

    def __init__(self, address: str) -> None:
        """Raises InputError if Dask is not installed, OSError if no scheduler answers."""
        try:
            import distributed
        except ImportError as error:
            raise InputError("WMT_EXECUTOR names Dask, which is not here: run `pip install -e '.[dask]'`") from error
        try:
            self._client = distributed.Client(address, timeout=CONNECT, set_as_default=False)
        except OSError as error:
            message = "no Dask scheduler answers: start it, correct WMT_EXECUTOR, or unset it"
            raise OSError(errno.EAGAIN, message, address) from error
        self._tasks = self._client.get_executor(pure=False)
        self.killed = distributed.KilledWorker
        """What a task raises whose workers were killed again and again."""

    @property
    def ahead(self) -> int:
        """The number of tasks that keep all workers busy."""
        cores: dict[str, int] = self._client.nthreads()
        return 2 * max(2, sum(cores.values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit `fn(*args, **kwargs)`."""
        # As bytes: the scheduler unpickles what it passes on, and a block would be read there.
        task: Future[Any] = self._tasks.submit(_run, pickle.dumps((fn, args, kwargs)))
        return task

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect."""
        self._tasks.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def _run(task: bytes) -> Any:
    function, args, kwargs = pickle.loads(task)  # noqa: S301 - it came from the stage, over Dask's own connection
    return function(*args, **kwargs)
