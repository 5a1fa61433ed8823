"""WMT14 from a mirror that misbehaves, by a stage that is killed ten times a pair: the right bytes in the end.

Minutes long. The mirror holds the text of the embedded sample.
"""

import contextlib
import functools
import hashlib
import http.server
import os
import random
import re
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from pipeline.config.corpora import Pair
from tests.soak.mirror import Lines, data, write

ROOT = Path(__file__).resolve().parents[2]
KILLS = 10
SLICE, PAUSE = 4096, 0.02  # bytes sent at once and seconds between: slow enough for a kill to meet every archive
pytestmark = pytest.mark.timeout(1800)


@contextlib.contextmanager
def serving(folder: Path, handler: type[http.server.SimpleHTTPRequestHandler]) -> Iterator[str]:
    """Serve a folder on loopback; yields its address."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


class Hostile(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and does one request in three wrong."""

    chance: ClassVar[random.Random] = random.Random(1)
    deeds: ClassVar[dict[str, int]] = {}
    calm: ClassVar[threading.Event] = threading.Event()

    def log_message(self, *_: object) -> None:
        """Tests are quiet."""

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path)).read_bytes()
        deed = (
            ""
            if self.calm.is_set()
            else self.chance.choice(["drop", "truncate", "unavailable", "wrong", "whole", *[""] * 10])
        )
        self.deeds[deed] = self.deeds.get(deed, 0) + 1
        if deed == "unavailable":
            self.send_error(503)
            return
        asked = self.headers.get("Range", "")
        start = int(asked.removeprefix("bytes=").split("-")[0]) if asked and deed != "whole" else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.end_headers()
            return
        body = content[start:]
        if deed == "wrong":
            body = bytes(byte ^ 1 for byte in body[:1000]) + body[1000:]
        if deed in ("drop", "truncate"):
            body = body[: self.chance.randrange(len(body))]
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        # One that truncates says that this was all.
        self.send_header("Content-Length", str(len(body) if deed == "truncate" else len(content) - start))
        self.end_headers()
        try:
            for at in range(0, len(body), SLICE):
                self.wfile.write(body[at : at + SLICE])
                if not self.calm.is_set():
                    time.sleep(PAUSE)
        except OSError:
            self.deeds["gone"] = self.deeds.get("gone", 0) + 1


def sample_lines() -> Lines:
    """Return the text of the embedded sample, whole for each corpus."""
    files: dict[str, str] = {}
    for path in sorted((ROOT / "data/sample").glob("*.tgz")):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member)
                assert file is not None
                files[member.name] = file.read().decode()

    def lines(name: str, pair: str, language: str) -> list[str]:
        if name == "newstest2013":
            return files[f"dev/sampledev.{language}"].split("\n")[:-1]
        other = pair[-2:]
        if name == "newstest2014":
            side = "src" if language == "en" else "ref"
            content = files[f"test-full/sampletest-en{other}-{side}.{language}.sgm"]
            return [unescape(line) for line in re.findall(r"<seg[^>]*> *(.*?) *</seg>", content)]
        return files[f"training/sample.{language}"].split("\n")[:-1]

    return lines


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("mirror")
    write(folder, sample_lines())
    with serving(folder, Hostile) as address:
        yield folder, address


def download() -> subprocess.Popen[bytes]:
    program = "from pipeline.stages import download; download.run()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WMT_STATE": "state"}
    return subprocess.Popen([sys.executable, "-c", program], env=environment, stderr=subprocess.PIPE)


def to_its_end() -> None:
    with download() as process:
        assert process.wait(120) == 0


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_the_right_bytes_in_the_end(
    mirror: tuple[Path, str], pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, address = mirror
    monkeypatch.chdir(tmp_path)
    Path("results").mkdir()
    settings = data(folder, address, pair)
    Path("results/config.yaml").write_text(yaml.safe_dump({"data": settings}))
    whole = {archive["sha256"] for archive in settings["archives"]}
    chance, killed = random.Random(pair), 0
    Hostile.calm.clear()
    while killed < KILLS:
        with download() as process:
            time.sleep(chance.uniform(1.0, 4.0))
            if process.poll() is not None:
                # Refused, in one sentence, by what the mirror did; or done, and then everything is fetched anew.
                assert process.stderr is not None
                message = process.stderr.read().decode().strip().rsplit("\n", 1)[-1]
                assert process.returncode == 0 or re.match(r"\S+Error: the archive .* run again", message), message
                if process.returncode == 0:
                    for path in Path("state/downloads").iterdir():
                        path.unlink()
                continue
            process.send_signal(signal.SIGKILL if killed % 2 else signal.SIGTERM)
            process.wait(20)
        killed += 1
        for path in Path("state/downloads").iterdir():
            if path.suffix == "":
                # No partial file was taken for whole.
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name in whole
    Hostile.calm.set()
    to_its_end()
    undisturbed = contents(Path("data/raw"))
    for path in [*Path("state/downloads").iterdir(), *Path("data/raw").iterdir()]:
        path.unlink()
    to_its_end()
    assert contents(Path("data/raw")) == undisturbed
    # Once more without a server to ask: the cache under the state root is enough.
    requests = sum(Hostile.deeds.values())
    to_its_end()
    assert sum(Hostile.deeds.values()) == requests
    assert contents(Path("data/raw")) == undisturbed
    print(f"{pair}: killed {killed} times; requests answered {Hostile.deeds}")
