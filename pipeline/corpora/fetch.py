"""One file over HTTP: resumed, retried with growing pauses, never larger than declared, never taken for whole early.

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
_PASSING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP statuses that a later attempt may not meet again."""


class FetchError(Exception):
    """This address does not give the file; another may. Told in one clause. `passing`: a later attempt may get it."""

    def __init__(self, message: str, passing: bool = False) -> None:
        super().__init__(message)
        self.passing = passing


class Stopped(Exception):
    """The caller's `stop` was set; the partial file can be resumed."""


@dataclass(frozen=True)
class Patience:
    """How long to try. `attempts` counts failures in a row that brought not one new byte."""

    attempts: int = 5
    backoff: float = 1.0
    """Seconds before the second attempt; doubled for each one after it."""
    longest: float = 60.0
    """Seconds that a pause never exceeds, whatever a server's Retry-After asks."""
    timeout: float = 60.0
    """Seconds without a byte before a connection counts as lost."""


@dataclass(frozen=True)
class Order:
    """What is to be fetched, and into which partial file."""

    url: str
    part: Path
    size: int | None
    """The declared bytes; null: what the server says."""
    verifiable: bool
    """Whether the caller knows the file's checksum: only then may two servers' bytes be joined."""
    remedy: str = ""
    """What to do where the declared size is no longer the right one; ends the sentence."""


@dataclass(frozen=True)
class Watch:
    """Who hears of the transfer, and who may end it."""

    stop: threading.Event
    moved: Callable[[int, int | None], None]
    """Called with the bytes at hand and the bytes in all."""
    tell: Callable[[str], None]


class _PassingError(Exception):
    """A failure that a later attempt may not meet; `after`: the seconds that the server asks to wait."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after


def fetch(order: Order, watch: Watch, patience: Patience) -> None:
    """Bring `order.part` to its full size, going on from what is there.

    Raises FetchError where this address cannot give it, Stopped where `watch.stop` was set (the partial file stays),
    OSError where the disk refuses.
    """
    failures, furthest = 0, _size(order.part)
    while True:
        if watch.stop.is_set():
            raise Stopped
        try:
            return _attempt(order, watch, patience.timeout)
        except _PassingError as error:
            reached = _size(order.part)
            failures = 0 if reached > furthest else failures + 1
            furthest = max(furthest, reached)
            if failures >= patience.attempts:
                raise FetchError(f"{error}, {failures} times in a row", passing=True) from error
            pause = min(patience.longest, max(error.after, patience.backoff * 2 ** max(0, failures - 1)))
            watch.tell(f"{order.url}: {error}; trying again in {pause:g} s")
            if watch.stop.wait(pause):
                raise Stopped from error


def forget(part: Path) -> None:
    """Remove a partial file and what stands beside it."""
    for path in (part, _note(part), _anew(part)):
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
    """Where the partial file's address and version (ETag or date) are kept."""
    return part.with_name(part.name + ".from")


def _anew(part: Path) -> Path:
    """Where the file is fetched from its start while the partial one, which has more of it, still stands."""
    return part.with_name(part.name + ".anew")


def _version(order: Order) -> str | None:
    """The version that the bytes at hand are of, where they came from the same address."""
    try:
        note = json.loads(_note(order.part).read_text(encoding="utf-8"))
        return str(note["version"]) if note["url"] == order.url and note["version"] else None
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None  # No note, or one that a kill cut short: then nothing is known of those bytes.


def _opener() -> urllib.request.OpenerDirector:
    """What opens http and https, by the proxies of the environment; no redirection leads to a file or to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _attempt(order: Order, watch: Watch, timeout: float) -> None:
    """One connection. Raises _PassingError where another may bring more."""
    position = _size(order.part)
    if order.size is not None and position > order.size:
        forget(order.part)
        position = 0
    if order.size is not None and position == order.size:
        return
    version = _version(order)
    if position and not (order.verifiable or version):
        forget(order.part)
        position = 0
    # A server that packs the file once more would make its size another.
    headers = {"User-Agent": "wmt-transformer", "Accept-Encoding": "identity"}
    if position:
        headers["Range"] = f"bytes={position}-"
        if version:
            headers["If-Range"] = version
    request = urllib.request.Request(order.url, headers=headers)  # noqa: S310 - the opener takes http(s) alone
    try:
        response = _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416 and _is_whole(order, position, error.headers.get("Content-Range", "")):
                return
            _refuse(order, error)
    except (OSError, http.client.HTTPException) as error:
        raise _PassingError(f"cannot be reached ({_reason(error)})") from error
    else:
        with response:
            _receive(order, watch, response, position)


def _is_whole(order: Order, position: int, content_range: str) -> bool:
    """Whether a server that has nothing after `position` says that the file ends there."""
    return order.size is None and content_range == f"bytes */{position}"


def _refuse(order: Order, error: urllib.error.HTTPError) -> None:
    """Raise what an HTTP status of 400 or more means."""
    if error.code == 416:
        ending = re.fullmatch(r"bytes \*/([0-9]{1,18})", error.headers.get("Content-Range", ""))
        if ending:
            _check_size(order, int(ending[1]))
        forget(order.part)
        raise _PassingError("refused to go on from the bytes at hand")
    message = f"answers {error.code} {error.reason}".rstrip()
    if error.code in _PASSING:
        after = error.headers.get("Retry-After", "")
        raise _PassingError(message, float(after) if re.fullmatch(r"[0-9]{1,9}", after) else 0.0)
    raise FetchError(message)


def _reason(error: Exception) -> str:
    """Why a connection failed, in a few words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return "timed out"
    text = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return text or type(cause).__name__


def _receive(order: Order, watch: Watch, response: http.client.HTTPResponse, position: int) -> None:
    """Write the answer's bytes after the `position` that was asked for, or from the start where it is whole."""
    length = response.headers.get("Content-Length", "")
    total = int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    if response.status == 206:
        span = re.fullmatch(r"bytes ([0-9]+)-[0-9]+/([0-9]+|\*)", response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != position:
            forget(order.part)
            raise _PassingError("sent another range than was asked for")
        total = None if span[2] == "*" else int(span[2])
    elif response.status != 200:
        raise FetchError(f"answers {response.status} {response.reason}".rstrip())
    if total is not None:
        _check_size(order, total)
    expected = order.size if order.size is not None else total
    if expected is None and not response.chunked and not order.verifiable:
        raise FetchError("tells no size and no checksum is on record: a cut transfer could pass for a whole one")
    if response.status == 206:
        if expected is not None:
            check_room(order.part.parent, expected - position)
        _write(order, watch, response, order.part, position, expected)
    elif position and (order.verifiable or order.size is not None):
        _begin_anew(order, watch, response, position, expected)
    else:
        forget(order.part)
        if expected is not None:
            check_room(order.part.parent, expected)
        _remember(order, response)
        _write(order, watch, response, order.part, 0, expected)


def _check_size(order: Order, offered: int) -> None:
    """Raise FetchError where a server has a file of another size than is declared."""
    if order.size is not None and offered != order.size:
        raise FetchError(f"offers {offered:,} bytes where {order.size:,} are declared{order.remedy}")


def _remember(order: Order, response: http.client.HTTPResponse) -> None:
    """Note the version of the partial file's bytes, so that only the same version's are put after them."""
    etag = response.headers.get("ETag", "")
    version = etag if etag.startswith('"') else response.headers.get("Last-Modified")
    _note(order.part).write_text(json.dumps({"url": order.url, "version": version}), encoding="utf-8")


def _begin_anew(
    order: Order, watch: Watch, response: http.client.HTTPResponse, held: int, expected: int | None
) -> None:
    """Take a whole answer where only the rest was asked for: it may be a page that tells of maintenance.

    So the `held` bytes stand until as many have come.
    """
    if order.verifiable:
        # Whatever version this server has, it is asked for the rest of the held bytes if it breaks off before.
        _note(order.part).unlink(missing_ok=True)
    if expected is not None:
        check_room(order.part.parent, max(held, expected - held))
    try:
        _write(order, watch, response, _anew(order.part), 0, expected, held)
    finally:
        _anew(order.part).unlink(missing_ok=True)


def _write(
    order: Order,
    watch: Watch,
    response: http.client.HTTPResponse,
    path: Path,
    position: int,
    expected: int | None,
    held: int = 0,
) -> None:
    """Append the answer's bytes at `position` of `path`. Every byte written is one to go on from.

    Where `path` is not the partial file, it takes that one's place once it has the `held` bytes that stand there.
    """
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(position)
        file.seek(position)
        while True:
            if watch.stop.is_set():
                raise Stopped
            try:
                chunk = response.read1(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _PassingError(f"broke off after {position:,} bytes ({_reason(error)})") from error
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
                _remember(order, response)
            watch.moved(position, expected)
        least = max(held, expected or 0)
        if position < least and response.status == 200 and (response.chunked or position == expected):
            # Not broken off: all that this server has. Another must not go on from it.
            file.truncate(0)
            known = f"declared{order.remedy}" if least == expected else f"in {order.part}: if they are wrong, remove it"
            raise FetchError(f"has only {position:,} bytes where {least:,} are {known}")
        file.flush()
        os.fsync(file.fileno())
    if position < least:
        raise _PassingError(f"broke off after {position:,} of {least:,} bytes")
