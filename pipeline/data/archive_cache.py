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

from nmt.common.files import sha256_of, write_json
from nmt.config import InputError
from pipeline.config.paths import read_json
from pipeline.config.settings import REPACKED, ArchiveSettings
from pipeline.data.archives import is_archive
from pipeline.data.fetch import FetchError, Moved, Report, fetch

PARALLEL = 4  # archives fetched at the same time


class Packing:
    """One packing of an archive: its addresses, where its bytes are cached, and what they must match."""

    def __init__(self, archive: ArchiveSettings, root: Path) -> None:
        self.archive = archive
        # Without a checksum the address is the key: another address may have another file.
        key = archive.sha256 or "url-" + hashlib.sha256(archive.urls[0].encode()).hexdigest()
        self.whole = root / "downloads" / key
        self.part = self.whole.with_name(f"{key}.part")
        self.lock = self.whole.with_name(f"{key}.lock")
        self.size, self.sha256, self.origin = archive.bytes, archive.sha256, "the catalog"
        # The sha256 and bytes of the first download, where the catalog has none.
        self.record = root / "checksums" / f"{key}.json"
        if archive.sha256 is None and self.record.exists():
            first = read_json(self.record, "bytes", "sha256")
            self.size, self.sha256 = first["bytes"], first["sha256"]
            self.origin = f"{self.record}, of its first download: if the new one is right, remove that file"

    def problem(self, path: Path) -> str | None:
        """Return how a file differs from the catalog or the first download, which is recorded here; None if equal."""
        found = {"bytes": path.stat().st_size, "sha256": sha256_of(path)}
        expected = {"bytes": self.size, "sha256": self.sha256, "md5": self.archive.md5}
        with path.open("rb") as file:
            md5 = {"md5": hashlib.file_digest(file, "md5").hexdigest()} if self.archive.md5 else {}
        for check, value in (found | md5).items():
            if expected[check] not in (None, value):
                return f"has the {check} {value}, not {expected[check]} as in {self.origin}"
        if self.sha256 is None:
            # Without this check a hotel's login page could be recorded as the first download.
            if not (md5 or is_archive(path)):
                return "is neither .tgz nor .tar nor .zip"
            write_json(self.record, {"url": self.archive.urls[0], **found})
        return None

    def obtain(self, url: str, moved: Moved, report: Report) -> Path:
        """Return the verified archive from one address; raise FetchError where it does not provide it."""
        if url.startswith("file:"):
            path = Path(urlsplit(url).path)
            if problem := self.problem(path) if path.is_file() else "is missing":
                raise FetchError(problem)
            return path
        archive, size = self.archive, "size unknown" if self.size is None else f"{self.size:,} bytes"
        report(f"{archive.name}: {size} from {url}; licence: {archive.licence}; described at {archive.source}")
        for _ in range(2):  # Bytes of several connections may not fit together, so a wrong file is fetched once more.
            fetch(url, self.part, self.size, moved, report)
            problem = self.problem(self.part)
            if problem is None:
                return self.part.replace(self.whole)
            self.part.unlink()
        raise FetchError(str(problem))


def packings(archive: ArchiveSettings, root: Path) -> list[Packing]:
    """Return the archive as the catalog describes it, and each that has the same members but other bytes."""
    urls = [url for url in archive.urls if not url.startswith(REPACKED)]
    others = [url.removeprefix(REPACKED) for url in archive.urls if url.startswith(REPACKED)]
    unchecked = {"bytes": None, "sha256": None, "md5": None}
    return [
        Packing(archive.model_copy(update={"urls": urls}), root),
        *(Packing(archive.model_copy(update={"urls": [url], **unchecked}), root) for url in others),
    ]


def obtain(archives: list[ArchiveSettings], root: Path) -> dict[str, Path]:
    """Return every archive by name, verified; archives that are not under `root` yet are fetched in parallel.

    Raises InputError where one is unavailable or differs from the catalog, ConnectionError where a later attempt may
    succeed. After any error or interruption the next call resumes from the partial files.
    """
    (root / "downloads").mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    columns = (*progress.Progress.get_default_columns(), progress.DownloadColumn(), progress.TransferSpeedColumn())
    with progress.Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def report(message: str) -> None:
            console.print(f"download: {message}", markup=False, highlight=False, soft_wrap=True)

        def one(archive: ArchiveSettings) -> tuple[str, Path]:
            task = bars.add_task(archive.name, total=archive.bytes, visible=False)

            def moved(position: int, total: int | None) -> None:
                bars.update(task, completed=position, total=total, visible=True)

            return archive.name, _obtain(packings(archive, root), moved, report)

        # Its threads are daemons: a silent server must not delay the exit of an interrupted stage, as the threads of
        # concurrent.futures would. The first failure ends all.
        with ThreadPool(PARALLEL) as pool:
            found = dict(pool.imap_unordered(one, archives))
        return {archive.name: found[archive.name] for archive in archives}


def _obtain(candidates: list[Packing], moved: Moved, report: Report) -> Path:
    """Return one archive from the cache or the first address that provides it; raise as `obtain` does."""
    name = candidates[0].archive.name
    lock = FileLock(candidates[0].lock)  # Parallel runs, as in DVC's queue, share the state root.
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        report(f"{name}: another run is fetching it; waiting")
        held = lock.acquire(poll_interval=0.5)
    failures: list[str] = []
    transient = False
    with held:
        for packing in candidates:
            if packing.whole.exists():
                problem = packing.problem(packing.whole)
                if problem is None:
                    return packing.whole
                report(f"{name}: {packing.whole} {problem}; fetching it again")
                packing.whole.unlink()
        for packing in candidates:
            for url in packing.archive.urls:
                try:
                    return packing.obtain(url, moved, report)
                except FetchError as error:
                    failures.append(f"{url} {error}")
                    transient = transient or error.transient
    message = f"the archive {name} could not be downloaded: {'; '.join(failures)}; run again to continue"
    raise ConnectionError(errno.EAGAIN, message) if transient else InputError(message)
