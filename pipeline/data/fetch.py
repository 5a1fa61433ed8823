"""Get archives, complete and verified, from a cache under the state root or from the network.

Partial files are resumed, and failures retried with growing pauses. Proxies come from the environment (`http_proxy`,
`https_proxy`, `no_proxy`).
"""

import hashlib
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.pool import ThreadPool
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from filelock import FileLock, Timeout
from rich import progress
from rich.console import Console

from nmt.common.files import size_of
from nmt.errors import InputError, tell
from pipeline.config.corpora import ArchiveSettings
from pipeline.data.archives import is_archive

PARALLEL = 4  # archives fetched at the same time
ATTEMPTS = 5  # consecutive failures without a new byte
BACKOFF = 1.0  # seconds before the second attempt, doubled before each further one
TIMEOUT = 60.0  # seconds without a byte before a connection counts as lost
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses after which a later attempt may succeed

Moved = Callable[..., None]  # called with the bytes so far as `completed`, and the `total`, if known


class FetchError(Exception):
    """This address does not provide the file."""


class TransientError(FetchError):
    """This address does not provide the file now; a later attempt may succeed."""


def fetch(url: str, part: Path, size: int | None, moved: Moved) -> None:
    """Complete the file `part` of `size` bytes, if known, after the bytes that it has.

    Raises FetchError where this address cannot provide it, OSError where the disk refuses.
    """
    failures = 0
    while (before := size_of(part)) != size:
        try:
            _attempt(url, part, size, moved)
            break
        except TransientError as error:
            failures = 0 if size_of(part) > before else failures + 1
            if failures >= ATTEMPTS:
                raise TransientError(f"{error}, {failures} times in a row") from error
            pause = BACKOFF * 2 ** max(0, failures - 1)
            tell(f"download: {url}: {error}; trying again in {pause:g} s")
            time.sleep(pause)
        except (httpx.InvalidURL, ValueError, ImportError) as error:  # A SOCKS proxy needs a package.
            raise FetchError(f"is not valid, or a proxy variable is not ({error})") from error


def _attempt(url: str, part: Path, size: int | None, moved: Moved) -> None:
    """Fetch over one connection."""
    position = size_of(part)
    # A server that compresses the file would change its size.
    headers = {"User-Agent": "wmt-transformer", "Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
    try:
        with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT) as response:
            status = response.status_code
            if status == 416 and position:
                part.unlink()
                raise TransientError("refused to resume the partial file")
            if status not in (200, 206):
                kind = TransientError if status in _TRANSIENT else FetchError
                raise kind(f"answers {status} {response.reason_phrase}".rstrip())
            if status == 200:  # The whole file, whatever was asked for.
                position = 0
            length = response.headers.get("Content-Length")
            total = position + int(length) if length else size
            if size not in (None, total):
                raise FetchError(f"offers {total:,} bytes where {size:,} are expected")
            with part.open("ab" if position else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
                    position += len(chunk)
                    moved(completed=position, total=total)
    except httpx.RequestError as error:
        raise TransientError(f"broke off after {position:,} bytes ({error or type(error).__name__})") from error
    if total is not None and position < total:  # Without a Content-Length a lost connection looks like the end.
        raise TransientError(f"broke off after {position:,} of {total:,} bytes")


def _problem(archive: ArchiveSettings, path: Path) -> str | None:
    """Return how a file differs from the catalog; None if it does not."""
    for check, expected in (("bytes", archive.bytes), ("sha256", archive.sha256), ("md5", archive.md5)):
        if expected is None:
            continue
        with path.open("rb") as file:
            actual = path.stat().st_size if check == "bytes" else hashlib.file_digest(file, check).hexdigest()
        if actual != expected:
            return f"has the {check} {actual}, not {expected} as in the catalog"
    # Without a checksum it could be a hotel's login page.
    return None if archive.sha256 or archive.md5 or is_archive(path) else "is neither .gz nor .tar nor .zip"


def _obtain_from(url: str, archive: ArchiveSettings, whole: Path, moved: Moved) -> Path:
    """Return the verified archive from an address, cached as `whole`; raise FetchError where it does not provide it."""
    if url.startswith("file:"):
        path = Path(urlsplit(url).path)
        if problem := _problem(archive, path) if path.is_file() else "is missing":
            raise FetchError(problem)
        return path
    known = "size unknown" if archive.bytes is None else f"{archive.bytes:,} bytes"
    tell(f"download: {archive.name}: {known} from {url}; licence: {archive.licence}; described at {archive.source}")
    part = whole.with_name(f"{whole.name}.part")
    for _ in range(2):  # Bytes of several connections may not fit together, so a wrong file is fetched once more.
        fetch(url, part, archive.bytes, moved)
        problem = _problem(archive, part)
        if problem is None:
            return part.replace(whole)
        part.unlink()
    raise FetchError(str(problem))


def _obtain(archive: ArchiveSettings, folder: Path, moved: Moved) -> Path:
    """Return one archive from the cache or the first address that provides it; raise as `obtain` does."""
    # Without a checksum the address is the key: another address may have another file.
    whole = folder / (archive.sha256 or f"url-{hashlib.sha256(archive.urls[0].encode()).hexdigest()}")
    lock = FileLock(f"{whole}.lock")  # Parallel runs, as in DVC's queue, share the state root.
    try:
        held = lock.acquire(blocking=False)
    except Timeout:
        tell(f"download: {archive.name}: another run is fetching it; waiting")
        held = lock.acquire(poll_interval=0.5)
    failures: list[FetchError] = []
    with held:
        if whole.exists():
            if (problem := _problem(archive, whole)) is None:
                return whole
            tell(f"download: {archive.name}: {whole} {problem}; fetching it again")
        for url in archive.urls:
            try:
                return _obtain_from(url, archive, whole, moved)
            except FetchError as error:
                failures.append(error)
    problems = "; ".join(f"{url} {error}" for url, error in zip(archive.urls, failures, strict=True))
    message = f"the archive {archive.name} could not be downloaded: {problems}"
    if any(isinstance(error, TransientError) for error in failures):
        raise ConnectionError(f"{message}; run again to continue")
    raise InputError(f"{message}; correct its entry in the catalog, or run again later")


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

        def one(archive: ArchiveSettings) -> tuple[str, Path]:
            task = bars.add_task(archive.name, total=archive.bytes, visible=False)
            return archive.name, _obtain(archive, folder, partial(bars.update, task, visible=True))

        # Its threads are daemons: a silent server must not delay the exit of an interrupted stage, as the threads of
        # concurrent.futures would. The first failure ends all.
        with ThreadPool(PARALLEL) as pool:
            return dict(pool.imap_unordered(one, archives))
