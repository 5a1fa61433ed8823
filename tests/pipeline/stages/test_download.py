"""The download stage: texts laid out from archives and local files, and refusals that leave nothing behind."""

from __future__ import annotations

import errno
import hashlib
import http.server
import io
import json
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from mirror import real_lines, serving, write

from nmt.config import InputError
from pipeline.config import catalogs
from pipeline.corpora import fetch
from pipeline.corpora.fetch import Patience
from pipeline.stages import download

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
TEXTS = {
    "train.en": b"One\nTwo \r too\n",
    "train.de": "Eins\nZwei\u2028auch\n".encode(),
    "valid.en": b"valid\n",
    "valid.de": b"gilt\n",
    "test.en.sgm": b'<srcset><seg id="1">R&amp;D</seg><seg id="2">a</seg></srcset>',
    "test.de.sgm": b'<refset><seg id="1">F&amp;E</seg><seg id="2">b</seg></refset>',
}


class Tracker:
    """Keeps the numbers that it gets."""

    def __init__(self) -> None:
        self.recorded: dict[str, float] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        assert update is None
        self.recorded |= values

    def tags(self, values: Mapping[str, str]) -> None:
        raise NotImplementedError

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("WMT_STATE", "DVC_ROOT", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "PATIENCE", Patience(2, 0.01, 0.01, 5.0))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def configure(data: Any) -> None:
    Path("results").mkdir(exist_ok=True)
    Path("results/config.yaml").write_text(yaml.safe_dump({"data": data}))


def packed(texts: Mapping[str, bytes] = TEXTS, md5: str | None = None, **changes: Any) -> dict[str, Any]:
    """Write all.tgz; the data section that takes every text from it."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in texts.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    Path("all.tgz").write_bytes(out.getvalue())

    def text(role: str, suffix: str = "") -> dict[str, Any]:
        sides = {side: {"archive": "all", "member": f"{role}.{lang}{suffix}"} for side, lang in SIDES}
        return {"name": role, **sides}

    entry = {
        "name": "all",
        "urls": ["file:all.tgz"],
        "bytes": len(out.getvalue()),
        "sha256": hashlib.sha256(out.getvalue()).hexdigest(),
        "md5": None,
        "licence": "none",
        "source": "here",
    }
    data = {"source": "en", "target": "de", "archives": [{**entry, **changes}], "train": [text("train")]}
    data |= {"valid": text("valid"), "test": text("test", ".sgm")}
    data["test"]["source"]["md5"] = md5
    return data


SIDES = (("source", "en"), ("target", "de"))


def local(role: str, texts: tuple[bytes, bytes]) -> dict[str, Any]:
    """Write a local text into data/local/x/; the entry that names it."""
    sides = {}
    for (side, language), content in zip(SIDES, texts, strict=True):
        path = Path(f"data/local/x/{role}.{language}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sides[side] = {"path": path.as_posix(), "sha256": hashlib.sha256(content).hexdigest()}
    return {"name": f"x-{role}", **sides}


def test_texts_of_an_archive_are_laid_out() -> None:
    configure(packed(md5=hashlib.md5(b"R&D\na\n").hexdigest()))
    tracker = Tracker()
    download.run(tracker)
    raw = {path.name: path.read_bytes() for path in Path("data/raw").iterdir()}
    stats = json.loads(raw.pop("stats.json"))
    assert raw == {
        "train.train.en": TEXTS["train.en"],
        "train.train.de": TEXTS["train.de"],
        "valid.valid.en": b"valid\n",
        "valid.valid.de": b"gilt\n",
        "test.test.en": b"R&D\na\n",
        "test.test.de": b"F&E\nb\n",
    }
    assert stats["pairs"] == {"train.train": 2, "valid.valid": 1, "test.test": 2}
    assert stats["files"]["test.test.de"] == {
        "lines": 2,
        "bytes": 6,
        "sha256": hashlib.sha256(b"F&E\nb\n").hexdigest(),
        "md5": hashlib.md5(b"F&E\nb\n").hexdigest(),
    }
    assert list(stats["files"]) == [f"{text}.{side}" for text in stats["pairs"] for side in ("en", "de")]
    assert tracker.recorded == {"raw_pairs.train.train": 2, "raw_pairs.valid.valid": 1, "raw_pairs.test.test": 2}


def test_one_member_may_serve_two_texts_and_texts_may_come_from_several_archives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = packed()
    data["archives"].append({**data["archives"][0], "name": "more"})
    data["train"].append({**data["train"][0], "name": "again"})
    data["valid"] = {side: {**data["valid"][side], "archive": "more"} for side in ("source", "target")}
    data["valid"]["name"] = "valid"
    needed = 2 * len(TEXTS["train.de"])  # The largest member, twice.

    def disk_of(free: int) -> None:
        monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free})())

    disk_of(needed - 1)
    refused(data, rf"No space left on device \({needed} bytes are needed and {needed - 1} are free\): data/.*raw")
    disk_of(1 << 30)
    download.run(Tracker())
    stats = json.loads(Path("data/raw/stats.json").read_text())
    assert stats["pairs"] == {"train.train": 2, "train.again": 2, "valid.valid": 1, "test.test": 2}
    assert stats["files"]["train.again.de"] == stats["files"]["train.train.de"]
    assert Path("data/raw/train.again.de").read_bytes() == TEXTS["train.de"]
    assert Path("data/raw/valid.valid.de").read_bytes() == TEXTS["valid.de"]


def test_local_files_are_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = packed()
    data["train"].append(local("train", (b"a\nb\n", b"A\nB")))
    configure(data)
    download.run(Tracker())
    assert Path("data/raw/train.x-train.de").read_bytes() == b"A\nB"
    # A copy of the repository, as DVC's experiments make it, has no ignored files: they are the original's.
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "work"))
    Path("copy").mkdir()
    monkeypatch.chdir("copy")
    Path("all.tgz").write_bytes((tmp_path / "all.tgz").read_bytes())
    configure(data)
    download.run(Tracker())
    assert Path("data/raw/train.x-train.de").read_bytes() == b"A\nB"
    # What a copy has of its own comes first; no other place is looked at for an absolute path.
    local("train", (b"a\nb\n", b"A\nB"))
    (tmp_path / "data/local/x/train.de").write_bytes(b"edited\n")
    download.run(Tracker())
    assert Path("data/raw/train.x-train.de").read_bytes() == b"A\nB"
    gone = str(tmp_path / "gone.de")
    data["train"][-1]["target"]["path"] = gone
    configure(data)
    with pytest.raises(
        InputError, match=f"^{re.escape(gone)} is missing: restore it, or add it again with `wmt catalog add`$"
    ):
        download.run(Tracker())


def refused(data: dict[str, Any], message: str) -> None:
    """Running on `data` raises one sentence and leaves no data/raw, not even a half one."""
    configure(data)
    with pytest.raises(InputError, match=message) as caught:
        download.run(Tracker())
    assert "\n" not in str(caught.value)
    assert not Path("data/raw").exists()
    assert not list(Path("data").glob(".raw*")) if Path("data").exists() else True


def test_an_edited_local_file_is_noticed() -> None:
    data = packed()
    data["test"] = local("test", (b"a\n", b"b\n"))
    Path("data/local/x/test.de").write_bytes(b"c\n")
    refused(data, r"data/local/x/test\.de has the sha256 .* it was edited; add it again with `wmt catalog add")


def test_a_local_file_that_is_no_text_is_told() -> None:
    data = packed()
    data["test"] = local("test", (b"a\n", b"\xff\n"))
    refused(data, r"^data/local/x/test\.de is not UTF-8: line 1, byte 1; fix it, then add it again with `wmt cat")


def test_a_missing_local_file_is_told() -> None:
    data = packed()
    data["test"] = local("test", (b"a\n", b"b\n"))
    Path("data/local/x/test.de").unlink()
    refused(data, r"data/local/x/test\.de is missing: restore it, or add it again")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.de": b"Eins\n"}, r"train\.en of the archive all has 2 lines and train\.de of the archive all 1"),
        (
            {"train.de": b"", "train.en": b""},
            r"^train\.en of the archive all and train\.de of the archive all are empty: train ",
        ),
        ({"valid.de": b"gi\xfct\n"}, r"the archive all \(all\.tgz\) valid\.de is not UTF-8: line 1, byte 3"),
        ({"test.de.sgm": b"<refset>"}, r"test\.de\.sgm holds no <seg>"),
    ],
)
def test_texts_that_are_none_are_refused(changes: dict[str, bytes], message: str) -> None:
    refused(packed({**TEXTS, **changes}), message)


def test_a_missing_member_is_refused() -> None:
    data = packed({name: content for name, content in TEXTS.items() if name != "valid.de"})
    refused(data, r"the archive all \(all\.tgz\) has no member 'valid\.de'")


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_plain_text_with_another_checksum_is_refused(kind: str) -> None:
    data, found = packed(), hashlib.new(kind, b"R&D\na\n").hexdigest()
    data["test"]["source"][kind] = wrong = "ab" * (len(found) // 2)
    where = r"^the archive all \(all\.tgz\): test\.en\.sgm"
    refused(data, f"{where} has the {kind} {found} as plain text where the catalog says {wrong}$")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 7}, "has [0-9]+ bytes where the catalog says 7"),
        ({"sha256": "ab" * 32}, "has the sha256 .* where the catalog says"),
        ({"urls": ["file:gone.tgz"]}, r"file:gone\.tgz is missing"),
    ],
)
def test_archives_that_are_not_as_declared_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(packed(**changes), f"the archive all could not be downloaded: .*{message}")


def test_a_server_that_is_away_is_no_mistake_of_the_users() -> None:
    """What is not refused is tried again by Prefect."""
    configure(packed(urls=["http://127.0.0.1:1/all.tgz", "file:gone.tgz"]))
    with pytest.raises(
        ConnectionError, match=r"the archive all could not be downloaded: .*cannot be reached .*run again to continue"
    ):
        download.run(Tracker())
    assert not Path("data/raw").exists()


def test_a_hostile_archive_is_refused() -> None:
    refused(packed({**TEXTS, "../evil": b"x"}), r"holds '\.\./evil', a path that leads out of its folder")
    assert not Path("../evil").exists()


def test_a_full_disk_is_told_and_what_stood_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(packed())
    download.run(Tracker())
    before = {path.name: path.read_bytes() for path in Path("data/raw").iterdir()}

    def full(*arguments: Any) -> Iterator[bytes]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(download, "plain_chunks", full)
    kept = "make room and run again: what is fetched so far is kept"
    with pytest.raises(InputError, match=f"^No space left on device: the disk of data/raw or of work; {kept}$"):
        download.run(Tracker())
    assert {path.name: path.read_bytes() for path in Path("data/raw").iterdir()} == before
    assert [path.name for path in Path("data").iterdir()] == ["raw"]


INTERRUPTED = """
import signal
from pipeline.common import stage
from pipeline.stages import download
def stop(*arguments):
    raise stage.Interrupted
signal.signal(signal.SIGTERM, stop)
try:
    download.run(None)
except stage.Interrupted:
    raise SystemExit(75)
"""


def test_interrupted_while_a_server_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        configure(packed(urls=[f"http://127.0.0.1:{server.getsockname()[1]}/all.tgz"]))
        process = subprocess.Popen([sys.executable, "-c", INTERRUPTED], env={"PYTHONPATH": str(ROOT)})
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 75
            assert time.monotonic() - started < 30
    assert not Path("data/raw").exists()


@pytest.fixture(scope="module")
def mirror(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A small WMT14 with real text, made and served: its folder and address."""
    if not (SHARED / "real").exists():
        pytest.skip("../shared has no real text here")
    folder = tmp_path_factory.mktemp("mirror")
    write(folder, real_lines(SHARED / "real"))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    with serving(folder, Quiet) as address:
        yield folder, address


@pytest.mark.parametrize(
    ("base", "pair", "pairs"),
    [
        ("wmt14", "en-de", {"europarl-v7": 20_000, "commoncrawl": 198_813, "news-commentary-v9": 13_071}),
        ("wmt16-t2t", "en-de", {"europarl-v7": 20_000, "commoncrawl": 198_813, "news-commentary-v11": 13_071}),
        (
            "wmt14",
            "en-fr",
            {
                "europarl-v7": 29_000,
                "commoncrawl": 71_393,
                "news-commentary-v9": 13_071,
                "un": 71_394,
                "giga-fren": 30_000,
            },
        ),
    ],
)
def test_a_mirror_of_wmt14(mirror: tuple[Path, str], base: str, pair: str, pairs: dict[str, int]) -> None:
    folder, address = mirror
    Path("data/catalog").mkdir(parents=True)
    for name in ("wmt14", "wmt16-t2t"):
        Path(f"data/catalog/{name}.yaml").write_bytes((ROOT / f"data/catalog/{name}.yaml").read_bytes())
    content = {"description": "m", "extends": base, "base_url": address, "checksums": str(folder / "SHA256SUMS")}
    Path("data/catalog/m.yaml").write_text(yaml.safe_dump(content))
    configure(catalogs.data_settings(catalogs.load("m"), pair).model_dump())
    download.run(Tracker())
    stats = json.loads(Path("data/raw/stats.json").read_text())
    assert stats["pairs"] == {
        **{f"train.{name}": count for name, count in pairs.items()},
        "valid.newstest2013": 3000,
        "test.newstest2014": 3003,
    }
    originals = catalogs.load("wmt14").pairs["en-de" if pair == "en-de" else "en-fr"]
    for text, stem in ((originals.valid, "valid.newstest2013"), (originals.test, "test.newstest2014")):
        for side, language in ((text.source, "en"), (text.target, pair[-2:])):
            # The mirror's validation and test sets are the real ones, so their checksums on record hold.
            assert side.md5 in (None, stats["files"][f"{stem}.{language}"]["md5"])
            real = (SHARED / f"real/newstest/{stem.split('.')[1]}.{pair}.{language}").read_bytes()
            assert Path(f"data/raw/{stem}.{language}").read_bytes() == real


@pytest.mark.parametrize("ending", ["mrg", "ptb"])
def test_a_treebank_becomes_sentences_and_trees_whatever_its_name(ending: str) -> None:
    bank = b"( (S (NP-SBJ (PRP He)) (VP (VBD ran) (NP (-NONE- *T*-1)))) )\n(NP (DT a) (NN dog))\n"
    data = packed({f"{role}.{ending}": bank for role in ("train", "valid", "test")}) | {"target": "tree"}
    for role in ("train", "valid", "test"):
        side = {"archive": "all", "member": f"{role}.{ending}"}
        text = {"name": role, "source": side, "target": side}
        data[role] = [text] if role == "train" else text
    configure(data)
    tracker = Tracker()
    download.run(tracker)
    assert Path("data/raw/train.train.en").read_text() == "He ran\na dog\n"
    assert Path("data/raw/train.train.tree").read_text() == "(S (NP (PRP He)) (VP (VBD ran)))\n(NP (DT a) (NN dog))\n"
    stats = json.loads(Path("data/raw/stats.json").read_text())
    assert stats["files"]["test.test.tree"]["lines"] == 2
    assert stats["removed"]["valid.valid"]["traces"] == 1
