import contextlib
import gzip
import hashlib
import http.server
import io
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusals import check_refusal

from nmt.errors import InputError
from pipeline.config.corpora import ArchiveSettings
from pipeline.data import fetch
from pipeline.data.fetch import FetchError, TransientError

CONTENT = random.Random(1).randbytes(300_000)

Answer = Callable[["Handler"], None]


class Handler(http.server.BaseHTTPRequestHandler):
    """A server with ranges, and a list of other answers to give first, one a request."""

    server: "Server"

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.answers:
            self.server.answers.pop(0)(self)
        else:
            self.send(self.server.content)

    def send(self, content: bytes, ranges: bool = True, cut: int | None = None) -> None:
        """Send the whole or the asked range; after `cut` bytes the connection drops."""
        start = int(self.headers.get("Range", "bytes=0-")[6:-1]) if ranges else 0
        if start and start >= len(content):
            self.send_response(416)
        else:
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start:] if cut is None else content[start : start + cut])

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""


class Server(http.server.ThreadingHTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}/file.tgz"

    @property
    def starts(self) -> list[int]:
        """The first byte that each request asked for."""
        return [int(headers.get("Range", "bytes=0-")[6:-1]) for _, headers in self.requests]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of the tests."""


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running, ThreadPoolExecutor(1) as thread:
        thread.submit(running.serve_forever, poll_interval=0.01)
        yield running
        running.shutdown()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between attempts, which are not waited for."""
    slept: list[float] = []
    monkeypatch.setattr(fetch, "time", type("Time", (), {"sleep": slept.append}))
    return slept


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "file.part"


def drop(after: int, ranges: bool = True) -> Answer:
    """Send `after` bytes of what was asked for, then hang up."""
    return lambda handler: handler.send(handler.server.content, ranges, cut=after)


def status(code: int, **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()

    return answer


def get(url: str, part: Path, size: int | None = len(CONTENT)) -> tuple[list[tuple[int, int | None]], list[str]]:
    """Fetch; return the progress and the messages."""
    moved: list[tuple[int, int | None]] = []
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        fetch.fetch(url, part, size, lambda completed, total: moved.append((completed, total)))
    return moved, [line.removeprefix("download: ") for line in printed.getvalue().splitlines()]


def test_goes_on_where_connections_dropped(server: Server, part: Path, pauses: list[float]) -> None:
    server.answers = [drop(1000)] * 10  # More than ATTEMPTS: each brought new bytes.
    moved, messages = get(server.url, part)
    assert part.read_bytes() == CONTENT
    assert server.starts == list(range(0, 11_000, 1000))
    assert len(messages) == 10
    assert pauses == [1.0] * 10
    assert (moved[0], moved[-1]) == ((1000, len(CONTENT)), (len(CONTENT), len(CONTENT)))
    _, headers = server.requests[0]
    assert (headers["User-Agent"], headers["Accept-Encoding"]) == ("wmt-transformer", "identity")


@pytest.mark.parametrize(
    ("held", "starts"),
    [(CONTENT[:123_456], [123_456]), (CONTENT, []), (CONTENT + b"x", [len(CONTENT) + 1, 0])],
    ids=["partial", "complete", "too long"],
)
def test_goes_on_from_an_earlier_runs_file(server: Server, part: Path, held: bytes, starts: list[int]) -> None:
    part.write_bytes(held)
    get(server.url, part)
    assert part.read_bytes() == CONTENT
    assert server.starts == starts


def test_starts_over_where_ranges_are_ignored_or_refused(server: Server, part: Path) -> None:
    part.write_bytes(b"x" * 1000)
    server.answers = [lambda handler: handler.send(CONTENT, ranges=False)]
    get(server.url, part)
    assert part.read_bytes() == CONTENT
    _, messages = get(server.url, part, None)  # Nobody knows that it is whole.
    assert server.starts == [1000, len(CONTENT), 0]
    assert part.read_bytes() == CONTENT
    assert messages == [f"{server.url}: refused to resume the partial file; trying again in 1 s"]


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504, 204, 404, 416, 501])
def test_which_statuses_may_pass(server: Server, part: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    server.answers = [status(code)]
    with pytest.raises(FetchError) as caught:
        get(server.url, part)
    assert isinstance(caught.value, TransientError) == (code in {408, 425, 429, 500, 502, 503, 504})


def test_gives_up_after_fruitless_attempts_and_growing_pauses(server: Server, part: Path, pauses: list[float]) -> None:
    for answer, said in ((status(503), "answers 503 Service "), (drop(1000, ranges=False), "broke off after 1,000 ")):
        server.answers = [drop(1000), *[answer] * 5]
        with pytest.raises(TransientError, match=f"^{said}.*, 5 times in a row$"):
            get(server.url, part)
        assert part.read_bytes() == CONTENT[:1000]
        assert pauses == [1.0, 1.0, 2.0, 4.0, 8.0]
        pauses.clear()
        part.unlink()


def test_another_size_than_expected_costs_no_byte_at_hand(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT[:1000])
    page = status(200, **{"Content-Length": "22"})
    for answers, size, offered in (([page], len(CONTENT), "22"), ([], len(CONTENT) - 1, "300,000")):
        server.answers = answers
        with pytest.raises(FetchError, match=f"^offers {offered} bytes where {size:,} are expected$") as caught:
            get(server.url, part, size)
        assert type(caught.value) is FetchError
        assert part.read_bytes() == CONTENT[:1000]


def test_a_lost_connection_is_seen_without_a_content_length(server: Server, part: Path) -> None:
    def cut(handler: Handler) -> None:
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])

    server.answers = [cut]
    moved, (message,) = get(server.url, part)
    assert part.read_bytes() == CONTENT
    assert message.startswith(f"{server.url}: broke off after 1,000 ")
    assert server.starts == [0, 1000]
    assert moved[0] == (1000, len(CONTENT))


def test_a_silent_server_times_out(server: Server, part: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wake = threading.Event()
    server.answers = [lambda _: (wake.wait(10), None)[1]]
    monkeypatch.setattr(fetch, "TIMEOUT", 0.2)
    _, (message,) = get(server.url, part)
    wake.set()
    assert "timed out" in message
    assert part.read_bytes() == CONTENT


def test_redirections_stay_on_http(server: Server, part: Path) -> None:
    server.answers = [status(302, Location="/elsewhere.tgz")]
    get(server.url, part)
    assert server.requests[1][0] == "/elsewhere.tgz"
    part.unlink()
    server.answers = [status(302, Location="file:///etc/hostname")] * 9
    with pytest.raises(TransientError, match="file:"):
        get(server.url, part, None)
    assert not part.exists()


def archive(*urls: str, content: bytes | None = CONTENT, md5: str | None = None, name: str = "a") -> ArchiveSettings:
    size, sha256 = (None, None) if content is None else (len(content), hashlib.sha256(content).hexdigest())
    about = {"licence": "free as air", "source": "http://example.org/page"}
    return ArchiveSettings(name=name, urls=list(urls), bytes=size, sha256=sha256, md5=md5, **about)


def obtain(root: Path, *archives: ArchiveSettings) -> bytes:
    return fetch.obtain(list(archives), root)["a"].read_bytes()


def test_archives_are_kept_unless_they_rot(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch.obtain([archive(server.url)], tmp_path)["a"]
    errors = capsys.readouterr().err
    assert "licence: free as air" in errors
    assert "http://example.org/page" in errors
    assert "━" not in errors  # No progress bar in a log.
    assert obtain(tmp_path, archive("http://127.0.0.1:1/gone")) == CONTENT
    assert len(server.requests) == 1
    assert capsys.readouterr().err == ""
    assert not list(tmp_path.rglob("*.part"))
    path.write_bytes(CONTENT[:-1] + b"?")
    assert obtain(tmp_path, archive(server.url)) == CONTENT
    assert "fetching it again" in capsys.readouterr().err


def test_wrong_bytes_are_never_taken(server: Server, tmp_path: Path) -> None:
    server.content = CONTENT[::-1]
    wrong, right = (hashlib.sha256(content).hexdigest() for content in (CONTENT[::-1], CONTENT))
    assert check_refusal("", obtain, tmp_path, archive(server.url)) == (
        f"the archive a could not be downloaded: {server.url} has the sha256 {wrong}, not {right} as in the catalog; "
        "correct its entry in the catalog, or run again later"
    )
    assert not [path for path in (tmp_path / "downloads").iterdir() if path.suffix != ".lock"]
    server.content = CONTENT
    (tmp_path / "downloads" / f"{right}.part").write_bytes(b"from elsewhere")
    assert obtain(tmp_path, archive(server.url)) == CONTENT
    assert server.starts == [0, 0, 14, 0]


def test_the_next_mirror_goes_on_where_the_first_stopped(server: Server, tmp_path: Path) -> None:
    server.answers = [drop(1000), status(404)]
    assert obtain(tmp_path, archive(server.url, server.url.replace("file", "mirror"))) == CONTENT
    assert server.requests[2][0] == "/mirror.tgz"
    assert server.starts == [0, 1000, 1000]


@pytest.mark.parametrize(("code", "error"), [(404, InputError), (503, ConnectionError)])
def test_every_address_that_fails_is_named(server: Server, tmp_path: Path, code: int, error: type[Exception]) -> None:
    """What a later attempt may mend is no mistake of the user's: Prefect tries it again."""
    server.answers = [*[status(code)] * (5 if code == 503 else 1), status(403)]
    said = rf"file\.tgz answers {code} .*; .*file\.tgz answers 403 Forbidden; .*run again"
    with pytest.raises(error, match=said):
        obtain(tmp_path, archive(server.url, server.url))


@pytest.mark.parametrize(
    ("url", "proxy"),
    [("http://host:80a/f", ""), ("http://a..b/file.tgz", ""), ("http://a/b", "foo://x"), ("http://a/b", "socks5://x")],
)
def test_a_wrong_address_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, proxy: str) -> None:
    monkeypatch.setenv("http_proxy", proxy)
    check_refusal("is not valid, or a proxy variable is not", obtain, tmp_path, archive(url))


def test_several_at_a_time(server: Server, tmp_path: Path) -> None:
    together = threading.Barrier(2, timeout=5)
    contents = [CONTENT, CONTENT[::-1]]

    def by_name(handler: Handler) -> None:
        together.wait()
        handler.send(contents[int(handler.path[1])])

    server.answers = [by_name, by_name]
    urls = [server.url.replace("file.tgz", str(n)) for n in range(2)]
    archives = [archive(urls[n], content=contents[n], name=f"a{n}") for n in range(2)]
    paths = fetch.obtain(archives, tmp_path)
    assert [paths[f"a{n}"].read_bytes() for n in range(2)] == contents


def test_without_a_sha256_it_has_the_md5_or_is_at_least_an_archive(server: Server, tmp_path: Path) -> None:
    assert obtain(tmp_path, archive(server.url, content=None, md5=hashlib.md5(CONTENT).hexdigest())) == CONTENT
    wrong = archive(server.url + "?2", content=None, md5=hashlib.md5(b"other").hexdigest())
    check_refusal("", obtain, tmp_path, wrong)
    server.content = gzip.compress(b"a line\n")
    assert obtain(tmp_path, archive(server.url + "?4", content=None)) == server.content
    server.content = b"<html>Welcome to our network: log in</html>"
    check_refusal(r"is neither \.gz nor \.tar nor \.zip", obtain, tmp_path, archive(server.url + "?3", content=None))


def test_two_runs_side_by_side_fetch_once(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(obtain, tmp_path, archive(server.url)) for _ in range(2)]
        assert [future.result() for future in both] == [CONTENT] * 2
    assert len(server.requests) == 1
