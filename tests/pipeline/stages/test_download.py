"""The download stage: texts laid out from archives and local files, and refusals that leave nothing behind."""

import contextlib
import gzip
import hashlib
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from clones import REAL, ROOT, needs_real, tarball
from data_stages import check_full_disk, configure
from refusals import check_refusal

from nmt.common.files import sha256_of
from pipeline.config import catalogs
from pipeline.config.corpora import DataSettings, Pair
from pipeline.data import fetch
from pipeline.stages import download

MULTI30K = REAL / "multi30k"
SIDES = (("source", "en"), ("target", "de"))
TEXTS = {
    "train.en": b"One\nTwo \r too\n", "train.de": "Eins\nZwei\u2028auch\n".encode(),
    "valid.en": b"valid\n", "valid.de": b"gilt\n",
    "test.en.sgm": b'<srcset><seg id="1">R&amp;D</seg><seg id="2">a</seg></srcset>',
    "test.de.sgm": b'<refset><seg id="1">F&amp;E</seg><seg id="2">b</seg></refset>',
}  # fmt: skip


@pytest.fixture(autouse=True)
def repository(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)


def packed(texts: Mapping[str, bytes] = TEXTS, md5: str | None = None, **changes: Any) -> dict[str, Any]:
    """Write all.tgz; the data section that takes every text from it."""
    content = tarball(texts)
    Path("all.tgz").write_bytes(content)

    def text(role: str, suffix: str = "") -> dict[str, Any]:
        sides = {side: {"archive": "all", "member": f"{role}.{lang}{suffix}"} for side, lang in SIDES}
        return {"name": role, **sides}

    entry = {"name": "all", "urls": ["file:all.tgz"], "md5": None, "licence": "none", "source": "here"}
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    data = {"source": "en", "target": "de", "archives": [{**entry, **changes}], "train": [text("train")]}
    data |= {"valid": text("valid"), "test": text("test", ".sgm")}
    data["test"]["source"]["md5"] = md5
    return data


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
    download.run()
    raw = {path.name: path.read_bytes() for path in Path("data/raw").iterdir()}
    stats = json.loads(raw.pop("stats.json"))
    plain = {f"{name.split('.')[0]}.{name}": text for name, text in TEXTS.items() if not name.endswith(".sgm")}
    assert raw == plain | {"test.test.en": b"R&D\na\n", "test.test.de": b"F&E\nb\n"}
    assert stats["pairs"] == {"train.train": 2, "valid.valid": 1, "test.test": 2}
    sums = {kind: hashlib.new(kind, b"F&E\nb\n").hexdigest() for kind in ("sha256", "md5")}
    assert stats["files"]["test.test.de"] == {"lines": 2, "bytes": 6, **sums}
    assert list(stats["files"]) == [f"{text}.{side}" for text in stats["pairs"] for side in ("en", "de")]
    check_full_disk(download.run)


def test_one_member_may_serve_two_texts_and_texts_may_come_from_several_archives() -> None:
    data = packed()
    data["archives"].append({**data["archives"][0], "name": "more"})
    data["train"].append({**data["train"][0], "name": "again"})
    data["valid"] = {side: {**data["valid"][side], "archive": "more"} for side in ("source", "target")}
    data["valid"]["name"] = "valid"
    configure(data)
    download.run()
    stats = json.loads(Path("data/raw/stats.json").read_text())
    assert stats["pairs"] == {"train.train": 2, "train.again": 2, "valid.valid": 1, "test.test": 2}
    assert stats["files"]["train.again.de"] == stats["files"]["train.train.de"]
    assert Path("data/raw/train.again.de").read_bytes() == TEXTS["train.de"]
    assert Path("data/raw/valid.valid.de").read_bytes() == TEXTS["valid.de"]


def test_local_files_are_copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = packed()
    data["train"].append(local("train", (b"a\nb\n", b"A\nB")))
    configure(data)
    download.run()
    assert Path("data/raw/train.x-train.de").read_bytes() == b"A\nB"
    # A copy of the repository, as DVC's experiments make it, has no ignored files: they are the original's.
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("WMT_STATE", str(tmp_path / "work"))
    Path("copy").mkdir()
    monkeypatch.chdir("copy")
    Path("all.tgz").write_bytes((tmp_path / "all.tgz").read_bytes())
    configure(data)
    download.run()
    assert Path("data/raw/train.x-train.de").read_bytes() == b"A\nB"
    gone = str(tmp_path / "gone.de")
    data["train"][-1]["target"]["path"] = gone
    configure(data)
    check_refusal(f"^{re.escape(gone)} is missing: restore it, or make it as its catalog", download.run)


def refused(data: dict[str, Any], message: str) -> None:
    """Running on `data` raises one sentence and leaves no data/raw, not even a half one."""
    configure(data)
    check_refusal(message, download.run)
    assert not Path("data/raw").exists()
    assert not list(Path("data").glob(".raw*")) if Path("data").exists() else True


def test_local_files_that_are_not_as_added_are_refused() -> None:
    data = packed()
    data["test"] = local("test", (b"a\n", b"b\n"))
    Path("data/local/x/test.de").write_bytes(b"c\n")
    refused(data, r"^data/local/x/test\.de has the sha256 .* it was edited; restore it, or correct it in its")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.de": b"Eins\n"}, r"train\.en of the archive all has 2 lines and train\.de of the archive all 1"),
        ({"train.de": b"", "train.en": b""}, r"^train\.en of .* and train\.de of .* are empty: train "),
        ({"valid.de": b"a\xc3\xa9" * 500_000 + b"\ngi\xfct\n"}, r"^valid\.de .*, line 2: the byte 0xfc at offset 1500"),
        # No member is written under its own name, here or elsewhere.
        ({"valid.de": None, "../valid.de": b"gilt\n"}, r"all\.tgz has no file 'valid\.de': correct the catalog"),
    ],
)
def test_texts_that_are_none_are_refused(changes: dict[str, bytes | None], message: str) -> None:
    texts = {name: content for name, content in {**TEXTS, **changes}.items() if content is not None}
    refused(packed(texts), message)
    assert not Path("../valid.de").exists()


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_plain_text_with_another_checksum_is_refused(kind: str) -> None:
    data, checksum = packed(), hashlib.new(kind, b"R&D\na\n").hexdigest()
    data["test"]["source"][kind] = wrong = "ab" * (len(checksum) // 2)
    where = r"^test\.en\.sgm of the archive all"
    refused(data, f"{where} has the {kind} {checksum} as plain text, not the catalog's {wrong}$")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bytes": 7}, "has the bytes [0-9]+, not 7 as in the catalog"),
        ({"sha256": "ab" * 32}, "has the sha256 .*, not abab.* as in the catalog"),
        ({"urls": ["file:gone.tgz"]}, r"file:gone\.tgz is missing"),
    ],
)
def test_archives_that_are_not_as_declared_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(packed(**changes), f"the archive all could not be downloaded: .*{message}")


def test_a_broken_archive_is_refused() -> None:
    data = packed()
    content = Path("all.tgz").read_bytes()[:-60]
    Path("all.tgz").write_bytes(content)
    data["archives"][0] |= {"bytes": None, "sha256": None}
    refused(data, r"^all\.tgz is broken \(.*\): remove it, and run again to fetch it anew$")


def test_interrupted_while_a_server_is_silent() -> None:
    Path("dvc.yaml").symlink_to(ROOT / "dvc.yaml")
    with socket.create_server(("127.0.0.1", 0)) as server:
        configure(packed(urls=[f"http://127.0.0.1:{server.getsockname()[1]}/all.tgz"]))
        process = subprocess.Popen([sys.executable, "-m", "pipeline", "download"], env={"PYTHONPATH": str(ROOT)})
        connection, _ = server.accept()
        with connection:
            connection.recv(4096)
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 75
            assert time.monotonic() - started < 30
    assert not Path("data/raw").exists()


def shipped(name: str, pair: Pair) -> tuple[list[str], dict[str, Any]]:
    """The pairs of a catalog of this repository, and the section `data` of one of them."""
    with contextlib.chdir(ROOT):
        catalog = catalogs.load(name)
        return sorted(catalog.pairs), catalogs.data_settings(catalog, pair).model_dump()


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=needs_real)])
def test_multi30k_comes_by_one_command(real: bool) -> None:
    """Each address of the catalog has one packed file."""
    pairs, content = shipped("multi30k", "cs-en")
    assert pairs == ["cs-en", "de-en", "en-cs", "en-de", "en-fr", "fr-en"]
    for archive in content["archives"]:
        name = archive["urls"][0].rpartition("/")[2]
        archive["urls"] = [f"file:{name}"]
        if real and (MULTI30K / name).exists():  # with the catalog's own checksum
            shutil.copy(MULTI30K / name, name)
            continue
        plain = MULTI30K / name.removesuffix(".gz").replace("val.", "valid.").replace("_2016_flickr", "2016")
        packed = gzip.compress(plain.read_bytes() if real else b"a\n")
        Path(name).write_bytes(packed)
        archive |= {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    configure(content)
    download.run()
    counted = json.loads(Path("data/raw/stats.json").read_text())["pairs"]
    assert list(counted.values()) == ([29_000, 1014, 1000] if real else [1, 1, 1])


def test_iwslt14_comes_from_fairseqs_archive() -> None:
    """Here an archive in miniature, with the original's members; its checksum is not known."""
    pairs, content = shipped("iwslt14", "en-de")
    assert pairs == ["de-en", "en-de"]
    archive = content["archives"][0]
    assert (archive["bytes"], archive["sha256"], archive["md5"]) == (19_982_877, None, None)
    members = {}
    for language in ("de", "en"):
        about = f"<url>http://ted/{language}</url>\n<keywords>talks, talkid</keywords>\n<talkid>7</talkid>\n"
        titles = f"<title>T {language}</title>\n<description>D {language}</description>\n"
        members[f"de-en/train.tags.de-en.{language}"] = f"{about}{titles}\na <url {language}\nA url.\n{about}".encode()
        for name in ("dev2010", "tst2012"):
            seg = f'<description>no</description>\n<seg id="1"> {name} &amp; {language} </seg>\n'
            members[f"de-en/IWSLT14.TED.{name}.de-en.{language}.xml"] = seg.encode()
    for text, lines in ((content["train"][0], 4), (content["valid"], 1), (content["test"], 1)):
        assert text["source"]["lines"] == text["target"]["lines"] > 800
        text["source"]["lines"] = text["target"]["lines"] = lines
    Path("de-en.tgz").write_bytes(tarball(members))
    archive |= {"urls": ["file:de-en.tgz"], "bytes": Path("de-en.tgz").stat().st_size}
    configure(content)
    download.run()
    raw = {path.name: path.read_text() for path in Path("data/raw").iterdir()}
    assert raw["train.ted.en"] == "T en\nD en\n\nA url.\n"
    assert raw["valid.dev2010.de"] == "dev2010 & de\n"
    assert raw["test.tst2012.en"] == "tst2012 & en\n"


BANK = "( (S (NP-SBJ (NNP Ann)) (VP (VBZ runs) (NP (-NONE- *))) (. .)) )\n(S (NP (-NONE- *)))\n(TOP (NP (NN dog)))\n"


def treebank(member: dict[str, Any], target: dict[str, Any] | None = None) -> DataSettings:
    text = {"source": member, "target": target or member}
    texts = {"train": [{"name": "t", **text}], "valid": {"name": "v", **text}, "test": {"name": "e", **text}}
    archive = {"name": "a.tgz", "urls": ["http://h/a.tgz"], "licence": "", "source": ""}
    checks = {"bytes": None, "sha256": None, "md5": None}
    return DataSettings.model_validate({"source": "en", "target": "tree", "archives": [{**archive, **checks}], **texts})


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    (tmp_path / "raw").mkdir()
    (tmp_path / "bank.mrg").write_text(BANK, encoding="utf-8")
    return tmp_path / "bank.mrg"


def test_words_and_normalised_trees_stand_line_by_line(tmp_path: Path, bank: Path) -> None:
    (tmp_path / "a.tgz").write_bytes(tarball({"x/bank.ptb": bank.read_bytes()}))
    raw = tmp_path / "raw"
    settings = treebank({"archive": "a.tgz", "member": "x/bank.ptb"})
    stats = download.unpack(settings, {"a.tgz": tmp_path / "a.tgz"}, raw)
    assert stats["pairs"] == {"train.t": 2, "valid.v": 2, "test.e": 2}
    of_traces = {"traces": 2, "constituents of traces alone": 3, "trees of traces alone": 1}
    assert stats["removed"]["train.t"] == {**of_traces, "function tags": 1, "outer labels": 1}
    trees = (raw / "valid.v.tree").read_text(encoding="utf-8")
    assert trees == "(S (NP (NNP Ann)) (VP (VBZ runs)) (. .))\n(NP (NN dog))\n"
    assert (raw / "test.e.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    assert stats["files"]["test.e.en"]["bytes"] == (raw / "test.e.en").stat().st_size
    assert json.dumps(stats)


@pytest.mark.parametrize("checked", ["by its lines", "by lines and sha256", "by sha256 and lines"])
def test_a_local_treebank_is_held_to_its_number_of_trees(tmp_path: Path, bank: Path, checked: str) -> None:
    """It is one file, whatever checks its two sides have."""
    sha256 = {"path": str(bank), "sha256": sha256_of(bank)}

    def settings(lines: int) -> DataSettings:
        counted = {"path": str(bank), "lines": lines}
        pairs = {"by lines and sha256": (counted, sha256), "by sha256 and lines": (sha256, counted)}
        return treebank(*pairs.get(checked, (counted,)))

    assert download.unpack(settings(2), {}, tmp_path / "raw")["pairs"]["train.t"] == 2
    assert (tmp_path / "raw/train.t.en").read_text(encoding="utf-8") == "Ann runs .\ndog\n"
    said = "bank.mrg has 2 segments where the catalog says 39,832: make it again"
    check_refusal(said, download.unpack, settings(39_832), {}, tmp_path / "raw")
    bank.unlink()
    check_refusal("", download.unpack, settings(2), {}, tmp_path / "raw")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.mrg.gz", gzip.compress(BANK.encode(), mtime=0)[:-9], r"cut.mrg.gz is broken \(.*\): make it again"),
        ("open.mrg", f"{BANK}(S (NN dog)\n".encode(), "open.mrg, line 4: the tree that begins on line 4 lacks 1 of"),
    ],
)
def test_what_is_no_treebank_is_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    check_refusal(message, download.unpack, treebank({"path": str(tmp_path / name), "lines": 2}), {}, tmp_path)
