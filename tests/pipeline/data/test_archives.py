import gzip
import random
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from clones import tarball
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refusal

from nmt.errors import InputError
from pipeline.data.archives import BROKEN, is_archive, members, plain, segments

TEXT = "Grüße aus Köln\nzweite \r Zeile\n".encode()


def tar(path: Path, *entries: tuple[str, bytes], mode: str = "w:gz") -> Path:
    path.write_bytes(tarball(dict(entries), mode))
    return path


def zipped(path: Path, *entries: tuple[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in entries:
            out.writestr(name, content)
    return path


def read(path: Path, *names: str) -> dict[str, bytes]:
    return {name: plain(stream, name).read() for name, stream in members(path, names)}


@pytest.mark.parametrize("mode", ["w:gz", "w:"])
def test_only_the_wanted_members_of_a_tar_in_its_order(tmp_path: Path, mode: str) -> None:
    long = "/".join(["folder" * 10] * 8)
    content = [("x/b.de", TEXT), ("other", b"no"), ("./x/a.en", b"A" * 3_000_000), (long, TEXT)]
    path = tar(tmp_path / "a", *content, mode=mode)
    assert is_archive(path)
    members_read = list(read(path, "x/a.en", "x/b.de", long).items())
    assert members_read == [("x/b.de", TEXT), ("x/a.en", b"A" * 3_000_000), (long, TEXT)]
    assert [name for name, _ in members(path, ["x/a.en", "x/b.de"])] == ["x/b.de", "x/a.en"], "left unread"


def test_zip_gz_and_sgm(tmp_path: Path) -> None:
    sgm = b'<refset>\n<seg id="1">A &amp; B</seg>\n<seg id="2"> C </seg></refset>'
    parts = gzip.compress(TEXT[:9]) + gzip.compress(TEXT[9:])
    content = [("x/a.gz", parts), ("b.sgm", sgm), ("b.sgm.gz", gzip.compress(sgm)), ("other", b"no")]
    for path in (zipped(tmp_path / "a.zip", *content), tar(tmp_path / "a.tgz", *content)):
        assert is_archive(path)
        members_read = read(path, "x/a.gz", "b.sgm", "b.sgm.gz")
        assert members_read == {"x/a.gz": TEXT, "b.sgm": b"A & B\nC\n", "b.sgm.gz": b"A & B\nC\n"}


def test_a_tar_that_ends_with_a_zip_is_a_tar(tmp_path: Path) -> None:
    inner = zipped(tmp_path / "z", ("a", b"inside")).read_bytes()
    path = tar(tmp_path / "a", ("a", TEXT), ("z.zip", inner), mode="w:")
    assert zipfile.is_zipfile(path), "it looks like one from its end"
    assert read(path, "a") == {"a": TEXT}


def test_a_missing_member_is_named_and_a_link_is_none(tmp_path: Path) -> None:
    link = tarfile.TarInfo("b")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tar(tmp_path / "a", ("a", TEXT), mode="w:"), "a") as archive:
        archive.addfile(link)
    for path in (tmp_path / "a", zipped(tmp_path / "z", ("a", TEXT))):
        check_refusal("", read, path, "a", "b")


def test_members_of_any_size_stream(tmp_path: Path) -> None:
    line = random.Random(1).randbytes(50_000).hex().encode() + b"\n"
    path = tar(tmp_path / "a", ("a.gz", gzip.compress(line * 60, 1)), ("b", line * 60))
    tracemalloc.start()
    try:
        for name, stream in members(path, ["a.gz", "b"]):
            text = plain(stream, name)
            assert sum(map(len, iter(lambda text=text: text.read(1 << 20), b""))) == len(line) * 60
        assert tracemalloc.get_traced_memory()[1] < 5_000_000  # Of 6 million bytes each.
    finally:
        tracemalloc.stop()


def test_what_is_no_archive(tmp_path: Path) -> None:
    for content in (b"", b"<html>", b"x" * 2000):
        (tmp_path / "a").write_bytes(content)
        assert not is_archive(tmp_path / "a")
        with pytest.raises(BROKEN):
            read(tmp_path / "a", "a")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["w:", "w:gz", "zip"])
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_cut_is_read_or_told(tmp_path_factory: pytest.TempPathFactory, kind: str, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / f"cut.{kind}"
    content = [("a", random.Random(1).randbytes(3000)), ("b.gz", gzip.compress(TEXT * 20, mtime=0))]
    whole = (zipped(path, *content) if kind == "zip" else tar(path, *content, mode=kind)).read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        members_read = read(path, "a", "b.gz")
    except (InputError, *BROKEN):
        return
    assert members_read == {"a": content[0][1], "b.gz": TEXT * 20}


def test_a_changed_byte_of_a_tgz_is_told(tmp_path: Path) -> None:
    """Of a member that is not compressed further: only gzip's checksum, at the end, tells."""
    path = tar(tmp_path / "a.tgz", ("a", random.Random(1).randbytes(9000)), mode="w:gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(BROKEN):
        read(path, "a")


def test_segments() -> None:
    content = (
        b'\xef\xbb\xbf<srcset setid="x" srclang="any">\r\n<DOC docid="d">\n<hl>\n<seg id="1">Title</seg>\n</hl>\n<p>\n'
        b'<seg id="2"> AT&amp;T &lt;b&gt; &quot;x&quot; &apos;&#233;&#x2019; R&D &amp;lt; &nosuch; &lt5 </seg>\n'
        b'<SEG ID="3">two\r\nlines\n and  \t\ra return</SEG><seg></seg>\n<segment>none</segment></p></DOC></srcset>'
    )
    second = 'AT&T <b> "x" \'é\u2019 R&D &lt; &nosuch; &lt5'
    assert segments(content, "a.sgm") == ["Title", second, "two lines and \ra return", ""]
    assert segments(b"<seg>&eacute; &#xD800; &#x10000;</seg>", "a.sgm") == ["\xe9 \ufffd \U00010000"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.sgm holds no <seg>"),
        (b"<seg id='1'>a</seg>\n<seg id='2'>open\n</doc>", "a.sgm is cut: segment 2 does not end"),
        (b"<seg>a<seg>b</seg></seg>", "a.sgm is cut: segment 1 does not end"),
        (b"<seg>\n\xff</seg>", "a.sgm, line 2: the byte 0xff at offset 6 is not valid UTF-8"),
    ],
)
def test_what_is_no_sgm(content: bytes, message: str) -> None:
    check_refusal(f"^{message}", segments, content, "a.sgm")
