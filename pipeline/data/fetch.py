"""Fetch one file over HTTP: resumed where a partial file ends, and retried with growing pauses.

Proxies come from the environment (`http_proxy`, `https_proxy`, `no_proxy`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx

ATTEMPTS = 5  # consecutive failures without a new byte
BACKOFF = 1.0  # seconds before the second attempt, doubled before each further one
LONGEST = 60.0  # the longest pause in seconds
TIMEOUT = 60.0  # seconds without a byte before a connection counts as lost
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses after which a later attempt may succeed

Moved = Callable[[int, int | None], None]
"""Called with the bytes so far and the total, if known."""
Report = Callable[[str], None]


class FetchError(Exception):
    """This address does not provide the file. If `transient`, a later attempt may."""

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


def size_of(path: Path) -> int:
    """Return the bytes of a file; 0 if it is missing."""
    return path.stat().st_size if path.exists() else 0


def fetch(url: str, part: Path, size: int | None, moved: Moved, report: Report) -> None:
    """Complete the file `part` of `size` bytes, if known, after the bytes that it has.

    Raises FetchError where this address cannot provide it, OSError where the disk refuses.
    """
    failures = 0
    while (before := size_of(part)) != size:
        try:
            _attempt(url, part, size, moved)
        except FetchError as error:
            if not error.transient:
                raise
            failures = 0 if size_of(part) > before else failures + 1
            if failures >= ATTEMPTS:
                raise FetchError(f"{error}, {failures} times in a row", transient=True) from error
            pause = min(LONGEST, BACKOFF * 2 ** max(0, failures - 1))
            report(f"{url}: {error}; trying again in {pause:g} s")
            time.sleep(pause)
        else:
            return


def _attempt(url: str, part: Path, size: int | None, moved: Moved) -> None:
    """Fetch over one connection. Raises a transient FetchError where another attempt may get further."""
    position = size_of(part)
    if size is not None and position > size:
        position = 0
    # A server that compresses the file would change its size.
    headers = {"User-Agent": "wmt-transformer", "Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
    try:
        with httpx.stream("GET", url, headers=headers, follow_redirects=True, timeout=TIMEOUT) as response:
            position = _accepted(response, part, position)
            length = response.headers.get("Content-Length")
            total = position + int(length) if length else size
            if size not in (None, total):
                raise FetchError(f"offers {total:,} bytes where {size:,} are expected")
            with part.open("ab" if position else "wb") as file:
                for chunk in response.iter_raw():
                    file.write(chunk)
                    position += len(chunk)
                    moved(position, total)
    except httpx.RequestError as error:
        raise FetchError(f"broke off after {position:,} bytes ({error or type(error).__name__})", True) from error
    if total is not None and position < total:  # Without a Content-Length a lost connection looks like the end.
        raise FetchError(f"broke off after {position:,} of {total:,} bytes", transient=True)


def _accepted(response: httpx.Response, part: Path, position: int) -> int:
    """Return the position of the response's first byte; raise FetchError where its status is no success."""
    if response.status_code == 206:
        return position
    if response.status_code == 200:  # The whole file, whatever was asked for.
        return 0
    if response.status_code == 416 and position:
        part.unlink()
        raise FetchError("refused to resume the partial file", transient=True)
    message = f"answers {response.status_code} {response.reason_phrase}".rstrip()
    raise FetchError(message, transient=response.status_code in _TRANSIENT)
