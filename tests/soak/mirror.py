"""A small mirror of WMT14 for tests: archives with the originals' names, formats and members, and other text."""

import contextlib
import gzip
import hashlib
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from clones import ROOT, tarball

from pipeline.config import catalogs
from pipeline.config.corpora import Pair, sides

Lines = Callable[[str, str, str], list[str]]  # (name of a text in the catalog, pair, language) -> its lines


def write(folder: Path, lines: Lines) -> None:
    """Write the archives of the catalog wmt14."""
    # Archives hold members of other language pairs too.
    archives: dict[str, dict[str, bytes]] = {
        "wmt13/training-parallel-europarl-v7.tgz": {"training/europarl-v7.cs-en.cs": "Jiný jazyk.\n".encode()}
    }
    with contextlib.chdir(ROOT):
        content = catalogs.load("wmt14")
    for pair, entry in content.pairs.items():
        for text in (*entry.train, entry.valid, *entry.test):
            for side, language in zip((text.source, text.target), sides(pair), strict=True):
                path = urlsplit(content.archives[str(side.archive)].urls[0]).path.lstrip("/")
                archives.setdefault(path, {})[side.member] = _packed(side.member, lines(text.name, pair, language))
    for path, members in archives.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(tarball(members, "w:gz" if path.endswith(".tgz") else "w:"))


def data(folder: Path, address: str, pair: Pair) -> dict[str, Any]:
    """The section `data` of the catalog, with this mirror's archives in place of the originals."""
    with contextlib.chdir(ROOT):
        content = catalogs.data_settings(catalogs.load("wmt14"), pair).model_dump()
    for archive in content["archives"]:
        path = urlsplit(archive["urls"][0]).path.lstrip("/")
        packed = (folder / path).read_bytes()
        sha256 = hashlib.sha256(packed).hexdigest()
        archive |= {"urls": [address + path], "bytes": len(packed), "sha256": sha256, "md5": None}
    for text in (*content["train"], content["valid"], content["test"]):
        for side in (text["source"], text["target"]):
            side |= {"sha256": None, "md5": None}
    return content


def _packed(member: str, lines: list[str]) -> bytes:
    """Return the lines in the format of the member's name. As in the original, News Commentary 9 holds \\r in lines."""
    if "news-commentary-v9" in member:
        lines = [line.replace(" ", " \r", 1) if number % 997 == 0 else line for number, line in enumerate(lines)]
    if member.endswith(".sgm"):
        tag = "srcset" if "-src." in member else "refset"
        segments = [f'<seg id="{number}">{escape(line, quote=False)}</seg>' for number, line in enumerate(lines, 1)]
        lines = [f'<{tag} setid="newstest2014" srclang="any">', '<doc docid="1">', *segments, "</doc>", f"</{tag}>"]
    content = "".join(f"{line}\n" for line in lines).encode()
    return gzip.compress(content, mtime=0) if member.endswith(".gz") else content
