"""Work on a Dask cluster whose machines see this folder and the state root under the same paths.

Text does not travel: a task names a block of a file, which its worker reads, and the worker writes the result to a file
in `<state root>/blocks`, which this process reads and deletes. The scheduler carries names and checksums only. Dask
computes the block of a lost worker again.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.metadata
import os
import pickle
import shutil
import tempfile
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nmt.config import InputError
from pipeline.common import stage
from pipeline.machine import available_cores

LIBRARIES = ("numpy", "pyarrow", "sacremoses", "sentencepiece", "subword-nmt")
"""Libraries that decide the bytes of a block."""
CONNECT = "30s"
"""Time for the scheduler to answer."""
LOOPBACK = "127.0.0.1"
CODE = Path(__file__).resolve().parents[2]
Written = tuple[Path, str]
"""A file in the folder of blocks, and the sha256 of its content."""


class DaskExecutor(Executor):
    """Submits tasks to a Dask cluster: `address` is its scheduler's, or None for a cluster on this machine's cores."""

    def __init__(self, address: str | None) -> None:
        """Raises InputError if Dask is not installed, OSError if no scheduler answers."""
        try:
            import distributed
        except ImportError as error:
            raise InputError("WMT_EXECUTOR names Dask, which is not here: run `pip install -e '.[dask]'`") from error
        self._cluster = None
        if address is None:
            self._cluster = distributed.LocalCluster(
                n_workers=available_cores(),
                threads_per_worker=1,
                host=LOOPBACK,
                # Otherwise Dask's pages listen on all addresses.
                dashboard_address=f"{LOOPBACK}:0",
                worker_dashboard_address=f"{LOOPBACK}:0",
            )
        try:
            self._client = distributed.Client(self._cluster or address, timeout=CONNECT, set_as_default=False)
        except OSError as error:
            message = "no Dask scheduler answers: start it, correct WMT_EXECUTOR, or unset it"
            raise OSError(errno.EAGAIN, message, address) from error
        self._tasks = self._client.get_executor(pure=False)
        self._folder, self._lock = _make_folder(stage.state_root().absolute() / "blocks")
        self._function: tuple[object, Written] | None = None

    @property
    def ahead(self) -> int:
        """The number of tasks that keep all workers busy."""
        cores: dict[str, int] = self._client.nthreads()
        return 2 * max(2, sum(cores.values()))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **_: Any) -> Future[Any]:
        """Submit `fn(item)`."""
        (item,) = args
        if self._function is None or self._function[0] is not fn:
            # Once for all blocks: it may hold the digests of thousands of sentences.
            self._function = fn, _write(self._folder, fn)
        # As bytes: Dask's scheduler unpickles what it passes on, and a block would be read there.
        pickled = pickle.dumps(item, protocol=5)
        return _BlockFuture(self._tasks.submit(run_block, environment(), self._function[1], pickled))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Disconnect; end the cluster if it is this process' own."""
        self._tasks.shutdown(wait=wait and not cancel_futures)
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._lock.release()


def _make_folder(blocks: Path) -> tuple[Path, FileLock]:
    """Make a folder of this stage in `blocks`, and remove those of killed stages; return it with its held lock.

    Names and process ids do not tell who lives: containers share the name of their machine, but not its ids.
    """
    blocks.mkdir(parents=True, exist_ok=True)
    # A folder that is not locked yet must not look like one that was left.
    with FileLock(blocks.with_suffix(".lock"), fallback_to_soft=False):
        folder = Path(tempfile.mkdtemp(prefix=f"{os.uname().nodename}.{os.getpid()}.", dir=blocks))
        lock = FileLock(folder / "lock", fallback_to_soft=False)
        lock.acquire()
        for left in blocks.iterdir():
            with suppress(Timeout, FileNotFoundError), FileLock(left / "lock", blocking=False, fallback_to_soft=False):
                shutil.rmtree(left, ignore_errors=True)
    return folder, lock


class _BlockFuture(Future[Any]):
    """The result of a task, read from its file."""

    def __init__(self, task: Future[Written]) -> None:
        super().__init__()
        self._task = task

    def result(self, timeout: float | None = None) -> Any:
        from distributed import KilledWorker

        try:
            path, digest = self._task.result(timeout)
        except KilledWorker as error:
            message = "each Dask worker that took a block was killed, most likely because memory ran out: free some"
            raise OSError(errno.EIO, f"{message} and run again") from error
        except CancelledError as error:
            raise OSError(errno.EIO, "the Dask scheduler was lost: start it and run again") from error
        result = _read(path, digest)
        path.unlink()
        return result

    def cancel(self) -> bool:
        return self._task.cancel()


def run_block(expected: str, function: Written, pickled: bytes) -> Written:
    """Write the result of a function for a pickled block beside the function's own file. Runs in a worker.

    Raises InputError if the worker has other code, or other versions of libraries, than the stage, or does not see its
    files.
    """
    if environment() != expected:
        raise InputError(
            f"the Dask worker on {os.uname().nodename} has other code or libraries than this machine: check out the "
            "same commit and install the locked versions there, then start the worker again"
        )
    try:
        work = _function(*function)
        item = pickle.loads(pickled)  # noqa: S301 - it came from the stage, over Dask's own connection
    except FileNotFoundError as error:
        raise InputError(
            f"the Dask worker on {os.uname().nodename} does not see {error.filename}: it must see this folder and the "
            "state root under the paths that they have here"
        ) from error
    return _write(function[0].parent, work(item))


@lru_cache(maxsize=2)
def _function(path: Path, digest: str) -> Callable[[object], object]:
    function: Callable[[object], object] = _read(path, digest)
    return function


@lru_cache(maxsize=1)
def environment() -> str:
    """Return the hash of the code, and of the libraries that decide a block's bytes, in this process."""
    digest = hashlib.sha256()
    for package in ("nmt", "pipeline"):
        for path in sorted((CODE / package).rglob("*.py")):
            digest.update(path.relative_to(CODE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    for library in LIBRARIES:
        digest.update(f"{library} {importlib.metadata.version(library)}\n".encode())
    return digest.hexdigest()


def _write(folder: Path, content: object) -> Written:
    pickled = pickle.dumps(content, protocol=5)
    path = folder / uuid.uuid4().hex
    # Not flushed to disk: after a power failure the stage starts again.
    path.with_suffix(".tmp").write_bytes(pickled)
    path.with_suffix(".tmp").rename(path)
    return path, hashlib.sha256(pickled).hexdigest()


def _read(path: Path, digest: str) -> Any:
    pickled = path.read_bytes()
    if hashlib.sha256(pickled).hexdigest() != digest:
        raise OSError(errno.EIO, "a block differs from what its worker wrote: run again", str(path))
    return pickle.loads(pickled)  # noqa: S301 - its hash came from the worker, over Dask's own connection
