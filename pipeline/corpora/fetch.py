"""Fetch one file over HTTP: resumed, retried with growing pauses, and never larger than its declared size.

Proxies come from the environment (`http_proxy`, `https_proxy`, `no_proxy`).
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
_TRANSIENT = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses that a later attempt may not get


class FetchError(Exception):
    """This address does not provide the file. If `transient`, a later attempt may, `after` some seconds."""

    def __init__(self, message: str, transient: bool = False, after: float = 0.0) -> None:
        super().__init__(message)
        self.transient, self.after = transient, after


class Stopped(Exception):
    """The caller's `stop` was set; the partial file can be resumed."""


@dataclass(frozen=True)
class Patience:
    """How long to try. `attempts` counts consecutive failures without a new byte."""

    attempts: int = 5
    backoff: float = 1.0  # seconds before the second attempt; doubled before each further one
    longest: float = 60.0  # the longest pause in seconds, whatever a server's Retry-After asks
    timeout: float = 60.0  # seconds without a byte before a connection counts as lost


@dataclass(frozen=True)
class Order:
    """What to fetch, and into which partial file."""

    url: str
    part: Path
    size: int | None  # the declared bytes; None: the size that the server gives
    verifiable: bool  # whether the caller knows the checksum: only then may bytes of two servers be joined
    remedy: str = ""  # the end of messages about a wrong size: what a user can do

    def check_size(self, offered: int) -> None:
        """Raise FetchError where a server offers a file of another size than declared."""
        if self.size not in (None, offered):
            raise FetchError(f"offers {offered:,} bytes where {self.size:,} are declared{self.remedy}")

    def version(self) -> str | None:
        """Return the version of the partial file's bytes, if they came from the same address."""
        try:
            note = json.loads(_note(self.part).read_text(encoding="utf-8"))
            return str(note["version"]) if note["url"] == self.url and note["version"] else None
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None  # No note, or one that a kill cut short.

    def note_version(self, response: http.client.HTTPResponse) -> None:
        """Record the version of the partial file's bytes, so that only bytes of the same version are appended."""
        etag = response.headers.get("ETag", "")
        version = etag if etag.startswith('"') else response.headers.get("Last-Modified")
        _note(self.part).write_text(json.dumps({"url": self.url, "version": version}), encoding="utf-8")


@dataclass(frozen=True)
class Watch:
    """Callbacks of a transfer, and the event that stops it."""

    stop: threading.Event
    moved: Callable[[int, int | None], None]  # called with the bytes so far and the total
    report: Callable[[str], None]


def fetch(order: Order, watch: Watch, patience: Patience) -> None:
    """Complete `order.part`, resuming from its present content.

    Raises FetchError where this address cannot provide it, Stopped where `watch.stop` was set (the partial file stays),
    OSError where the disk refuses.
    """
    failures, furthest = 0, _size(order.part)
    while True:
        if watch.stop.is_set():
            raise Stopped
        try:
            return _attempt(order, watch, patience.timeout)
        except FetchError as error:
            if not error.transient:
                raise
            reached = _size(order.part)
            failures = 0 if reached > furthest else failures + 1
            furthest = max(furthest, reached)
            if failures >= patience.attempts:
                raise FetchError(f"{error}, {failures} times in a row", transient=True) from error
            pause = min(patience.longest, max(error.after, patience.backoff * 2 ** max(0, failures - 1)))
            watch.report(f"{order.url}: {error}; trying again in {pause:g} s")
            if watch.stop.wait(pause):
                raise Stopped from error


def forget(part: Path) -> None:
    """Remove a partial file and the files beside it."""
    for path in (part, _note(part), _restarted(part)):
        path.unlink(missing_ok=True)


def check_room(folder: Path, needed: int) -> None:
    """Raise OSError (ENOSPC) where the disk of `folder` has fewer than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        message = f"{os.strerror(errno.ENOSPC)} ({needed:,} bytes are needed and {free:,} are free)"
        raise OSError(errno.ENOSPC, message, str(folder))


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _note(part: Path) -> Path:
    """Return the file with the address and the version (ETag or date) of the partial file."""
    return part.with_name(part.name + ".from")


def _restarted(part: Path) -> Path:
    """Return the file for a download from the start while the partial file still has more bytes."""
    return part.with_name(part.name + ".anew")


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener of http and https alone, so that no redirection leads to a file or to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    return opener


def _attempt(order: Order, watch: Watch, timeout: float) -> None:
    """Fetch over one connection. Raises a transient FetchError where another attempt may get further."""
    position, version = _size(order.part), order.version()
    if position == order.size:
        return
    too_long = order.size is not None and position > order.size
    if too_long or not (order.verifiable or version):
        forget(order.part)
        position, version = 0, None
    # A server that compresses the file would change its size.
    headers = {"User-Agent": "wmt-transformer", "Accept-Encoding": "identity"}
    if position:
        headers |= {"Range": f"bytes={position}-"} | ({"If-Range": version} if version else {})
    request = urllib.request.Request(order.url, headers=headers)  # noqa: S310 - the opener takes http(s) alone
    try:
        response = _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            _refused(order, error, position)
    except (OSError, http.client.HTTPException) as error:
        raise FetchError(f"cannot be reached ({_reason(error)})", transient=True) from error
    else:
        with response:
            _receive(order, watch, response, position)


def _refused(order: Order, error: urllib.error.HTTPError, position: int) -> None:
    """Raise what an HTTP status of 400 or more means; return where it means that the partial file is complete."""
    if error.code == 416:
        total = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers.get("Content-Range", ""))
        if total and order.size is None and int(total[1]) == position:
            return
        if total:
            order.check_size(int(total[1]))
        forget(order.part)
        raise FetchError("refused to resume the partial file", transient=True)
    message = f"answers {error.code} {error.reason}".rstrip()
    if error.code in _TRANSIENT:
        after = error.headers.get("Retry-After", "")
        raise FetchError(message, True, float(after) if re.fullmatch(r"[0-9]{1,9}", after) else 0.0)
    raise FetchError(message)


def _reason(error: Exception) -> str:
    """Return in a few words why a connection failed."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "timed out"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return text or type(cause).__name__


def _receive(order: Order, watch: Watch, response: http.client.HTTPResponse, position: int) -> None:
    """Write the response's bytes after the requested `position`, or from the start where it is the whole file."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    if response.status == 206:
        span = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != position:
            forget(order.part)
            raise FetchError("sent another range than was asked for", transient=True)
        total = None if span[2] == "*" else int(span[2])
    elif response.status != 200:
        raise FetchError(f"answers {response.status} {response.reason}".rstrip())
    if total is not None:
        order.check_size(total)
    expected = order.size if order.size is not None else total
    if expected is None and not response.chunked and not order.verifiable:
        raise FetchError("tells no size and no checksum is on record: a cut transfer could pass for a whole one")
    if response.status == 206:
        check_room(order.part.parent, (expected or position) - position)
        _write(order, watch, response, order.part, position, expected)
    elif position and (order.verifiable or order.size is not None):
        # The whole file instead of the rest, or an error page: the partial file stays until as many bytes have come.
        if order.verifiable:
            # After an interruption the rest of these bytes may be requested from any version: the checksum decides.
            _note(order.part).unlink(missing_ok=True)
        check_room(order.part.parent, max(position, (expected or 0) - position))
        try:
            _write(order, watch, response, _restarted(order.part), 0, expected, position)
        finally:
            _restarted(order.part).unlink(missing_ok=True)
    else:
        forget(order.part)
        check_room(order.part.parent, expected or 0)
        order.note_version(response)
        _write(order, watch, response, order.part, 0, expected)


def _write(
    order: Order,
    watch: Watch,
    response: http.client.HTTPResponse,
    path: Path,
    position: int,
    expected: int | None,
    held: int = 0,
) -> None:
    """Write the response from `position` of `path` on; another file replaces the partial one at its size, `held`."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(position)
        file.seek(position)
        while True:
            if watch.stop.is_set():
                raise Stopped
            try:
                chunk = response.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise FetchError(f"broke off after {position:,} bytes ({_reason(error)})", transient=True) from error
            if not chunk:
                break
            if expected is not None and position + len(chunk) > expected:
                file.truncate(0)
                raise FetchError(f"sends more than the {expected:,} bytes declared{order.remedy}")
            file.write(chunk)
            position += len(chunk)
            if path != order.part and position >= held:
                file.flush()
                path = path.replace(order.part)
                order.note_version(response)
            watch.moved(position, expected)
        least = max(held, expected or 0)
        if position < least and response.status == 200 and (response.chunked or position == expected):
            # A complete response that is too short, not a broken connection: another server must not resume it.
            file.truncate(0)
            known = f"declared{order.remedy}" if least == expected else f"in {order.part}: if they are wrong, remove it"
            raise FetchError(f"has only {position:,} bytes where {least:,} are {known}")
        file.flush()
        os.fsync(file.fileno())
    if position < least:
        raise FetchError(f"broke off after {position:,} of {least:,} bytes", transient=True)
