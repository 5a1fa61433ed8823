"""Get archives, complete and verified, from a cache under the state root or from the network."""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich import progress
from rich.console import Console

from nmt.common.files import sha256_of
from nmt.config import InputError
from pipeline.common import stage
from pipeline.common.settings import REPACKED, ArchiveSettings
from pipeline.corpora.archives import is_archive
from pipeline.corpora.fetch import Download, FetchError, Patience, Stopped, Watch, check_room, fetch, forget

PARALLEL = 4  # archives fetched at the same time


class Source:
    """One address of an archive: where its bytes are cached, and what they must match."""

    def __init__(self, archive: ArchiveSettings, url: str, root: Path) -> None:
        if url.startswith(REPACKED):
            # Other bytes with the same members: the catalog's checks do not hold for them.
            url = url.removeprefix(REPACKED)
            archive = archive.model_copy(update={"urls": [url], "bytes": None, "sha256": None, "md5": None})
        self.archive, self.url = archive, url
        # Without a checksum the address is the key: another address may have another file.
        key = archive.sha256 or "url-" + hashlib.sha256(archive.urls[0].encode()).hexdigest()
        self.whole = root / "downloads" / key
        self.part = self.whole.with_name(f"{key}.part")
        self.lock = self.whole.with_name(f"{key}.lock")
        # The sha256 and bytes of the first download, where the catalog has none.
        self.record = root / "checksums" / f"{key}.json"

    def expected(self) -> tuple[int | None, str | None, str, str]:
        """Return the bytes and sha256 that the archive must have, where known, who says so, and what a user can do."""
        if self.archive.sha256 is None and self.record.exists():
            record = stage.read_json(self.record)
            origin = f"its first download had, as {self.record} says,"
            return (
                int(record["bytes"]),
                str(record["sha256"]),
                origin,
                f": if the new one is right, remove {self.record}",
            )
        return self.archive.bytes, self.archive.sha256, "the catalog says", ""

    def problem(self, path: Path) -> str | None:
        """Return how a file differs from the catalog or the first download, which is recorded here; None if equal."""
        size, sha256, origin, remedy = self.expected()
        found = path.stat().st_size
        if size is not None and found != size:
            return f"has {found:,} bytes where {origin} {size:,}{remedy}"
        if self.archive.md5 is not None:
            with path.open("rb") as file:
                md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if md5 != self.archive.md5:
                return f"has the md5 {md5} where the catalog says {self.archive.md5}"
        digest = sha256_of(path)
        if sha256 is not None:
            return None if digest == sha256 else f"has the sha256 {digest} where {origin} {sha256}{remedy}"
        if self.archive.md5 is None and not is_archive(path):
            # Without this check a hotel's login page could be recorded as the first download.
            return "is neither .tgz nor .tar nor .zip"
        stage.write_json(self.record, {"url": self.archive.urls[0], "bytes": found, "sha256": digest})
        return None

    def obtain(self, watch: Watch, patience: Patience) -> Path:
        """Return the verified archive from this address; raise FetchError where it does not provide it."""
        archive = self.archive
        if self.url.startswith("file:"):
            path = Path(urlsplit(self.url).path)
            if problem := self.problem(path) if path.is_file() else "is missing":
                raise FetchError(problem)
            return path
        size = "size unknown" if archive.bytes is None else f"{archive.bytes:,} bytes"
        watch.report(
            f"{archive.name}: {size} from {self.url}; licence: {archive.licence}; described at {archive.source}"
        )
        # Bytes may be joined from several connections or damaged in transit, so a wrong file is fetched once more.
        for _ in range(2):
            expected, sha256, _, remedy = self.expected()
            fetch(Download(self.url, self.part, expected, bool(sha256 or archive.md5), remedy), watch, patience)
            problem = self.problem(self.part)
            if problem is None:
                self.part.replace(self.whole)
            forget(self.part)
            if problem is None:
                return self.whole
        raise FetchError(str(problem))


def obtain(archives: list[ArchiveSettings], root: Path, patience: Patience) -> dict[str, Path]:
    """Return every archive by name, verified; archives that are not under `root` yet are fetched in parallel.

    Raises InputError where one is unavailable or differs from the catalog, ConnectionError where a later attempt may
    succeed. After any error or interruption the next call resumes from the partial files.
    """
    (root / "downloads").mkdir(parents=True, exist_ok=True)
    if missing := sum(missing_bytes(archive, root) for archive in archives):
        check_room(root / "downloads", missing)
    stop = threading.Event()
    console = Console(stderr=True)
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def report(message: str) -> None:
            console.print(f"download: {message}", markup=False, highlight=False, soft_wrap=True)

        def one(archive: ArchiveSettings) -> tuple[str, Path]:
            task = bars.add_task(archive.name, total=archive.bytes, visible=False)

            def moved(position: int, total: int | None) -> None:
                bars.update(task, completed=position, total=total, visible=True)

            sources = [Source(archive, url, root) for url in archive.urls]
            return archive.name, _obtain(sources, Watch(stop, moved, report), patience)

        # Its threads are daemons: a silent server must not delay the exit of an interrupted stage, as the threads of
        # concurrent.futures would. The first failure ends all.
        with ThreadPool(PARALLEL) as pool:
            try:
                found = dict(pool.imap_unordered(one, archives))
            finally:
                stop.set()
        return {archive.name: found[archive.name] for archive in archives}


def missing_bytes(archive: ArchiveSettings, root: Path) -> int:
    """Return the bytes still to fetch, as far as the catalog declares them."""
    source = Source(archive, archive.urls[0], root)
    if archive.bytes is None or source.whole.exists() or source.url.startswith("file:"):
        return 0
    return max(0, archive.bytes - (source.part.stat().st_size if source.part.exists() else 0))


def known_sha256(archive: ArchiveSettings, root: Path) -> str | None:
    """Return the catalog's sha256 of an archive, else that of its first download under `root`, if there was one."""
    known = (Source(archive, url, root).expected()[1] for url in archive.urls)
    return next((sha256 for sha256 in known if sha256), None)


def _obtain(sources: list[Source], watch: Watch, patience: Patience) -> Path:
    """Return one archive from the cache or the first address that provides it; raise as `obtain` does."""
    name = sources[0].archive.name
    with _locked(sources[0].lock, watch, name):
        for source in sources:
            if source.whole.exists():
                problem = source.problem(source.whole)
                if problem is None:
                    return source.whole
                watch.report(f"{name}: {source.whole} {problem}; fetching it again")
                source.whole.unlink()
        failures, transient = [], False
        for source in sources:
            try:
                return source.obtain(watch, patience)
            except FetchError as error:
                failures.append(f"{source.url} {error}")
                transient = transient or error.transient
    message = f"the archive {name} could not be downloaded: {'; '.join(failures)}; run again to continue"
    raise ConnectionError(errno.EAGAIN, message) if transient else InputError(message)


@contextmanager
def _locked(path: Path, watch: Watch, name: str) -> Iterator[None]:
    """Hold an archive's lock: parallel runs, as in DVC's queue, share the state root."""
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        watch.report(f"{name}: another run is fetching it; waiting")
        try:
            lock.acquire(poll_interval=0.5, cancel_check=watch.stop.is_set)
        except Timeout as error:
            raise Stopped from error
    try:
        yield
    finally:
        lock.release()
