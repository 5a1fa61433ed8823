"""Get archives, complete and verified, from a cache under the state root or from the network."""

from __future__ import annotations

import errno
import hashlib
from multiprocessing.pool import ThreadPool
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock, Timeout
from rich import progress
from rich.console import Console

from nmt.config import InputError
from pipeline.config.settings import ArchiveSettings
from pipeline.data.archives import is_archive
from pipeline.data.fetch import FetchError, Moved, Report, fetch

PARALLEL = 4  # archives fetched at the same time


def _problem(archive: ArchiveSettings, path: Path) -> str | None:
    """Return how a file differs from the catalog; None if it does not."""
    for check, expected in (("bytes", archive.bytes), ("sha256", archive.sha256), ("md5", archive.md5)):
        if expected is None:
            continue
        with path.open("rb") as file:
            found = path.stat().st_size if check == "bytes" else hashlib.file_digest(file, check).hexdigest()
        if found != expected:
            return f"has the {check} {found}, not {expected} as in the catalog"
    # Without a checksum it could be a hotel's login page.
    return None if archive.sha256 or archive.md5 or is_archive(path) else "is neither .tgz nor .tar nor .zip"


def _obtain_from(url: str, archive: ArchiveSettings, whole: Path, moved: Moved, report: Report) -> Path:
    """Return the verified archive from an address, cached as `whole`; raise FetchError where it does not provide it."""
    if url.startswith("file:"):
        path = Path(urlsplit(url).path)
        if problem := _problem(archive, path) if path.is_file() else "is missing":
            raise FetchError(problem)
        return path
    known = "size unknown" if archive.bytes is None else f"{archive.bytes:,} bytes"
    report(f"{archive.name}: {known} from {url}; licence: {archive.licence}; described at {archive.source}")
    part = whole.with_name(f"{whole.name}.part")
    for _ in range(2):  # Bytes of several connections may not fit together, so a wrong file is fetched once more.
        fetch(url, part, archive.bytes, moved, report)
        problem = _problem(archive, part)
        if problem is None:
            return part.replace(whole)
        part.unlink()
    raise FetchError(str(problem))


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

            return archive.name, _obtain(archive, folder, moved, report)

        # Its threads are daemons: a silent server must not delay the exit of an interrupted stage, as the threads of
        # concurrent.futures would. The first failure ends all.
        with ThreadPool(PARALLEL) as pool:
            found = dict(pool.imap_unordered(one, archives))
        return {archive.name: found[archive.name] for archive in archives}


def _obtain(archive: ArchiveSettings, folder: Path, moved: Moved, report: Report) -> Path:
    """Return one archive from the cache or the first address that provides it; raise as `obtain` does."""
    # Without a checksum the address is the key: another address may have another file.
    whole = folder / (archive.sha256 or f"url-{hashlib.sha256(archive.urls[0].encode()).hexdigest()}")
    lock = FileLock(f"{whole}.lock")  # Parallel runs, as in DVC's queue, share the state root.
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        report(f"{archive.name}: another run is fetching it; waiting")
        held = lock.acquire(poll_interval=0.5)
    failures: list[str] = []
    transient = False
    with held:
        if whole.exists():
            if (problem := _problem(archive, whole)) is None:
                return whole
            report(f"{archive.name}: {whole} {problem}; fetching it again")
        for url in archive.urls:
            try:
                return _obtain_from(url, archive, whole, moved, report)
            except FetchError as error:
                failures.append(f"{url} {error}")
                transient = transient or error.transient
    message = f"the archive {archive.name} could not be downloaded: {'; '.join(failures)}; run again to continue"
    raise ConnectionError(errno.EAGAIN, message) if transient else InputError(message)
