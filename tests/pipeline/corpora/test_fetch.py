"""Transfers from servers that misbehave, and the cache that keeps what they gave."""

from __future__ import annotations

import errno
import hashlib
import http.client
import http.server
import io
import json
import random
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nmt.config import InputError
from pipeline.common.settings import REPACKED, ArchiveSettings
from pipeline.corpora import archive_cache, fetch
from pipeline.corpora.fetch import Download, FetchError, Patience, Stopped, Watch

QUICK = Patience(attempts=4, backoff=0.005, longest=0.025, timeout=5.0)
CONTENT = random.Random(1).randbytes(300_000)
ROOT = Path(__file__).resolve().parents[3]

Behaviour = Callable[["Handler"], bool]
"""Answers a request and says so, or leaves it to the well-behaved answer."""


class Handler(http.server.BaseHTTPRequestHandler):
    """A server with Range, If-Range and ETag, and a list of misdeeds to do first, one a request."""

    server: Server

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.misdeeds and self.server.misdeeds.pop(0)(self):
            return
        self.answer(self.server.content)

    def answer(self, content: bytes, ranges: bool = True, cut: int | None = None) -> None:
        """The whole or the asked range; after `cut` bytes the connection drops."""
        start = 0
        fresh = self.headers.get("If-Range", self.server.etag) == self.server.etag
        if ranges and fresh and (asked := self.headers.get("Range")):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(content) - start))
        if self.server.etag:
            self.send_header("ETag", self.server.etag)
        self.end_headers()
        self.wfile.write(content[start:] if cut is None else content[start : start + cut])

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag = '"one"'
        self.misdeeds: list[Behaviour] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file.tgz"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the tests."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def drop(after: int) -> Behaviour:
    """Send `after` bytes of what was asked for, then hang up."""

    def deed(handler: Handler) -> bool:
        handler.answer(handler.server.content, cut=after)
        return True

    return deed


def status(code: int, **headers: str) -> Behaviour:
    def deed(handler: Handler) -> bool:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        return True

    return deed


def other_bytes(content: bytes, ranges: bool = True) -> Behaviour:
    def deed(handler: Handler) -> bool:
        handler.answer(content, ranges=ranges)
        return True

    return deed


def page(content: bytes, chunked: bool = False, close: bool = False) -> Behaviour:
    """Something else than was asked for, by 200: with its size, in chunks, or until the connection closes."""

    def deed(handler: Handler) -> bool:
        handler.send_response(200)
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        elif not close:
            handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(content), content) if chunked else content)
        return True

    return deed


def watch(messages: list[str] | None = None, moved: Callable[[int, int | None], None] = lambda *_: None) -> Watch:
    return Watch(threading.Event(), moved, (messages if messages is not None else []).append)


def download(server: Server, folder: Path, size: int | None = len(CONTENT), verifiable: bool = True) -> Download:
    return Download(server.url, folder / "file.part", size, verifiable)


def test_pauses_double_from_one_second_and_end_at_a_minute(tmp_path: Path, server: Server) -> None:
    pauses: list[float | None] = []

    class Pauses(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return False

    server.misdeeds = [status(500)] * 9
    watching = Watch(Pauses(), lambda *_: None, lambda _: None)
    with pytest.raises(FetchError, match="9 times in a row"):
        fetch.fetch(Download(server.url, tmp_path / "x.part", None, True), watching, Patience(attempts=9))
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_fetches_a_file(server: Server, tmp_path: Path, size: int | None) -> None:
    moved: list[tuple[int, int | None]] = []
    fetch.fetch(download(server, tmp_path, size), watch(moved=lambda *at: moved.append(at)), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert moved[-1] == (len(CONTENT), len(CONTENT))
    assert {total for _, total in moved} == {len(CONTENT)}
    ((_, headers),) = server.requests
    assert (headers["User-Agent"], headers["Accept-Encoding"]) == ("wmt-transformer", "identity")
    note = json.loads((tmp_path / "file.part.from").read_text())
    assert note == {"url": server.url, "version": '"one"'}


def test_an_empty_file_is_whole(server: Server, tmp_path: Path) -> None:
    server.content = b""
    fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == b""
    assert len(server.requests) == 1


def test_forgetting_leaves_nothing(tmp_path: Path) -> None:
    for suffix in ("part", "part.from", "part.anew", "lock"):
        (tmp_path / f"file.{suffix}").write_bytes(b"x")
    fetch.forget(tmp_path / "file.part")
    assert [path.name for path in tmp_path.iterdir()] == ["file.lock"]


def test_goes_on_where_connections_dropped(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [drop(1000)] * 10  # More than QUICK's attempts: each brought new bytes.
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert [headers.get("Range") for _, headers in server.requests] == [
        None,
        *(f"bytes={n * 1000}-" for n in range(1, 11)),
    ]


def test_goes_on_from_an_earlier_runs_partial_file(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:123_456])
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert server.requests[0][1]["Range"] == "bytes=123456-"


def test_a_complete_partial_file_needs_no_network(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert not server.requests


@pytest.mark.parametrize("misdeeds", [[], [status(503)]])
def test_more_bytes_than_declared_are_fetched_anew(server: Server, tmp_path: Path, misdeeds: list[Behaviour]) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT + b"x")
    (tmp_path / "file.part.from").write_text(json.dumps({"url": server.url, "version": '"one"'}))
    server.misdeeds = misdeeds
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert not any("Range" in headers or "If-Range" in headers for _, headers in server.requests)


@pytest.mark.parametrize("note", ["{", "[]", "{}", '{"url": "%s", "version": null}', '{"url": "x", "version": "y"}'])
def test_a_note_that_tells_no_version_of_this_address_is_not_sent(server: Server, tmp_path: Path, note: str) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    (tmp_path / "file.part.from").write_text(note.replace("%s", server.url))
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    ((_, headers),) = server.requests
    assert (headers["Range"], headers.get("If-Range")) == ("bytes=1000-", None)
    assert (tmp_path / "file.part").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("etag", "version"),
    [('"strong"', '"strong"'), ('W/"weak"', "Sat, 21 Nov 2026 22:25:58 GMT"), (None, "Sat, 21 Nov 2026 22:25:58 GMT")],
)
def test_a_weak_tag_is_no_version_and_a_date_is(server: Server, tmp_path: Path, etag: str | None, version: str) -> None:
    def dated(handler: Handler) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        if etag:
            handler.send_header("ETag", etag)
        handler.send_header("Last-Modified", "Sat, 21 Nov 2026 22:25:58 GMT")
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])
        return True

    server.misdeeds = [dated]
    server.etag = version
    fetch.fetch(download(server, tmp_path, verifiable=False), watch(), QUICK)
    assert server.requests[1][1]["If-Range"] == version
    assert (tmp_path / "file.part").read_bytes() == CONTENT


def test_starts_over_where_ranges_are_ignored(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    server.misdeeds = [other_bytes(CONTENT, ranges=False)]
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT


SORRY = b"<html>back soon</html>"


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        (page(SORRY), "offers 22 bytes where 300,000 are declared"),
        (page(SORRY, chunked=True), "has only 22 bytes where 300,000 are declared"),
        (page(SORRY, close=True), "broke off after 22 of 300,000 bytes, 4 times in a row"),
        (status(416, Content_Range="bytes */22"), "offers 22 bytes where 300,000 are declared"),
    ],
)
@pytest.mark.parametrize("verifiable", [True, False])
def test_a_wrong_answer_costs_no_byte_at_hand(
    server: Server, tmp_path: Path, deed: Behaviour, message: str, verifiable: bool
) -> None:
    server.misdeeds = [drop(290_000), *[deed] * 4]
    with pytest.raises(FetchError, match=message):
        fetch.fetch(download(server, tmp_path, verifiable=verifiable), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:290_000]
    assert not (tmp_path / "file.part.anew").exists()
    server.misdeeds = []
    fetch.fetch(download(server, tmp_path, verifiable=verifiable), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert server.requests[-1][1]["Range"] == "bytes=290000-"


@pytest.mark.parametrize("chunked", [True, False])
def test_a_wrong_answer_costs_no_byte_where_only_the_checksum_is_known(
    server: Server, tmp_path: Path, chunked: bool
) -> None:
    part = tmp_path / "file.part"
    part.write_bytes(CONTENT[:290_000])
    server.misdeeds = [page(SORRY, chunked)]
    with pytest.raises(FetchError, match=rf"has only 22 bytes where 290,000 are in {part}: if they are wrong, remove"):
        fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert part.read_bytes() == CONTENT[:290_000]


def test_another_server_does_not_go_on_from_a_wrong_answer(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [page(SORRY, chunked=True)]
    mirror = server.url.replace("file", "mirror")
    assert archive_cache.obtain([archive(server.url, mirror)], tmp_path, QUICK)["a"].read_bytes() == CONTENT
    assert [(path, headers.get("Range")) for path, headers in server.requests] == [
        ("/file.tgz", None),
        ("/mirror.tgz", None),
    ]


def test_ignored_ranges_take_the_place_once_they_have_as_many_bytes(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "file.part"
    part.write_bytes(b"x" * 1000)
    other = CONTENT[::-1]

    def shorter(handler: Handler) -> bool:
        handler.answer(other, ranges=False, cut=999)
        return True

    def longer(handler: Handler) -> bool:
        assert part.read_bytes() == b"x" * 1000
        handler.answer(other, ranges=False, cut=1000)
        return True

    def rest(handler: Handler) -> bool:
        assert part.read_bytes() == other[:1000]
        handler.answer(other)
        return True

    server.misdeeds = [shorter, longer, rest]
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert part.read_bytes() == other
    assert server.requests[2][1]["If-Range"] == '"one"'


def test_bytes_with_a_checksum_are_gone_on_from_under_another_version(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [drop(200_000), drop(150_000)]

    def renamed(_: str) -> None:
        server.etag = '"two"'

    fetch.fetch(download(server, tmp_path), Watch(threading.Event(), lambda *_: None, renamed), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert [headers.get("Range") for _, headers in server.requests] == [None, *["bytes=200000-"] * 2]


@pytest.mark.parametrize(
    ("ranges", "held", "needed"),
    [
        (False, 200_000, 200_000),
        (False, 50_000, 250_000),
        (True, 200_000, 100_000),
    ],
)
def test_room_for_what_comes_beside_what_is_held_is_checked_before_it_comes(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranges: bool, held: int, needed: int
) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:held])
    server.misdeeds = [other_bytes(CONTENT, ranges=ranges)] * 2
    for free in (needed - 1, needed):
        monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free})())
        if free < needed:
            with pytest.raises(OSError, match=f"{needed:,} bytes are needed and {free:,} are free") as caught:
                fetch.fetch(download(server, tmp_path), watch(), QUICK)
            assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))
            assert (tmp_path / "file.part").read_bytes() == CONTENT[:held]
        else:
            fetch.fetch(download(server, tmp_path), watch(), QUICK)
            assert (tmp_path / "file.part").read_bytes() == CONTENT


@pytest.mark.parametrize("size", [len(CONTENT), None])
def test_another_range_than_asked_for_is_not_joined(server: Server, tmp_path: Path, size: int | None) -> None:
    def shifted(handler: Handler) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(CONTENT) - 1}/{len(CONTENT)}")
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT)
        return True

    (tmp_path / "file.part").write_bytes(CONTENT[:500])
    server.misdeeds = [shifted, status(416), status(206)]
    messages: list[str] = []
    fetch.fetch(download(server, tmp_path, size), watch(messages), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    refusal = "sent another range than was asked for; trying again in"
    assert [line.removeprefix(f"{server.url}: ") for line in messages] == [
        f"{refusal} 0.005 s",
        "refused to resume the partial file; trying again in 0.01 s",
        f"{refusal} 0.02 s",
    ]


@pytest.mark.parametrize(("total", "message"), [("300001", "offers 300,001 bytes where 300,000 are"), ("*", None)])
def test_the_rest_tells_the_size_of_the_whole(server: Server, tmp_path: Path, total: str, message: str | None) -> None:
    def rest(handler: Handler) -> bool:
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 500-299999/{total}")
        handler.end_headers()
        handler.wfile.write(CONTENT[500:])
        return True

    (tmp_path / "file.part").write_bytes(CONTENT[:500])
    server.misdeeds = [rest]
    if message:
        with pytest.raises(FetchError, match=message):
            fetch.fetch(download(server, tmp_path), watch(), QUICK)
    else:
        fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == (CONTENT[:500] if message else CONTENT)
    assert len(server.requests) == 1


def test_unavailable_is_tried_again_after_what_the_server_asks(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [status(500, Retry_After="soon"), status(503, Retry_After="3600"), status(429)]
    messages: list[str] = []
    fetch.fetch(download(server, tmp_path), watch(messages), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert [line.split(": ", 1)[1] for line in messages] == [
        "answers 500 Internal Server Error; trying again in 0.005 s",
        "answers 503 Service Unavailable; trying again in 0.025 s",
        "answers 429 Too Many Requests; trying again in 0.02 s",
    ]


def test_which_statuses_may_pass(server: Server, tmp_path: Path) -> None:
    for code in (408, 425, 429, 500, 502, 503, 504, 204, 400, 401, 403, 404, 410, 501, 505):
        server.misdeeds = [status(code)]
        with pytest.raises(FetchError, match=f"^answers {code} [A-Z]") as caught:
            fetch.fetch(download(server, tmp_path), watch(), Patience(1, 0.01, 0.01, 5.0))
        assert caught.value.transient == (code in {408, 425, 429, 500, 502, 503, 504})


@pytest.mark.parametrize("code", [204, 404])
def test_a_status_without_a_reason(server: Server, tmp_path: Path, code: int) -> None:
    def bare(handler: Handler) -> bool:
        handler.send_response(code, "")
        handler.end_headers()
        return True

    server.misdeeds = [bare]
    with pytest.raises(FetchError, match=f"^answers {code}$"):
        fetch.fetch(download(server, tmp_path), watch(), QUICK)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.URLError(ConnectionRefusedError(111, "refused")), "refused"),
        (urllib.error.URLError(TimeoutError("x")), "timed out"),
        (TimeoutError(), "timed out"),
        (OSError("odd"), "odd"),
        (urllib.error.URLError("no such scheme"), "no such scheme"),
        (http.client.HTTPException("cut"), "cut"),
        (http.client.HTTPException(), "HTTPException"),
    ],
)
def test_why_a_connection_failed(error: Exception, reason: str) -> None:
    assert fetch._reason(error) == reason


def test_gives_up_after_attempts_without_a_byte(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [drop(1000), *[status(503)] * 9]
    with pytest.raises(FetchError, match="answers 503 Service Unavailable, 4 times in a row"):
        fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]
    assert len(server.requests) == 1 + 4


def test_a_server_that_never_passes_the_same_byte_ends(server: Server, tmp_path: Path) -> None:
    def half(handler: Handler) -> bool:
        handler.answer(CONTENT, ranges=False, cut=1000)
        return True

    server.misdeeds = [half] * 100
    with pytest.raises(FetchError, match="broke off after 1,000 of 300,000 bytes, 4 times in a row"):
        fetch.fetch(download(server, tmp_path), watch(), QUICK)


def test_not_found_is_not_tried_again(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [status(404)]
    with pytest.raises(FetchError, match="answers 404 Not Found"):
        fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert len(server.requests) == 1


def test_another_size_than_declared_is_refused_before_its_bytes(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="offers 300,000 bytes where 299,999 are declared"):
        fetch.fetch(download(server, tmp_path, len(CONTENT) - 1), watch(), QUICK)
    assert not (tmp_path / "file.part").exists()


def test_more_than_declared_is_refused_while_it_comes(server: Server, tmp_path: Path) -> None:
    arrived = threading.Event()
    moved: list[tuple[int, int | None]] = []

    def unsized(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT[:600])
        arrived.wait(10)
        handler.wfile.write(CONTENT[600:])
        return True

    def hear(at: int, total: int | None) -> None:
        moved.append((at, total))
        arrived.set()

    server.misdeeds = [unsized]
    with pytest.raises(FetchError, match="sends more than the 1,000 bytes declared"):
        fetch.fetch(download(server, tmp_path, 1000), watch(moved=hear), QUICK)
    assert (tmp_path / "file.part").read_bytes() == b""
    assert moved[0] == (600, 1000)


def test_without_size_and_checksum_a_transfer_could_be_cut_unseen(server: Server, tmp_path: Path) -> None:
    def unsized(handler: Handler) -> bool:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])
        return True

    server.misdeeds = [unsized]
    with pytest.raises(FetchError, match=r"^gives no size and no checksum is known: an incomplete file could not"):
        fetch.fetch(download(server, tmp_path, None, verifiable=False), watch(), QUICK)


def test_chunks_tell_their_end(server: Server, tmp_path: Path) -> None:
    def chunked(end: bytes) -> Behaviour:
        def deed(handler: Handler) -> bool:
            handler.protocol_version = "HTTP/1.1"
            handler.send_response(200)
            handler.send_header("Transfer-Encoding", "chunked")
            handler.send_header("Connection", "close")
            handler.end_headers()
            handler.wfile.write(b"%x\r\n%s\r\n%s" % (len(CONTENT), CONTENT, end))
            handler.close_connection = True
            return True

        return deed

    server.misdeeds = [chunked(b""), chunked(b"0\r\n\r\n")]
    messages: list[str] = []
    fetch.fetch(download(server, tmp_path, None, verifiable=False), watch(messages), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert len(server.requests) == 2
    (line,) = messages
    assert line.startswith(f"{server.url}: broke off after 300,000 bytes (IncompleteRead(")


def test_unverifiable_bytes_of_two_versions_are_never_joined(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [drop(1000)]
    newer = CONTENT[::-1]
    messages: list[str] = []

    def replaced(message: str) -> None:
        messages.append(message)
        server.content, server.etag = newer, '"two"'

    watching = Watch(threading.Event(), lambda *_: None, replaced)
    fetch.fetch(download(server, tmp_path, None, verifiable=False), watching, QUICK)
    assert (tmp_path / "file.part").read_bytes() == newer
    assert server.requests[1][1]["If-Range"] == '"one"'
    assert len(messages) == 1


def test_unverifiable_bytes_without_a_version_are_fetched_anew(server: Server, tmp_path: Path) -> None:
    server.etag = ""
    (tmp_path / "file.part").write_bytes(b"from elsewhere")
    fetch.fetch(download(server, tmp_path, None, verifiable=False), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert "Range" not in server.requests[0][1]


def test_an_undeclared_size_is_whole_when_the_server_has_no_more(server: Server, tmp_path: Path) -> None:
    fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT
    assert server.requests[1][1]["Range"] == f"bytes={len(CONTENT)}-"
    assert len(server.requests) == 2
    server.content, server.etag = CONTENT[:-1], '"two"'
    (tmp_path / "file.part.from").unlink()
    fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:-1]


def test_a_refusal_is_no_end_but_by_its_status_and_place(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    server.misdeeds = [status(404, Content_Range="bytes */1000")]
    with pytest.raises(FetchError, match="answers 404 Not Found"):
        fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    server.misdeeds = [status(416, Content_Range="bytes */1000")]
    with pytest.raises(FetchError, match="offers 1,000 bytes where 300,000 are declared"):
        fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]


def test_unreachable(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x"
    with pytest.raises(FetchError, match=r"^cannot be reached \(Connection refused\), 4 times in a row$") as caught:
        fetch.fetch(Download(url, tmp_path / "x.part", 5, True), watch(), QUICK)
    assert caught.value.transient


def test_a_silent_server_times_out(server: Server, tmp_path: Path) -> None:
    wake = threading.Event()

    def silent(handler: Handler) -> bool:
        wake.wait(10)
        return True

    server.misdeeds = [silent]
    messages: list[str] = []
    fetch.fetch(download(server, tmp_path), watch(messages), Patience(2, 0.01, 0.01, timeout=0.2))
    wake.set()
    assert messages == [f"{server.url}: cannot be reached (timed out); trying again in 0.01 s"]
    assert (tmp_path / "file.part").read_bytes() == CONTENT


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1:1/x"])
def test_redirections_stay_on_http(server: Server, tmp_path: Path, target: str) -> None:
    server.misdeeds = [status(302, Location="/elsewhere.tgz")]
    fetch.fetch(download(server, tmp_path), watch(), QUICK)
    assert server.requests[1][0] == "/elsewhere.tgz"
    (tmp_path / "file.part").unlink()
    server.misdeeds = [status(302, Location=target)] * 9
    with pytest.raises(FetchError):
        fetch.fetch(download(server, tmp_path, None), watch(), QUICK)
    assert not (tmp_path / "file.part").exists()


def test_stopped_keeps_a_partial_file_to_go_on_from(server: Server, tmp_path: Path) -> None:
    stop = threading.Event()
    server.misdeeds = [drop(1000)]
    watching = Watch(stop, lambda *_: None, lambda _: stop.set())
    with pytest.raises(Stopped):
        fetch.fetch(download(server, tmp_path), watching, QUICK)
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:1000]


def test_a_full_disk_is_seen_before_the_first_byte(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10})())
    with pytest.raises(OSError, match=r"No space left on device \(300,000 bytes are needed and 10 are free\)"):
        fetch.fetch(download(server, tmp_path, None), watch(), QUICK)


def test_proxies_come_from_the_environment(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.url.removesuffix("/file.tgz"))
    monkeypatch.setenv("no_proxy", "")
    url = "http://archive.invalid/file.tgz"  # No name server knows it, so only the proxy can have been asked.
    fetch.fetch(Download(url, tmp_path / "file.part", len(CONTENT), True), watch(), QUICK)
    assert server.requests[0][0] == url
    assert (tmp_path / "file.part").read_bytes() == CONTENT


# The cache.


def tgz(**members: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def archive(*urls: str, content: bytes | None = CONTENT, md5: str | None = None, name: str = "a") -> ArchiveSettings:
    return ArchiveSettings(
        name=name,
        urls=list(urls),
        bytes=None if content is None else len(content),
        sha256=None if content is None else hashlib.sha256(content).hexdigest(),
        md5=md5,
        licence="free as air",
        source="http://example.org/page",
    )


def test_a_kept_archive_needs_no_network(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = archive_cache.obtain([archive(server.url)], tmp_path, QUICK)
    assert first["a"].read_bytes() == CONTENT
    errors = capsys.readouterr().err
    assert "licence: free as air" in errors
    assert "http://example.org/page" in errors
    assert archive_cache.obtain([archive("http://127.0.0.1:1/gone", content=CONTENT)], tmp_path, QUICK) == first
    assert len(server.requests) == 1
    assert capsys.readouterr().err == ""
    assert not [path for path in tmp_path.rglob("*") if ".part" in path.name]


def test_a_kept_archive_that_rotted_is_fetched_again(server: Server, tmp_path: Path) -> None:
    path = archive_cache.obtain([archive(server.url)], tmp_path, QUICK)["a"]
    path.write_bytes(CONTENT[:-1] + b"?")
    assert archive_cache.obtain([archive(server.url)], tmp_path, QUICK)["a"].read_bytes() == CONTENT


def test_wrong_bytes_are_fetched_once_more(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [other_bytes(CONTENT[::-1])]
    assert archive_cache.obtain([archive(server.url)], tmp_path, QUICK)["a"].read_bytes() == CONTENT


def test_wrong_bytes_are_never_taken(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[::-1]
    wrong, right = (hashlib.sha256(content).hexdigest() for content in (CONTENT[::-1], CONTENT))
    with pytest.raises(InputError) as caught:
        archive_cache.obtain([archive(server.url)], tmp_path, QUICK)
    assert str(caught.value) == (
        f"the archive a could not be downloaded: {server.url} has the sha256 {wrong} where the catalog says {right}; "
        "run again to continue"
    )
    assert [path.suffix for path in (tmp_path / "downloads").iterdir()] == [".lock"]


def test_the_next_mirror_goes_on_where_the_first_stopped(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [drop(1000), status(404)]
    mirror = server.url.replace("file", "mirror")
    assert archive_cache.obtain([archive(server.url, mirror)], tmp_path, QUICK)["a"].read_bytes() == CONTENT
    assert server.requests[2][0] == "/mirror.tgz"
    assert server.requests[2][1]["Range"] == "bytes=1000-"
    assert "If-Range" not in server.requests[2][1]


def test_every_address_is_named_where_none_gives(server: Server, tmp_path: Path) -> None:
    server.misdeeds = [status(404), status(403)]
    with pytest.raises(InputError, match=r"file\.tgz answers 404 Not Found; .*file\.tgz answers 403 Forbidden; run"):
        archive_cache.obtain([archive(server.url, server.url)], tmp_path, QUICK)


def test_several_at_a_time(server: Server, tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=5)

    def meet(handler: Handler) -> bool:
        together.wait()
        return False

    contents = [CONTENT, CONTENT[::-1]]

    def by_name(handler: Handler) -> bool:
        meet(handler)
        handler.answer(contents[int(handler.path[1])])
        return True

    server.misdeeds = [by_name, by_name]
    urls = [server.url.replace("file.tgz", str(n)) for n in range(2)]
    archives = [archive(urls[n], content=contents[n], name=f"a{n}") for n in range(2)]
    paths = archive_cache.obtain(archives, tmp_path, QUICK)
    assert [paths[f"a{n}"].read_bytes() for n in range(2)] == contents


def test_the_first_download_is_recorded_and_later_ones_held_to_it(server: Server, tmp_path: Path) -> None:
    server.content = first = tgz(a=b"first\n")
    unknown = archive(server.url, content=None)
    path = archive_cache.obtain([unknown], tmp_path, QUICK)["a"]
    assert path.read_bytes() == first
    (record,) = (tmp_path / "checksums").iterdir()
    assert json.loads(record.read_text()) == {
        "url": server.url,
        "bytes": len(first),
        "sha256": hashlib.sha256(first).hexdigest(),
    }
    path.unlink()
    remedy = f": if the new one is right, remove {record}; run again to continue"
    server.content = bytes(reversed(first))
    with pytest.raises(InputError, match=rf"the sha256 .* where its first download had, as {record} says, .*{remedy}"):
        archive_cache.obtain([unknown], tmp_path, QUICK)
    server.content = first + b"more"
    with pytest.raises(InputError, match=rf"offers .* bytes where .* are declared{remedy}"):
        archive_cache.obtain([unknown], tmp_path, QUICK)
    server.content = first
    assert archive_cache.obtain([unknown], tmp_path, QUICK)["a"].read_bytes() == first


def test_another_packing_is_asked_when_no_mirror_answers_and_held_to_its_first_bytes(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.content = packed = tgz(a=b"the same member\n")
    server.misdeeds = [status(404)]
    known = archive(server.url, REPACKED + server.url.replace("file.tgz", "other.zip"))
    path = archive_cache.obtain([known], tmp_path, QUICK)["a"]
    assert path.read_bytes() == packed
    assert [request[0] for request in server.requests] == ["/file.tgz", "/other.zip"]
    assert "licence: free as air" in capsys.readouterr().err
    assert archive_cache.obtain([known], tmp_path, QUICK)["a"] == path
    assert len(server.requests) == 2
    path.unlink()
    server.content = packed[::-1]
    server.misdeeds = [status(404)]
    with pytest.raises(InputError, match=r"other\.zip has the sha256 .* where its first download had"):
        archive_cache.obtain([known], tmp_path, QUICK)


def test_a_login_page_is_not_recorded(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>Welcome to our network</html>"
    with pytest.raises(InputError, match=r"is neither \.tgz nor \.tar nor \.zip"):
        archive_cache.obtain([archive(server.url, content=None)], tmp_path, QUICK)
    assert not (tmp_path / "checksums").exists()


def test_an_md5_on_record_is_held_to(server: Server, tmp_path: Path) -> None:
    known = archive(server.url, content=None, md5=hashlib.md5(CONTENT).hexdigest())
    assert archive_cache.obtain([known], tmp_path, QUICK)["a"].read_bytes() == CONTENT
    wrong = archive(server.url + "?2", content=None, md5=hashlib.md5(b"other").hexdigest())
    with pytest.raises(InputError, match=r"has the md5 .* where the catalog says"):
        archive_cache.obtain([wrong], tmp_path, QUICK)


def test_archives_of_the_repository_are_checked_where_they_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here.tgz").write_bytes(CONTENT)
    assert archive_cache.obtain([archive("file:here.tgz")], tmp_path / "state", QUICK) == {"a": Path("here.tgz")}
    Path("here.tgz").write_bytes(CONTENT[1:])
    with pytest.raises(InputError, match=r"file:here\.tgz has 299,999 bytes where the catalog says 300,000"):
        archive_cache.obtain([archive("file:here.tgz")], tmp_path / "state", QUICK)
    with pytest.raises(InputError, match=r"file:gone\.tgz is missing"):
        archive_cache.obtain([archive("file:gone.tgz")], tmp_path / "state", QUICK)


def test_room_is_checked_before_anything_is_asked(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 299_999})())
    with pytest.raises(OSError, match="300,000 bytes are needed and 299,999 are free"):
        archive_cache.obtain([archive(server.url)], tmp_path, QUICK)
    assert not server.requests


FETCHING = """
import sys
from pathlib import Path
from pipeline.corpora import archive_cache, fetch
from pipeline.common.settings import ArchiveSettings
fetch.CHUNK = 1000
archive_cache.obtain([ArchiveSettings.model_validate_json(sys.argv[1])], Path(sys.argv[2]), fetch.Patience())
"""


def fetching(server: Server, root: Path) -> subprocess.Popen[bytes]:
    """Another process that fetches the server's content into the cache at `root`."""
    arguments = [archive(server.url).model_dump_json(), str(root)]
    return subprocess.Popen([sys.executable, "-c", FETCHING, *arguments], cwd=ROOT, stderr=subprocess.DEVNULL)


def test_killed_ten_times(server: Server, tmp_path: Path) -> None:
    """Each time at another byte; no partial file is ever taken for whole, and what is there is not fetched again."""
    reached: list[int] = []

    def slowly(handler: Handler) -> bool:
        start = int(handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        reached.append(start)
        handler.answer(CONTENT, cut=random.Random(len(reached)).randrange(5_000, 25_000))
        while still_open(handler.connection):
            time.sleep(0.01)
        return True

    (tmp_path / "downloads").mkdir()
    whole = tmp_path / "downloads" / hashlib.sha256(CONTENT).hexdigest()
    part = whole.with_name(whole.name + ".part")
    for kill in range(10):
        server.misdeeds = [slowly]
        before = part.stat().st_size if part.exists() else 0
        process = fetching(server, tmp_path)
        deadline = time.monotonic() + 120
        while not (part.exists() and part.stat().st_size > before):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL if kill % 2 else signal.SIGTERM)
        assert process.wait(120) != 0
        assert not whole.exists()
        assert CONTENT.startswith(part.read_bytes())
    assert fetching(server, tmp_path).wait(120) == 0
    assert whole.read_bytes() == CONTENT
    assert reached == sorted(set(reached))
    assert len(reached) == 10


def still_open(connection: socket.socket) -> bool:
    """Whether the client still holds its end."""
    connection.setblocking(False)
    try:
        return connection.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_two_runs_side_by_side_fetch_once(server: Server, tmp_path: Path) -> None:
    both = [fetching(server, tmp_path) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert len(server.requests) == 1
