"""The stage tokenize: what it writes, what it counts, what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from data_stages import ONE_THREAD, check_full_disk, configure, data_section, write_sides
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import check_refusal

from nmt.text.parallel_text import read_lines
from nmt.text.settings import FilterSettings, PreparationSettings, TokenizerSettings
from pipeline.config.corpora import DataSettings
from pipeline.stages import tokenize

TRAIN = {
    "news": [("The house, it's new.", "Das Haus ist neu."), ("x", ""), ("one", "eins zwei drei vier"), ("a b", "a b")],
    "web": [("Is it\u2028here?", "Ist\res hier?"), ("far " * 12, "weit " * 12), ("Valid one.", "Gültig  eins.")],
}
VALID = [("Valid one.", "Gültig eins."), ("", "leer")]
TEST = [("A test.", "Ein Test."), ("Is it here?", "Ist es hier?")]
PREPARATION = PreparationSettings(
    tokenizer=TokenizerSettings(tokenizer="moses", normalize_punctuation=True, aggressive_hyphens=True),
    filters=FilterSettings(min_tokens=1, max_tokens=10, max_ratio=3.0, drop_identical=True),
)


@pytest.fixture
def here(here: Path) -> Path:
    """A folder with raw text and a resolved configuration."""
    for name, pairs in TRAIN.items():
        write_sides(tokenize.RAW / f"train.{name}", pairs)
    write_sides(tokenize.RAW / "valid.dev", VALID)
    write_sides(tokenize.RAW / "test.exam", TEST)
    configure(data_section(*TRAIN), preparation=PREPARATION.model_dump())
    return here


def overlap(valid: tuple[int, int, int] = (0, 0, 0), test: tuple[int, int, int] = (0, 0, 0)) -> dict[str, Any]:
    kinds = ("source", "target", "pair")
    return {role: dict(zip(kinds, counts, strict=True)) for role, counts in (("valid", valid), ("test", test))}


def test_writes_and_counts(here: Path) -> None:
    tokenize.run()
    folder = tokenize.TOKENIZED
    assert sorted(path.name for path in Path("data").iterdir()) == ["raw", "tokenized"]
    assert {path.name for path in folder.iterdir()} == {"train.en", "train.de", "valid.en", "valid.de", "stats.json"}
    assert list(read_lines(folder / "train.en")) == ["The house , it 's new .", "Is it here ?", "Valid one ."]
    assert list(read_lines(folder / "train.de")) == ["Das Haus ist neu .", "Istes hier ?", "Gültig eins ."]
    assert list(read_lines(folder / "valid.en")) == ["Valid one .", ""]
    assert list(read_lines(folder / "valid.de")) == ["Gültig eins .", "leer"]
    stats = json.loads((folder / "stats.json").read_text(encoding="utf-8"))
    none = {"empty": 0, "too_short": 0, "too_long": 0, "ratio": 0, "identical": 0}
    # The pair of the test set is not that of the corpus: the normaliser deletes \r, as Moses' does.
    shared = overlap(valid=(1, 1, 1), test=(1, 0, 0))
    whole = {"pairs": 7, "kept": 3, "source_tokens": 14, "target_tokens": 11, "overlap": shared}
    whole["dropped"] = none | {"empty": 1, "too_long": 1, "ratio": 1, "identical": 1}
    news = {"pairs": 4, "kept": 1, "source_tokens": 7, "target_tokens": 5, "overlap": overlap()}
    news["dropped"] = none | {"empty": 1, "ratio": 1, "identical": 1}
    web = {"pairs": 3, "kept": 2, "source_tokens": 7, "target_tokens": 6, "overlap": shared}
    web["dropped"] = none | {"too_long": 1}
    valid = {"pairs": 2, "source_tokens": 3, "target_tokens": 4}
    assert stats == {**whole, "corpora": {"news": news, "web": web}, "valid": valid}
    check_full_disk(tokenize.run)


def test_a_text_is_there_as_often_as_its_weight_says(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = data_section(*TRAIN)
    data["train"][0]["weight"] = 3
    tokenize.run()
    once = capsys.readouterr().out
    assert once.startswith("news: 1 of 4 pairs kept (1: empty, 1: ratio, 1: identical)\n")
    configure(data, preparation=PREPARATION.model_dump())
    tokenize.run()
    assert list(read_lines(tokenize.TOKENIZED / "train.en"))[:4] == ["The house , it 's new ."] * 3 + ["Is it here ?"]
    assert list(read_lines(tokenize.TOKENIZED / "train.de"))[:4] == ["Das Haus ist neu ."] * 3 + ["Istes hier ?"]
    assert capsys.readouterr().out == once.replace("1: identical)", "1: identical), 3 times")


def test_overlap_counts_lines_of_the_set_by_side_and_is_seen_through_spaces(here: Path) -> None:
    write_sides(tokenize.RAW / "train.news", [("Is it here?", "Wo?"), ("Wo?", "A test.")])
    web = [("Is  it here ?", "Ist es hier?"), ("No.", "Ein Test."), ("No.", "Ein  Test.")]
    write_sides(tokenize.RAW / "train.web", web)
    tokenize.run()
    stats = json.loads((tokenize.TOKENIZED / "stats.json").read_text(encoding="utf-8"))
    assert stats["corpora"]["news"]["overlap"] == overlap(test=(1, 0, 0))
    assert stats["corpora"]["web"]["overlap"] == stats["overlap"] == overlap(test=(1, 2, 1))


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=9)


@given(pairs=st.lists(st.tuples(LINE, LINE), min_size=1, max_size=12), kind=st.sampled_from(["moses", "none"]))
@settings(max_examples=40, deadline=None)
def test_texts_stay_paired(tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[str, str]], kind: str) -> None:
    """A number at the end of each side identifies the pair; before it a word, because `( 1` is normalised to `(1`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("any"))
        # The last pair is one that the filters keep.
        pairs = [*pairs, ("kept", "behalten")]
        marked = [(f"{s} end {n}", f"{t} end {n}") for n, (s, t) in enumerate(pairs, start=100)]
        for name in ("train.only", "valid.dev", "test.exam"):
            write_sides(tokenize.RAW / name, marked)
        Path("out").mkdir()
        tokenizer = PREPARATION.tokenizer.model_copy(update={"tokenizer": kind})
        preparation = PREPARATION.model_copy(update={"tokenizer": tokenizer})
        stats = tokenize.tokenize(DataSettings(**data_section("only")), preparation, Path("out"), ONE_THREAD)
        for name, kept in (("train", stats["kept"]), ("valid", len(pairs))):
            sides = [list(read_lines(Path(f"out/{name}.{language}"))) for language in ("en", "de")]
            ends = [[line.split(" ")[-1] for line in side] for side in sides]
            assert ends[0] == ends[1]
            assert len(ends[0]) == len(set(ends[0])) == kept
        assert stats["kept"] + sum(stats["dropped"].values()) == stats["pairs"] == len(pairs)
        assert stats["overlap"] == overlap(*[(stats["kept"],) * 3] * 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"web.en": b"one\n"}, r"train\.web\.en has 1 lines and data/raw/train\.web\.de has 3"),
        ({"web.en": b"one\ntwo \xff\nthree\n"}, r"train\.web\.en, line 2: the byte 0xff at offset 8"),
        (dict.fromkeys(("news.en", "web.en", "news.de", "web.de"), b"\n"), r"none of the 2 .*filters \(2: empty\)"),
    ],
)
def test_bad_text_is_refused_and_leaves_nothing(here: Path, changes: dict[str, bytes], message: str) -> None:
    for name, content in changes.items():
        (tokenize.RAW / f"train.{name}").write_bytes(content)
    check_refusal(message, tokenize.run)
    assert [path.name for path in Path("data").iterdir()] == ["raw"]


def test_moses_is_refused_where_text_does_not_come_back(here: Path) -> None:
    configure({**data_section("news"), "target": "th"}, preparation=PREPARATION.model_dump())
    Path("data/raw/train.news.th").write_text("บนโต๊ะคือโคมไฟ\nนาฬิกามีมือสองข้าง\nx\ny\n")
    check_refusal(r"change 50% of the lines in th .*, or set preparation.tokenizer.tokenizer", tokenize.run)
