"""Archives, whole and verified, from a cache under the state root or, where they are not there yet, from the network.

What the catalog has no checksum of is held to its first download, which is recorded.
"""

from __future__ import annotations

import fcntl
import hashlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nmt.common.files import sha256_of
from nmt.config import InputError
from pipeline import stage
from pipeline.config.settings import REPACKED, ArchiveSettings
from pipeline.corpora.archives import is_archive
from pipeline.corpora.fetch import FetchError, Order, Patience, Stopped, Watch, check_room, fetch, forget

AT_ONCE = 4
"""Archives fetched at the same time."""


@dataclass(frozen=True)
class Shelf:
    """Where one archive is kept, and what it is held to."""

    whole: Path
    part: Path
    lock: Path
    record: Path
    """The sha256 and bytes of the first download, where the catalog has none."""

    @staticmethod
    def of(archive: ArchiveSettings, root: Path) -> Shelf:
        """Archives with a checksum are told apart by it, the others by their address: a new one is another file."""
        key = archive.sha256 or "url-" + hashlib.sha256(archive.urls[0].encode()).hexdigest()
        folder = root / "downloads"
        return Shelf(folder / key, folder / f"{key}.part", folder / f"{key}.lock", root / "checksums" / f"{key}.json")


def obtain(archives: list[ArchiveSettings], root: Path, patience: Patience) -> dict[str, Path]:
    """Every archive by name, verified; those that are not under `root` yet are fetched, several at a time.

    Raises InputError where one cannot be had or is not what the catalog says, ConnectionError where a later attempt may
    have it. Whatever ends it, what was fetched is gone on from in the next call.
    """
    (root / "downloads").mkdir(parents=True, exist_ok=True)
    missing = sum(left(archive, Shelf.of(archive, root)) for archive in archives)
    if missing:
        check_room(root / "downloads", missing)
    stop = threading.Event()
    with _display() as display:

        def one(archive: ArchiveSettings) -> Path:
            moved = display.moved(archive.name)
            return _obtain(archive, Shelf.of(archive, root), Watch(stop, moved, display.tell), patience)

        return dict(zip([archive.name for archive in archives], _all(one, archives, stop), strict=True))


def left(archive: ArchiveSettings, shelf: Shelf) -> int:
    """The bytes still to fetch, as far as they are declared."""
    if archive.bytes is None or shelf.whole.exists() or archive.urls[0].startswith("file:"):
        return 0
    return max(0, archive.bytes - (shelf.part.stat().st_size if shelf.part.exists() else 0))


def _all(work: Callable[[ArchiveSettings], Path], archives: list[ArchiveSettings], stop: threading.Event) -> list[Path]:
    """`work` on every archive, AT_ONCE at a time, in daemon threads; the first failure ends all.

    An executor's threads would be waited for when the process ends, so that a silent server could hold up an
    interrupted stage for a minute. These end with it, and every partial file is one to go on from.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Path | Exception]] = queue.SimpleQueue()
    for index in range(len(archives)):
        todo.put(index)

    def worker() -> None:
        while not stop.is_set():
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, work(archives[index])))
            except Exception as error:  # The main thread raises it again.
                done.put((index, error))

    found: dict[int, Path] = {}
    try:
        for _ in range(min(AT_ONCE, len(archives))):
            threading.Thread(target=worker, daemon=True).start()
        while len(found) < len(archives):
            index, outcome = done.get()
            if isinstance(outcome, Exception):
                raise outcome
            found[index] = outcome
    finally:
        stop.set()
    return [found[index] for index in range(len(archives))]


def _obtain(archive: ArchiveSettings, shelf: Shelf, watch: Watch, patience: Patience) -> Path:
    """One archive: from the repository, the cache, or the first address that gives it.

    Raises ConnectionError where one that gave none may do so later, InputError where none will.
    """
    places = [_place(url, archive, shelf) for url in archive.urls]
    with _locked(shelf.lock, watch, archive.name):
        for kept in {place.shelf.whole: place for place in places}.values():
            if kept.shelf.whole.exists():
                problem = _problem(kept.shelf.whole, kept.archive, kept.shelf)
                if problem is None:
                    return kept.shelf.whole
                watch.tell(f"{archive.name}: {kept.shelf.whole} {problem}; fetching it again")
                kept.shelf.whole.unlink()
        failures, passing = [], False
        for place in places:
            failure: str | None
            if place.url.startswith("file:"):
                failure = _local_problem(place.url, archive, shelf)
                if failure is None:
                    return _local(place.url)
            else:
                try:
                    failure = _fetch(place.url, place.archive, place.shelf, watch, patience)
                except FetchError as error:
                    failure, passing = str(error), passing or error.passing
                if failure is None:
                    return place.shelf.whole
            failures.append(f"{place.url} {failure}")
    message = f"the archive {archive.name} cannot be had: {'; '.join(failures)}; run again to go on"
    raise ConnectionError(message) if passing else InputError(message)


@dataclass(frozen=True)
class _Place:
    """Where an archive may come from, and what it is held to if it comes from there."""

    url: str
    archive: ArchiveSettings
    shelf: Shelf


def _place(url: str, archive: ArchiveSettings, shelf: Shelf) -> _Place:
    """The original's bytes; or, marked as `REPACKED`, other bytes with the same members, of which nothing is known."""
    if not url.startswith(REPACKED):
        return _Place(url, archive, shelf)
    url = url.removeprefix(REPACKED)
    other = archive.model_copy(update={"urls": [url], "bytes": None, "sha256": None, "md5": None})
    return _Place(url, other, Shelf.of(other, shelf.whole.parents[1]))


@contextmanager
def _locked(path: Path, watch: Watch, name: str) -> Iterator[None]:
    """Hold an archive's lock: runs side by side, as in DVC's queue, share the state root."""
    with path.open("w") as file:
        told = False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    watch.tell(f"{name}: another run is fetching it; waiting")
                told = True
            if watch.stop.wait(0.5):
                raise Stopped
        yield


def _local(url: str) -> Path:
    return Path(urlsplit(url).path)


def _local_problem(url: str, archive: ArchiveSettings, shelf: Shelf) -> str | None:
    """Why an archive of this machine cannot be used; null: it can, where it lies."""
    return _problem(_local(url), archive, shelf) if _local(url).is_file() else "is missing"


def _fetch(url: str, archive: ArchiveSettings, shelf: Shelf, watch: Watch, patience: Patience) -> str | None:
    """Bring the archive whole onto its shelf; else what is wrong with the bytes that came. Raises FetchError."""
    size = "size unknown" if archive.bytes is None else f"{archive.bytes:,} bytes"
    watch.tell(f"{archive.name}: {size} from {url}; licence: {archive.licence}; described at {archive.source}")
    problem: str | None = None
    # Bytes that were joined from several connections, or turned on the way, get one more chance from the first.
    for _ in range(2):
        expected, sha256, _ = _held_to(archive, shelf)
        verifiable = (sha256 or archive.md5) is not None
        fetch(Order(url, shelf.part, expected, verifiable, _remedy(archive, shelf)), watch, patience)
        problem = _problem(shelf.part, archive, shelf)
        if problem is None:
            shelf.part.replace(shelf.whole)
            forget(shelf.part)
            return None
        forget(shelf.part)
    return problem


def _held_to(archive: ArchiveSettings, shelf: Shelf) -> tuple[int | None, str | None, str]:
    """The bytes and the sha256 that an archive must have, where they are known, and who says so."""
    if archive.sha256 is None and shelf.record.exists():
        record = stage.read_json(shelf.record)
        return int(record["bytes"]), str(record["sha256"]), f"its first download had, as {shelf.record} says,"
    return archive.bytes, archive.sha256, "the catalog says"


def known_sha256(archive: ArchiveSettings, root: Path) -> str | None:
    """The catalog's sha256 of an archive, else that of its first download under `root`; None before there was one."""
    places = [_place(url, archive, Shelf.of(archive, root)) for url in archive.urls]
    return next((sha256 for place in places if (sha256 := _held_to(place.archive, place.shelf)[1])), None)


def _remedy(archive: ArchiveSettings, shelf: Shelf) -> str:
    """What ends an error about bytes that are not the first download's: only people can tell which are right."""
    recorded = archive.sha256 is None and shelf.record.exists()
    return f": if the new one is right, remove {shelf.record}" if recorded else ""


def _problem(path: Path, archive: ArchiveSettings, shelf: Shelf) -> str | None:
    """What about a whole file is not as the catalog, or its first download, says; null: nothing.

    The first download of an archive without a sha256 is recorded here.
    """
    size, sha256, held = _held_to(archive, shelf)
    found = path.stat().st_size
    if size is not None and found != size:
        return f"has {found:,} bytes where {held} {size:,}{_remedy(archive, shelf)}"
    if archive.md5 is not None:
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 != archive.md5:
            return f"has the md5 {md5} where the catalog says {archive.md5}"
    digest = sha256_of(path)
    if sha256 is not None:
        return None if digest == sha256 else f"has the sha256 {digest} where {held} {sha256}{_remedy(archive, shelf)}"
    if archive.md5 is None and not is_archive(path):
        # A hotel's login page must not become what later downloads are held to.
        return "is neither .tgz nor .tar nor .zip"
    stage.write_json(shelf.record, {"url": archive.urls[0], "bytes": found, "sha256": digest})
    return None


class _Log:
    """Says what happens on stderr, one line each."""

    def moved(self, _name: str, /) -> Callable[[int, int | None], None]:
        """Who is told how far an archive has come: nobody, because logs are read later."""
        return lambda *_: None

    def tell(self, message: str) -> None:
        # In one piece: several threads speak.
        sys.stderr.write(f"download: {message}\n")


class _Bars(_Log):
    """One bar an archive, with rate and time left, under what is said."""

    def __init__(self, progress: Any) -> None:
        self._progress = progress

    def moved(self, name: str, /) -> Callable[[int, int | None], None]:
        task = None

        def show(position: int, total: int | None) -> None:
            nonlocal task
            if task is None:
                task = self._progress.add_task(name, total=total, completed=position)
            self._progress.update(task, completed=position, total=total)

        return show

    def tell(self, message: str) -> None:
        self._progress.console.print(f"download: {message}", markup=False, highlight=False)


@contextmanager
def _display() -> Iterator[_Log]:
    """Bars on a terminal, lines in a log."""
    if not sys.stderr.isatty():
        yield _Log()
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bars:
        yield _Bars(bars)
