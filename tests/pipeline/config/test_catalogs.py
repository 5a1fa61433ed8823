"""Catalogs: complete, extending, mirrored, wrong; and the command that adds one."""

import bz2
import gzip
import hashlib
import lzma
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from clones import ROOT
from command_line import printed, refused, warned, wmt
from refusals import check_refusal

from nmt.text.parallel_text import parallel
from pipeline.config import catalogs
from pipeline.config.corpora import Pair
from pipeline.data.user_text import verified

MD5 = "cd" * 16


@pytest.fixture(autouse=True)
def repository(empty_repository: Path) -> Path:
    """It has two of our catalogs."""
    for name in ("wmt14", "wmt16-t2t"):
        shutil.copy(ROOT / f"data/catalog/{name}.yaml", "data/catalog")
    return empty_repository


def small() -> dict[str, Any]:
    def text(name: str, md5: str | None = None) -> dict[str, Any]:
        source, target = ({"archive": "news", "member": f"{name}.{language}"} for language in ("en", "de"))
        return {"name": name, "source": {**source, "md5": md5}, "target": target}

    news = {"urls": ["http://example.org/a/news.tgz"], "md5": MD5}
    return {
        "description": "small",
        "archives": {"news": {**news, "licence": "none", "source": "http://example.org"}},
        "pairs": {"en-de": {"train": [text("train", MD5)], "valid": text("valid"), "test": text("test")}},
    }


SMALL = small()["pairs"]["en-de"]


def write(name: str, content: object) -> None:
    text = content if isinstance(content, str) else yaml.safe_dump(content)
    Path(f"data/catalog/{name}.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize("name", ["wmt14", "wmt16-t2t"])
@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_the_shipped_catalogs_ask_by_https_first(name: str, pair: Pair) -> None:
    data = catalogs.data_settings(catalogs.load(name), pair)
    if pair == "en-fr":
        corpora = {"europarl-v7", "commoncrawl", "un", "news-commentary-v9", "giga-fren"}
        assert {text.name for text in data.train} == corpora
    # What has no checksum must not be anybody's on the way.
    for archive in data.archives:
        assert archive.urls[0].startswith("https:"), archive.name
        assert "http" + archive.urls[0].removeprefix("https") in archive.urls


def test_what_a_catalog_sets_takes_the_place_of_what_it_extends() -> None:
    write("small", small())
    test = {"name": "own", "source": {"path": "a", "lines": 1}, "target": {"path": "b", "lines": 1}}
    urls = ["http://127.0.0.1:8/m/news.tgz"]
    write("copy", {"extends": "small", "archives": {"news": {"urls": urls}}, "pairs": {"en-de": {"test": test}}})
    data = catalogs.data_settings(catalogs.load("copy"), "en-de")
    (archive,) = data.archives
    assert (archive.urls, archive.md5) == (urls, MD5)
    assert data.test[0].model_dump(exclude_none=True) == test
    assert data.train == catalogs.data_settings(catalogs.load("small"), "en-de").train


def changed(path: str, value: object) -> dict[str, Any]:
    """The small catalog with a value at `a.b.0.c` set, or taken away where it is None."""
    content = small()
    at: Any = content
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("- 1", "holds no mapping"),
        ({"extends": "smal"}, "extends `smal`: .*did you mean `small`"),
        ({"extends": "broken"}, "extends `broken`, and so itself; remove"),
        ({"extends": 3}, "extends `3`: .*no such catalog"),
        (changed("pairs.en-de.train.0.sorce", {}), "`pairs.en-de.train.0.sorce`; did you mean `source`"),
        (changed("pairs.en-DE", {}), "pairs.en-DE is 'en-DE'; a pair is two different ISO 639 codes, as `de-en`"),
        (changed("description", None), "`description` is missing: add it$"),
        (changed("archives.news.sha256", "abc"), "archives.news.sha256 is 'abc'; string should match pattern"),
        (changed("archives.news.bytes", 0), "archives.news.bytes is 0; input should be greater than or equal to 1"),
        (changed("archives.news.urls", ["ftp://x/y"]), "urls.0 is 'ftp://x/y'; string should match pattern"),
        (changed("pairs.en-de.train", SMALL["train"] * 2), "two training corpora are called `train`"),
        (changed("pairs.en-de.test", [SMALL["test"]] * 2), "two test sets are called `test`; give each its own name"),
        (changed("pairs.en-de.train", []), "pairs.en-de.train is .*; list should have at least 1 item"),
        (changed("pairs.en-de.train.0.name", "../x"), "train.0.name is '../x'; string should match"),
        (changed("pairs.en-de.test.source.member", None), "give archive and member, or path and sha256"),
        (changed("pairs.en-de.test.source", {"path": "x"}), "give archive and member, or path and sha256"),
        (changed("pairs.en-de.test.source", {"path": "x", "lines": 1, "md5": "0" * 32}), "give archive and member, or"),
        (changed("pairs.en-de.test.source.path", "x"), "give archive and member, or path and sha256"),
    ],
)
def test_wrong_catalogs(content: object, message: str) -> None:
    write("small", small())
    write("broken", content)
    check_refusal(rf"^data/catalog/broken\.yaml.*{message}", catalogs.load, "broken")


@pytest.mark.parametrize("key", ["description", "extends"])
def test_a_value_of_a_billion_parts_is_told_in_a_short_sentence(key: str) -> None:
    """Each level of aliases repeats the one below ten times: in memory it is small, as text it would be gigabytes."""
    levels = [f"- &level{n} [{', '.join([f'*level{n - 1}' if n else 'x'] * 10)}]" for n in range(9)]
    write("small", {})
    Path("data/catalog/broken.yaml").write_text("\n".join([f"{key}:", *(f"  {level}" for level in levels)]))
    assert len(check_refusal("", catalogs.load, "broken")) < 300


def test_unknown_names_are_told_with_the_nearest() -> None:
    write("small", changed("pairs.en-de.test.source.archive", "newz"))
    loaded = catalogs.load("small")
    check_refusal(r"small\.yaml has no pair `en-fr`", catalogs.data_settings, loaded, "en-fr")
    check_refusal(r"archive `newz`, which is unknown; did you mean `news`\?", catalogs.data_settings, loaded, "en-de")


def test_of_many_catalogs_a_message_names_some_and_each_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(100):
        write(f"many{number}", {"extends": "wmt14"})
    counted: list[int] = []
    monkeypatch.setattr(catalogs, "names", lambda names=catalogs.names: counted.append(1) or names())
    assert printed("catalog", "list").count("\n") > 100
    assert len(counted) == 1
    said = check_refusal(r"did you mean `many7`\? valid are .* and 4[0-9] more$", catalogs.load, "manny7")
    assert len(said) < 1000


def test_list_prints_names_and_descriptions_that_a_terminal_does_not_obey(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("catalog", "list").splitlines()
    assert [line.split()[:3] for line in lines] == [["wmt14", "de-en", "en-de"], ["wmt16-t2t", "de-en", "en-de"]]
    assert "News Commentary 11" in lines[1]
    write("escape", {"extends": "wmt14", "description": "\x1b[2Jgone\x9b\u202e"})
    assert "\\x1b[2Jgone\\x9b\\u202e" in printed("catalog", "list")
    write("escape", {"extends": "\x1b[2J", "description": ""})
    assert wmt("catalog", "list") == 1
    told = capsys.readouterr()
    assert "\\x1b[2J" in told.err
    assert "wmt16-t2t" in told.out, "what follows a broken one"


@pytest.fixture
def texts(repository: Path) -> list[str]:
    """The arguments of `add` with three good texts, in a folder outside the repository's data."""
    folder = repository / "elsewhere"
    folder.mkdir()
    arguments = ["add", "mine", "--pair", "en-de"]
    for role in ("train", "valid", "test"):
        (folder / f"{role}.en").write_bytes(f"{role}\r one\nand\u2028{role}\n".encode())
        (folder / f"{role}.de").write_bytes(f"{role} eins\n{role}\n".encode())
        arguments += [f"--{role}", f"elsewhere/{role}.en", f"elsewhere/{role}.de"]
    return arguments


def nothing_written() -> bool:
    return not [*Path("data").glob("local/*")] and "mine" not in catalogs.names()


def test_add_writes_a_catalog_of_links(texts: list[str]) -> None:
    assert warned("catalog", *texts) == ""
    data = catalogs.data_settings(catalogs.load("mine"), "en-de")
    assert yaml.safe_load(Path("data/catalog/mine.yaml").read_text())["pairs"]["en-de"]["test"]["name"] == "mine-test"
    assert data.archives == []
    assert (data.train[0].name, data.valid.name, data.test[0].name) == ("mine-train", "mine-valid", "mine-test")
    for text, role in ((data.train[0], "train"), (data.valid, "valid"), (data.test[0], "test")):
        for side, language in ((text.source, "en"), (text.target, "de")):
            assert side.path == f"data/local/mine/{role}.{language}"
            assert Path(side.path).readlink() == Path.cwd() / f"elsewhere/{role}.{language}"
            assert side.sha256 == hashlib.sha256(Path(side.path).read_bytes()).hexdigest()


def test_add_copies_files_that_may_go(texts: list[str]) -> None:
    assert wmt("catalog", *texts, "--copy") == 0
    shutil.rmtree("elsewhere")
    data = catalogs.data_settings(catalogs.load("mine"), "en-de")
    assert verified(data.train[0].source).read_bytes() == "train\r one\nand\u2028train\n".encode()


def test_add_takes_several_test_sets(texts: list[str]) -> None:
    for name in ("news", "medical", "-x"):
        for language in ("en", "de"):
            Path(f"elsewhere/{name}.{language}").write_text(f"{name}\n")
    Path("elsewhere/medical.de").write_text("train\n")
    several = [*texts[:-3], "--test", "elsewhere/news.en", "elsewhere/news.de"]
    more = ["--test", "elsewhere/medical.en", "elsewhere/medical.de"]
    told = warned("catalog", *several, *more)
    assert "catalog: 1 of 1 different lines for --test medical in de are also in the training text" in told
    assert "--test news" not in told
    data = catalogs.data_settings(catalogs.load("mine"), "en-de")
    assert [text.name for text in data.test] == ["news", "medical"], "the first is the headline"
    assert data.test[1].target.path == "data/local/mine/test.medical.de"
    assert Path(data.test[1].target.path).readlink() == Path.cwd() / "elsewhere/medical.de"
    assert [text["name"] for text in data.model_dump()["test"]] == ["news", "medical"]
    assert catalogs.data_settings(catalogs.load("mine"), "de-en").test[1].source == data.test[1].target
    assert set(data.held_out) == {"valid", "test", "test.medical"}
    for third, said in (
        (("news.en", "test.de"), "test sets are named by their first files, here news, news: give files whose names"),
        (("-x.en", "news.de"), "here news, -x: give files whose names differ before their ending"),
    ):
        assert said in refused("catalog", *several, "--test", *(f"elsewhere/{file}" for file in third), "--force")


def test_add_takes_no_name_that_is_taken(texts: list[str]) -> None:
    assert wmt("catalog", *texts) == 0
    before = catalogs.load("mine")
    Path("elsewhere/train.en").write_bytes(b"other\nother\n")
    assert "mine.yaml exists: choose another name, or replace it with --force" in refused("catalog", *texts)
    assert catalogs.load("mine") == before
    assert wmt("catalog", *texts, "--force", "--description", "second") == 0
    assert catalogs.load("mine").description == "second"
    assert catalogs.load("mine") != before


def test_files_of_ones_own_are_not_deleted_by_force(texts: list[str]) -> None:
    """Catalogs of treebanks tell their users to put files into data/local."""
    users_file = Path("data/local/mine/train.en")
    users_file.parent.mkdir(parents=True)
    users_file.write_bytes(Path("elsewhere/train.en").read_bytes())
    given = [word.replace("elsewhere/train.en", str(users_file)) for word in texts]
    said = "data/local/mine/train.en is not as its catalog says, and --force would delete it: move it elsewhere"
    assert said in refused("catalog", *given, "--force")
    assert users_file.read_bytes() == Path("elsewhere/train.en").read_bytes()
    assert not users_file.is_symlink()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train.de", b"one\n", "elsewhere/train.en has 2 lines and elsewhere/train.de has 1"),
        ("test.en", None, "elsewhere/test.en, for --test, is no file"),
        ("train.en", b"a\nb\0c\n", "elsewhere/train.en, line 2, holds a NUL byte"),
        ("test.en test.de", b"", "elsewhere/test.en and elsewhere/test.de are empty: "),
    ],
)
def test_add_refuses_what_is_no_parallel_text(texts: list[str], file: str, content: bytes | None, message: str) -> None:
    for path in (Path("elsewhere", name) for name in file.split()):
        path.unlink() if content is None else path.write_bytes(content)
    assert refused("catalog", *texts).startswith(f"catalog: {message}")
    assert nothing_written()


@pytest.mark.parametrize(
    ("files", "warning"),
    [
        ({"valid.en": b"\n \n"}, "2 of the 2 pairs for --valid have an empty side"),
        ({"train.en": b"a\nb\nc\n", "train.de": b"a\nb\nd\n"}, "2 of the 3 pairs for --train have equal sides"),
        ({"test.de": b"\ntrain\n"}, "1 of 1 different lines for --test in de are also in the training text, and 0"),
        ({"valid.de": b"e\nf\n", "test.de": b"f\ng\n"}, "1 of 2 different lines for --test in de are those of --valid"),
        ({"valid.en": b"a\nand\n", "train.en": b"and\na\n"}, "2 of 2 different lines for --valid in en are also in"),
    ],
)
def test_add_warns_of_text_that_spoils_a_score(texts: list[str], files: dict[str, bytes], warning: str) -> None:
    for name, content in files.items():
        Path("elsewhere", name).write_bytes(content)
    assert f"catalog: {warning}" in warned("catalog", *texts)


def treebank(content: bytes, other: str = "bank.mrg") -> list[str]:
    """The arguments of `add` for treebanks, each given as both sides but for `other`."""
    Path("bank.mrg").write_bytes(content)
    both = "bank.mrg bank.mrg"
    return f"add mine --pair en-tree --train bank.mrg {other} --valid {both} --test {both}".split()


def test_add_takes_treebanks() -> None:
    assert wmt("catalog", *treebank(b"( (S (NP (NNP Ann))\n  (VP (VBZ runs))) )\n")) == 0
    data = catalogs.data_settings(catalogs.load("mine"), "en-tree")
    assert data.valid.source == data.valid.target
    assert data.valid.source.path == "data/local/mine/valid.mrg"
    assert Path("data/local/mine/valid.mrg").readlink() == Path.cwd() / "bank.mrg"


def test_a_catalog_of_words_beside_a_treebank_is_refused() -> None:
    words, trees = ({"path": name, "lines": 1} for name in ("words.en", "bank.mrg"))
    texts = {role: {"name": role, "source": trees, "target": trees} for role in ("train", "valid")}
    pair = {"train": [texts["train"]], "valid": texts["valid"], "test": {"name": "t", "source": words, "target": trees}}
    write("mine", {"description": "x", "pairs": {"en-tree": pair}})
    said = "mine.yaml: test text t has words.en as source and bank.mrg as target"
    check_refusal(said, catalogs.data_settings, catalogs.load("mine"), "en-tree")


@pytest.mark.parametrize(
    ("content", "other", "message"),
    [
        (b"(S (NN dog))\n", "bank.tree", "--train is bank.mrg and bank.tree: for en-tree give one treebank"),
        (b"(S (NN dog))\n(S (NN dog)\n", "bank.mrg", "bank.mrg, line 2: "),
        (b"\n", "bank.mrg", "bank.mrg, for --train, holds no tree"),
    ],
)
def test_add_refuses_what_is_no_treebank(content: bytes, other: str, message: str) -> None:
    Path("bank.tree").touch()
    assert refused("catalog", *treebank(content, other)).startswith(f"catalog: {message}")
    assert nothing_written()


def test_add_refuses_what_is_no_pair_or_no_name(texts: list[str]) -> None:
    for pair in ("en-german", "en-en", "tree-en", "en"):
        wrong = refused("catalog", *(text.replace("en-de", pair) for text in texts))
        assert wrong.startswith(f"catalog: --pair is `{pair}`: a pair is two different ISO 639 codes, as `de-en`")
    for name in ("../mine", "null", "007", "yes", "2024-02-30"):
        given = [text.replace("mine", name) for text in texts]
        assert f"`{name}` cannot name a catalog" in refused("catalog", *given)
    assert nothing_written()


def written(role: str, name: str = "mine") -> list[tuple[str, str]]:
    """The pairs that the catalog's texts of a role have."""
    data = catalogs.data_settings(catalogs.load(name), "cs-en")
    texts = {"train": data.train, "valid": [data.valid], "test": data.test}[role]
    return [pair for text in texts for pair in parallel(verified(text.source), verified(text.target))]


def add(*arguments: str, held_out: str = "--valid v.tsv --test t.tsv") -> list[str]:
    Path("v.tsv").write_text("dobrý den\tgood day\n")
    Path("t.tsv").write_text("na shledanou\tgoodbye\n")
    return ["catalog", "add", "mine", "--pair", "cs-en", *held_out.split(), *arguments]


TMX = """<?xml version="1.0"?><!DOCTYPE tmx [<!ENTITY a "aaaaaaaaaa"><!ENTITY f SYSTEM "secret">]><tmx><header/><body>
<tu><tuv xml:lang="CS-cz"><seg>dva &amp; tři<bpt i="1">&lt;b></bpt>
 nohy</seg></tuv><tuv xml:lang="en"><seg>two <hi>legs</hi></seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>&a;x&f;</seg></tuv><tuv lang="cs"><seg>x</seg></tuv><tuv lang="csb"><seg>y</seg></tuv></tu>
<tu><tuv xml:lang="en"><seg>alone</seg></tuv></tu></body></tmx>"""


LEVELS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 99}">' for n in range(1, 9))
SIDES = "".join(f'<tuv xml:lang="{language}"><seg>&l8;</seg></tuv>' for language in ("cs", "en"))
BOMB = f"<!DOCTYPE tmx [<!ENTITY l0 'lol'>{LEVELS}]><tmx><body><tu>{SIDES}</tu></body></tmx>"
"""It would be gigabytes, were its entities expanded."""


def test_texts_are_two_files_a_tsv_or_a_tmx_packed_or_not() -> None:
    Path("secret").write_text("secret")
    Path("a.cs.gz").write_bytes(gzip.compress(b"jedna\r\n"))
    with zipfile.ZipFile("a.en.zip", "w") as packed:
        packed.writestr("inside", "\ufeffone\n")
    Path("b.tsv.xz").write_bytes(lzma.compress("dům\thouse\r\n".encode()))
    Path("d.TSV.BZ2").write_bytes(bz2.compress(b"pes\tdog\n"))
    Path("c.tmx").write_text(TMX)
    Path("e.cs.sgm.xz").write_bytes(lzma.compress("<srcset>\n<seg id=1> kočka\n</seg></srcset>\n".encode()))
    Path("e.en.sgm").write_text("<refset>\n<seg id=1> cat\n</seg></refset>\n")
    arguments = ["--train=a.cs.gz", "a.en.zip", "--train", "b.tsv.xz", "--train=d.TSV.BZ2", "--train", "c.tmx"]
    arguments += ["--train", "e.cs.sgm.xz", "e.en.sgm"]
    assert "c.tmx, unit 3, has no cs: correct such lines, or leave them out with --skip" in refused(*add(*arguments))
    told = warned(*add(*arguments, "--skip-bad"))
    assert "catalog: 1 left out, one-sided; the first: c.tmx, unit 3, has no cs" in told
    assert "catalog: 1 left out, entity; the first: c.tmx, unit 2, has the entity &a;, which is not expanded" in told
    given = [("jedna", "one"), ("dům", "house"), ("pes", "dog"), ("dva & tři nohy", "two legs"), ("kočka", "cat")]
    assert written("train") == given
    assert written("test") == [("na shledanou", "goodbye")]
    names = [text.name for text in catalogs.load("mine").pairs["cs-en"].train]
    assert names == [f"mine-train-{n}" for n in (1, 2, 3, 4, 5)]


def test_plain_files_with_line_ends_of_windows_are_copied_without() -> None:
    Path("a.cs").write_bytes("dům\rčíslo\r\npes\r\n".encode())
    Path("a.en").write_bytes(b"house number\ndog\n")
    assert wmt(*add("--train", "a.cs", "a.en")) == 0
    assert written("train") == [("dům\rčíslo", "house number"), ("pes", "dog")]
    Path("a.cs").write_bytes("dům\npes\r\n".encode())  # as where files were joined
    assert wmt(*add("--train", "a.cs", "a.en"), "--force") == 0
    assert written("train") == [("dům", "house number"), ("pes", "dog")]


def test_bad_lines_are_named_or_left_out_and_counted() -> None:
    lines = [b"a\tb", b"\xff\tb", b"a", b"a\t" + b"b" * 1_000_001, b"a\t\xc3", b" \tb", b"c\td"]
    lines.append(b"aa\t" + "€".encode() * 1_700_000)  # Only its first 5,000,000 bytes are read.
    Path("bad.tsv").write_bytes(b"\n".join(lines))
    named = "bad.tsv, line 2, has the byte 0xff, which is not valid UTF-8; bad.tsv, line 3, has 1 columns, not two; "
    sentence = refused(*add("--train", "bad.tsv"))
    assert sentence.startswith(f"catalog: {named}bad.tsv, line 4, has 1,000,001 characters: correct")
    assert nothing_written()
    assert warned(*add("--train", "bad.tsv", "--skip-bad")).splitlines() == [
        "catalog: 2 left out, not UTF-8; the first: bad.tsv, line 2, has the byte 0xff, which is not valid UTF-8",
        "catalog: 1 left out, not two columns; the first: bad.tsv, line 3, has 1 columns, not two",
        "catalog: 2 left out, over-long; the first: bad.tsv, line 4, has 1,000,001 characters",
        "catalog: 1 left out, one-sided; the first: bad.tsv, line 6, has no text",
    ]
    assert written("train") == [("a", "b"), ("c", "d")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--train a.cs", "a.cs, for --train, is one side: give two files (a treebank twice), a .tsv"),
        ("--train broken.tsv.bz2", "broken.tsv.bz2 is broken (Invalid data stream)"),
        ("--train a.en.sgm a.cs", "--train is a.en.sgm and a.cs: for cs-en give the cs file first"),
        ("--train broken.tsv.gz", "broken.tsv.gz is broken ("),
        ("--train broken.tmx", "broken.tmx is no TMX that can be read ("),
        ("--train bomb.tmx", "bomb.tmx is no TMX that can be read (Maximum entity amplification factor exceeded"),
        ("--train other.tmx", "other.tmx has no unit in both cs and en; its languages are ['csb', 'de', 'en']"),
        ("--train t.tsv --holdout 1", "give --valid and --test, or --holdout in place of one or both"),
        ("--train t.tsv --valid v.tsv", "--valid is given 2 times: give it once"),
    ],
)
def test_add_refuses_what_is_no_text(arguments: str, message: str) -> None:
    for name in ("a.cs", "a.en.sgm", "broken.tsv.bz2"):
        Path(name).write_text("a\n")
    Path("broken.tsv.gz").write_bytes(gzip.compress(b"a\tb\n" * 99)[:-9])
    Path("broken.tmx").write_text(TMX[:-30])
    Path("bomb.tmx").write_text(BOMB)
    Path("other.tmx").write_text(TMX.replace("CS-cz", "de").replace('"cs"', '"de"'))
    assert refused(*add(*arguments.split(), "--skip-bad")).startswith(f"catalog: {message}")
    assert nothing_written()


def numbered(first: int, last: int) -> str:
    """Lines of a TSV, each source twice with other translations, of which some are of two sources."""
    return "".join(f"věta {n}\tsentence {n // 2}\nvěta {n}\tother {n}\n" for n in range(first, last))


def test_held_out_pairs_are_in_no_training_and_stay() -> None:
    Path("a.tsv").write_text(
        numbered(0, 200) + "".join(f"prázdná {n}\t {'long ' * 257 * (n % 2)}\n" for n in range(400))
    )
    arguments = ["--train", "a.tsv", "--holdout"]
    assert "catalog: 20 pairs held out for each of valid and test, " in warned(*add(*arguments, "20", held_out=""))
    first = {role: written(role) for role in ("train", "valid", "test")}
    assert [len(set(pairs)) for pairs in first.values()][1:] == [20, 20]
    assert all(0 < len(target.split()) < 257 for role in ("valid", "test") for _, target in first[role])
    for side in (0, 1):
        held = {pair[side] for role in ("valid", "test") for pair in first[role]}
        assert held.isdisjoint(pair[side] for pair in first["train"])
    sources = [{source for source, _ in pairs} for pairs in first.values()]
    assert sources[1].isdisjoint(sources[2])

    Path("b.tsv").write_text(numbered(200, 2000) + "".join(f"{source} \tanother\n" for source, _ in first["test"]))
    assert wmt(*add("--train", "b.tsv", *arguments, "20", "--force", held_out="")) == 0
    assert {role: written(role) for role in ("valid", "test")} == {role: first[role] for role in ("valid", "test")}
    assert set(first["train"]) < set(written("train"))
    assert sources[2].isdisjoint(source.strip() for source, _ in written("train"))

    assert wmt(*add(*arguments, "30", "--force", held_out="")) == 0
    assert set(first["test"]) < set(written("test"))
    assert "--holdout is 2,000, but the text has" in refused(*add(*arguments, "2000", "--force", held_out=""))
    assert wmt(*add(*arguments, "5", "--force", held_out="--test t.tsv")) == 0
    assert (len(written("valid")), written("test")) == (5, [("na shledanou", "goodbye")])

    Path("a.tsv").write_text(numbered(0, 200).replace("sentence", "corrected"))
    assert wmt(*add(*arguments, "5", "--force", held_out="")) == 0
    assert [source for source, _ in written("valid")] == [source for source, _ in first["valid"][:5]]
    assert all(" ".join(target.split()[:-1]) in {"corrected", "other"} for _, target in written("valid"))
    (made := Path("data/local/mine/made/test.en")).write_text("edited\n")
    assert f"{made} is not as its catalog says" in refused(*add(*arguments, "5", "--force", held_out=""))


def test_outputs_of_stages_are_copied_because_the_next_run_removes_them(texts: list[str]) -> None:
    Path("data/raw").mkdir()
    Path("results/translations").mkdir(parents=True)
    Path("cache").write_text("train\n")
    Path("data/raw/train.en").symlink_to(Path.cwd() / "cache")  # as DVC may link its cache
    Path("results/translations/made.de").write_text("train\n")
    texts[5:7] = ["data/raw/train.en", "results/translations/made.de"]
    assert wmt("catalog", *texts) == 0
    assert [file.is_symlink() for file in Path("data/local/mine/made").glob("train.*")] == [False, False]


def test_copies_of_a_catalog_may_be_added_to_it_and_to_others() -> None:
    Path("b.tsv").write_text("dům\thouse\npes\tdog\n")
    assert wmt(*add("--train", "b.tsv")) == 0
    copies = ["--train", "data/local/mine/made/train.cs", "data/local/mine/made/train.en"]
    other = add(*copies)
    other[2] = "other"
    assert wmt(*other) == 0
    assert wmt(*add(*copies, "--force")) == 0
    assert wmt(*add("--train", "v.tsv", "--force")) == 0
    assert written("train", "other") == [("dům", "house"), ("pes", "dog")]


def test_repeated_pairs_go_and_near_duplicates_are_told() -> None:
    words = [f"w{n}" for n in range(16)]  # nine 8-grams; a change at 12 leaves five, at 11 four
    twelve, eleven = ([*words[:at], "x", *words[at + 1 :]] for at in (12, 11))
    Path("near.tsv").write_text("".join(f"s{n}\t{' '.join(line)}\n" for n, line in enumerate([twelve, twelve, eleven])))
    Path("a.tsv").write_text("a\tb\na\tc\na\tb\n")
    Path("c.tsv").write_text("a\tb\na\td\n")
    Path("exam.tsv").write_text(f"good\t{' '.join(words).upper()}\n" * 2)
    arguments = ["--train", "near.tsv", "--train", "a.tsv", "--train", "c.tsv", "--dedup"]
    told = warned(*add(*arguments, held_out="--valid v.tsv --test exam.tsv"))
    assert "catalog: 1 left out, repeated; the first: c.tsv, line 1, has a pair that was there before" in told
    assert "catalog: 0 of 1 different lines for --test in en are also in the training text, and 1 more" in told
    assert written("train")[3:] == [("a", "b"), ("a", "c"), ("a", "d")]
    assert len(written("test")) == 2, "a test set keeps what it repeats"
    Path("near.tsv").write_text(f"s\t{' '.join(eleven)}\n")
    assert "8-grams" not in warned(*add(*arguments, "--force", held_out="--valid v.tsv --test exam.tsv"))
