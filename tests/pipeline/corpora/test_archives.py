"""Members out of good, broken and hostile archives."""

from __future__ import annotations

import gzip
import io
import random
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.corpora import archives
from pipeline.corpora.archives import Malformed, members, plain_chunks

TEXT = "Grüße aus Köln\nzweite \r Zeile\n".encode()
Change = Callable[[tarfile.TarInfo], None]


def tar(path: Path, *entries: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as out:
        for entry in entries:
            if isinstance(entry, tarfile.TarInfo):
                out.addfile(entry)
            else:
                info = tarfile.TarInfo(entry[0])
                info.size = len(entry[1])
                out.addfile(info, io.BytesIO(entry[1]))
    return path


def zipped(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in entries:
            out.writestr(name, content)
    return path


def special(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def read(path: Path, *names: str) -> dict[str, bytes]:
    return {member.name: b"".join(plain_chunks(member, member.name)) for member in members(path, names)}


@pytest.mark.parametrize("mode", ["w:gz", "w:"])
def test_only_the_wanted_members_of_a_tar_in_its_order(tmp_path: Path, mode: str) -> None:
    path = tar(tmp_path / "a", ("x/b.de", TEXT), ("other", b"no"), ("./x/a.en", b"A" * 3_000_000), mode=mode)
    found = list(read(path, "x/a.en", "x/b.de").items())
    assert found == [("x/b.de", TEXT), ("x/a.en", b"A" * 3_000_000)]


def test_members_may_be_left_unread(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", ("a", b"x" * 5000), ("b", TEXT))
    assert [member.name for member in members(path, ["a", "b"])] == ["a", "b"]


def test_zip(tmp_path: Path) -> None:
    path = zipped(tmp_path / "a.zip", ("x/b.de", TEXT), ("other", b"no"))
    assert read(path, "x/b.de") == {"x/b.de": TEXT}


def test_gz_and_sgm_inside(tmp_path: Path) -> None:
    sgm = b'<refset>\n<seg id="1">A &amp; B</seg>\n<seg id="2"> C </seg></refset>'
    path = tar(tmp_path / "a", ("a.gz", gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])), ("b.sgm", sgm))
    assert read(path, "a.gz", "b.sgm") == {"a.gz": TEXT, "b.sgm": b"A & B\nC\n"}


def test_long_names_are_read(tmp_path: Path) -> None:
    name = "/".join(["folder" * 10] * 8)
    assert read(tar(tmp_path / "a", (name, TEXT)), name) == {name: TEXT}


def test_a_missing_member_is_named(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="has no member 'b'"):
        read(tar(tmp_path / "a", ("a", TEXT)), "a", "b")
    with pytest.raises(Malformed, match="has no member 'b'"):
        read(zipped(tmp_path / "z", ("a", TEXT)), "b")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("../out", b"x"), r"'\.\./out', a path that leads out"),
        (("/etc/passwd", b"x"), "'/etc/passwd', a path that leads out"),
        (("a/../../out", b"x"), "a path that leads out"),
        (special("link", tarfile.SYMTYPE, "/etc/passwd"), "'link', a link or path that leads out"),
        (special("link", tarfile.SYMTYPE, "../../etc"), "'link', a link or path that leads out"),
        (special("link", tarfile.LNKTYPE, "../etc"), "'link', a link or path that leads out"),
        (special("null", tarfile.CHRTYPE), "'null', a device or pipe"),
        (special("disk", tarfile.BLKTYPE), "'disk', a device or pipe"),
        (special("pipe", tarfile.FIFOTYPE), "'pipe', a device or pipe"),
        (special("text", tarfile.SYMTYPE, "good"), "'text' as a link"),
        (special("text", tarfile.LNKTYPE, "good"), "'text' as a link"),
        (special("text", tarfile.DIRTYPE), "'text' as a link, a folder"),
        (("good", b"again"), "'good' twice"),
        (("./good", b"again"), "'good' twice"),
    ],
)
def test_hostile_tars_are_refused(tmp_path: Path, entry: tuple[str, bytes] | tarfile.TarInfo, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(tar(tmp_path / "a", ("good", TEXT), entry), "good", "text")


def symlink() -> zipfile.ZipInfo:
    info = zipfile.ZipInfo("text")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (("../out", b"x"), "a path that leads out"),
        (("..\\out", b"x"), "a path that leads out"),
        (("C:/out", b"x"), "a path that leads out"),
        ((symlink(), b"good"), "'text', a link, device or pipe"),
        (("text/", b""), "'text' as a folder"),
        (("good", b"again"), "'good' twice"),
    ],
)
def test_hostile_zips_are_refused(tmp_path: Path, entry: tuple[str | zipfile.ZipInfo, bytes], message: str) -> None:
    with pytest.raises(Malformed, match=message):
        read(zipped(tmp_path / "z", ("good", TEXT), entry), "good", "text")


@pytest.fixture
def small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "ALLOWANCE", 1 << 20)


@pytest.mark.usefixtures("small_allowance")
@pytest.mark.parametrize("name", ["bomb", "small"])
def test_bombs_are_refused_wanted_or_not(tmp_path: Path, name: str) -> None:
    bomb = ("bomb", bytes(20_000_000))
    message = "unpacks to more than .* bytes, over 100 times its size"
    with pytest.raises(Malformed, match=message):
        read(tar(tmp_path / "a", bomb, ("small", TEXT)), name)
    with pytest.raises(Malformed, match=message):
        read(zipped(tmp_path / "z", bomb, ("small", TEXT)), name)


@pytest.mark.usefixtures("small_allowance")
def test_a_bomb_inside_a_gz_is_refused(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", ("a.gz", gzip.compress(bytes(20_000_000))), mode="w:")
    with pytest.raises(Malformed, match="unpacks to over 100 times its size"):
        read(path, "a.gz")


def test_a_zip_that_lies_about_a_size_is_refused(tmp_path: Path) -> None:
    content = bytearray(zipped(tmp_path / "z", ("a", b"x" * 1000)).read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = (10).to_bytes(4, "little")
    (tmp_path / "z").write_bytes(content)
    with pytest.raises(Malformed, match="is broken"):
        read(tmp_path / "z", "a")


def test_text_that_repeats_is_no_bomb(tmp_path: Path) -> None:
    lines = b"the same line\n" * 1_000_000
    assert read(tar(tmp_path / "a", ("a", lines)), "a") == {"a": lines}


def raw_header(name: bytes, size: bytes, kind: bytes) -> bytes:
    """A tar header as hostile hands write it."""
    header = bytearray(512)
    header[: len(name)] = name
    header[100:108] = b"0000644\0"
    header[124:136] = size
    header[156:157] = kind
    header[257:265] = b"ustar\x0000"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("kind", [b"0", b"x", b"L", b"g", b"5", b"S"])
def test_negative_sizes_do_not_turn_in_a_circle(tmp_path: Path, kind: bytes) -> None:
    negative = (-512).to_bytes(12, "big", signed=True)
    path = tmp_path / "a"
    path.write_bytes(raw_header(b"good", b"00000000000\0", b"0") + raw_header(b"bad", negative, kind) + bytes(1024))
    with pytest.raises(Malformed):
        read(path, "text")


@pytest.mark.parametrize("kind", [b"x", b"L", b"g"])
def test_huge_headers_are_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    path = tmp_path / "a"
    size = 50_000_000
    path.write_bytes(raw_header(b"good", b"00000000000\0", b"0") + raw_header(b"bad", b"%011o\0" % size, kind))
    with path.open("r+b") as file:
        file.truncate(size + 2048)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match=r"is broken \(a header of 50,\d+,\d+ bytes\)"):
            read(path, "text")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_many_headers_in_a_row_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes((raw_header(b"x", b"00000001000\0", b"L") + b"n" * 512) * 2000)
    with pytest.raises(Malformed):
        read(path, "text")


def test_members_of_any_size_stream(tmp_path: Path) -> None:
    path = tmp_path / "a"
    line = random.Random(1).randbytes(50_000).hex().encode() + b"\n"
    tar(path, ("a.gz", gzip.compress(line * 150, 1)), ("b", line * 150))
    tracemalloc.start()
    try:
        sizes = {
            member.name: sum(map(len, plain_chunks(member, member.name))) for member in members(path, ["a.gz", "b"])
        }
        assert sizes == {"a.gz": len(line) * 150, "b": len(line) * 150}
        assert tracemalloc.get_traced_memory()[1] < 8_000_000  # Of 15 million bytes each.
    finally:
        tracemalloc.stop()


def test_what_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"<html>", b"x" * 2000, bytes(2000)):
        (tmp_path / "a").write_bytes(content)
        assert not archives.is_archive(tmp_path / "a")
        with pytest.raises(Malformed, match=r"is neither \.tgz nor \.tar nor \.zip"):
            read(tmp_path / "a", "a")
    (tmp_path / "a").write_bytes(gzip.compress(TEXT))
    with pytest.raises(Malformed, match="is broken"):
        read(tmp_path / "a", "a")


@pytest.mark.parametrize("mode", ["w:gz", "w:"])
def test_a_cut_tar_is_broken(tmp_path: Path, mode: str) -> None:
    path = tar(tmp_path / "a", ("a", random.Random(1).randbytes(100_000)), mode=mode)
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(Malformed, match=r"is broken|ends inside the member 'a'"):
        read(path, "a")


def test_a_cut_gz_inside_is_broken(tmp_path: Path) -> None:
    path = tar(tmp_path / "a", ("a.gz", gzip.compress(random.Random(1).randbytes(10_000))[:-9]))
    with pytest.raises(Malformed, match="is broken"):
        read(path, "a.gz")


def good(kind: str) -> bytes:
    """A small archive of each kind."""
    out = io.BytesIO()
    inner = gzip.compress(TEXT * 20, mtime=0)
    if kind == "zip":
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("a", TEXT * 20)
            packed.writestr("b.gz", inner)
    else:
        with tarfile.open(fileobj=out, mode=kind) as packed_tar:
            for name, content in (("a", TEXT * 20), ("b.gz", inner), ("l" * 150, b"long")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                packed_tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["w:", "w:gz", "zip"])
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_fuzzed_archives_are_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject
) -> None:
    content = bytearray(good(kind))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "fuzzed"
    path.write_bytes(content)
    try:
        found = read(path, "a", "b.gz")
    except Malformed:
        return
    assert set(found) == {"a", "b.gz"}
