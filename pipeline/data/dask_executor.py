"""Work on a Dask cluster whose machines see this folder under the same path: a task names a block of a file."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

from nmt.config import InputError
from pipeline.config.machine import available_cores

CONNECT = "30s"
"""Time for the scheduler to answer."""
LOOPBACK = "127.0.0.1"


class DaskExecutor(Executor):
    """Submits tasks to a Dask cluster: `address` is its scheduler's, or None for a cluster on this machine's cores."""

    def __init__(self, address: str | None) -> None:
        """Raises InputError if Dask is not installed, OSError if no scheduler answers."""
        try:
            import distributed
        except ImportError as error:
            raise InputError("WMT_EXECUTOR names Dask, which is not here: run `pip install -e '.[dask]'`") from error
        # Of a cluster of its own. Without the addresses Dask's pages listen on all.
        own = {"n_workers": available_cores(), "threads_per_worker": 1, "host": LOOPBACK}
        own |= {"dashboard_address": f"{LOOPBACK}:0", "worker_dashboard_address": f"{LOOPBACK}:0"}
        try:
            self._client = distributed.Client(
                address, timeout=CONNECT, set_as_default=False, **({} if address else own)
            )
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
        """Disconnect; end the cluster if it is this process' own."""
        self._tasks.shutdown(wait=wait and not cancel_futures)
        self._client.close()


def _run(task: bytes) -> Any:
    function, args, kwargs = pickle.loads(task)  # noqa: S301 - it came from the stage, over Dask's own connection
    return function(*args, **kwargs)
