"""Get archives, complete and verified, from a cache under the state root or from the network."""

from __future__ import annotations

import errno
import hashlib
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich import progress
from rich.console import Console

from nmt.config import InputError
from pipeline.config.settings import REPACKED, ArchiveSettings
from pipeline.data.archives import is_archive
from pipeline.data.fetch import FetchError, Moved, Report, fetch

PARALLEL = 4  # archives fetched at the same time


class Source(NamedTuple):
    """An address of an archive, where its bytes are cached, and what they must match."""

    url: str
    whole: Path
    checks: dict[str, Any]

    def problem(self, path: Path) -> str | None:
        """Return how a file differs from the catalog; None if it does not."""
        for check, expected in self.checks.items():
            with path.open("rb") as file:
                found = path.stat().st_size if check == "bytes" else hashlib.file_digest(file, check).hexdigest()
            if found != expected:
                return f"has the {check} {found}, not {expected} as in the catalog"
        # Without a checksum it could be a hotel's login page.
        known = self.checks.keys() & {"sha256", "md5"}
        return None if known or is_archive(path) else "is neither .tgz nor .tar nor .zip"

    def obtain(self, archive: ArchiveSettings, moved: Moved, report: Report) -> Path:
        """Return the verified archive from this address; raise FetchError where it does not provide it."""
        if self.url.startswith("file:"):
            path = Path(urlsplit(self.url).path)
            if problem := self.problem(path) if path.is_file() else "is missing":
                raise FetchError(problem)
            return path
        size: int | None = self.checks.get("bytes")
        known = "size unknown" if size is None else f"{size:,} bytes"
        report(f"{archive.name}: {known} from {self.url}; licence: {archive.licence}; described at {archive.source}")
        part = self.whole.with_name(f"{self.whole.name}.part")
        for _ in range(2):  # Bytes of several connections may not fit together, so a wrong file is fetched once more.
            fetch(self.url, part, size, moved, report)
            problem = self.problem(part)
            if problem is None:
                return part.replace(self.whole)
            part.unlink()
        raise FetchError(str(problem))


def sources(archive: ArchiveSettings, folder: Path) -> list[Source]:
    """Return the addresses of an archive: mirrors share the bytes and the checks, a repacked one has neither."""
    checks = {name: value for name in ("bytes", "sha256", "md5") if (value := getattr(archive, name)) is not None}
    found = []
    for url in archive.urls:
        repacked = url.startswith(REPACKED)
        # Without a checksum the address is the key: another address may have another file.
        address = hashlib.sha256((url.removeprefix(REPACKED) if repacked else archive.urls[0]).encode()).hexdigest()
        key = f"url-{address}" if repacked or archive.sha256 is None else archive.sha256
        found.append(Source(url.removeprefix(REPACKED), folder / key, {} if repacked else checks))
    return found


def obtain(archives: list[ArchiveSettings], root: Path) -> dict[str, Path]:
    """Return every archive by name, verified; archives that are not under `root` yet are fetched in parallel.

    Raises InputError where one is unavailable or differs from the catalog, ConnectionError where a later attempt may
    succeed. After any error or interruption the next call resumes from the partial files.
    """
    folder = root / "downloads"
    folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def report(message: str) -> None:
            console.print(f"download: {message}", markup=False, highlight=False, soft_wrap=True)

        def one(archive: ArchiveSettings) -> tuple[str, Path]:
            task = bars.add_task(archive.name, total=archive.bytes, visible=False)

            def moved(position: int, total: int | None) -> None:
                bars.update(task, completed=position, total=total, visible=True)

            return archive.name, _obtain(archive, sources(archive, folder), moved, report)

        # Its threads are daemons: a silent server must not delay the exit of an interrupted stage, as the threads of
        # concurrent.futures would. The first failure ends all.
        with ThreadPool(PARALLEL) as pool:
            found = dict(pool.imap_unordered(one, archives))
        return {archive.name: found[archive.name] for archive in archives}


def _obtain(archive: ArchiveSettings, candidates: list[Source], moved: Moved, report: Report) -> Path:
    """Return one archive from the cache or the first address that provides it; raise as `obtain` does."""
    lock = FileLock(f"{candidates[0].whole}.lock")  # Parallel runs, as in DVC's queue, share the state root.
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        report(f"{archive.name}: another run is fetching it; waiting")
        held = lock.acquire(poll_interval=0.5)
    failures: list[str] = []
    transient = False
    with held:
        for source in candidates:
            if source.whole.exists():
                if (problem := source.problem(source.whole)) is None:
                    return source.whole
                report(f"{archive.name}: {source.whole} {problem}; fetching it again")
                source.whole.unlink()
        for source in candidates:
            try:
                return source.obtain(archive, moved, report)
            except FetchError as error:
                failures.append(f"{source.url} {error}")
                transient = transient or error.transient
    message = f"the archive {archive.name} could not be downloaded: {'; '.join(failures)}; run again to continue"
    raise ConnectionError(errno.EAGAIN, message) if transient else InputError(message)
