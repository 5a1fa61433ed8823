"""The stage binarize: each kept pair once, in its bin, with the same bytes for any number of workers."""

import json
import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from data_stages import ONE_THREAD, check_full_disk, configure, data_section, write_sides
from refusals import check_refusal

from nmt.ids import EOS
from nmt.text.settings import BinningSettings, SubwordSettings
from nmt.text.subwords import Subwords, learn
from pipeline.config.paths import TOKENIZED
from pipeline.data import blocks
from pipeline.stages import binarize
from pipeline.stages.binarize import bin_uppers

BINNING = BinningSettings(max_length=30, growth=1.3)
ENGLISH = ["the", "lower", "house", "is", "new", "newer", "newest", "and", "low", "lowest"]
WORDS = [*ENGLISH, "das", "Haus", "ist", "neu", "neuer", "niedrig"]
ROWS = tuple[list[int], list[int], int]


@pytest.fixture(scope="module")
def subwords() -> Subwords:
    return learn(Counter(WORDS * 3), SubwordSettings(kind="bpe", merges=25, vocabulary=None, multiple_of=8))


def read_rows(path: Path) -> list[ROWS]:
    """As a reader with a memory map sees them."""
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    assert table.schema.names == ["src", "tgt", "line"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def sentences(count: int, longest: int) -> list[tuple[str, str]]:
    chance = random.Random(count)

    def sentence() -> str:
        return " ".join(chance.choices(WORDS, k=chance.randint(1, longest)))

    return [(sentence(), sentence()) for _ in range(count)]


@pytest.fixture
def here(here: Path, subwords: Subwords) -> Path:
    """A folder with tokenised text, subwords and a resolved configuration."""
    write_sides(TOKENIZED / "train", sentences(300, 16))
    write_sides(TOKENIZED / "valid", [("the house ☃", "das Haus"), ("", "neu " * 50), ("low", "niedrig")])
    subwords.save(binarize.SUBWORDS)
    configure(data_section("x"), binning=BINNING.model_dump())
    return here


def test_bins_grow_by_one_at_least_and_end_at_the_longest() -> None:
    assert bin_uppers(BinningSettings(max_length=30, growth=1.3)) == [8, 10, 13, 16, 20, 26, 30]
    assert bin_uppers(BinningSettings(max_length=12, growth=1.01)) == [8, 9, 10, 11, 12]
    assert bin_uppers(BinningSettings(max_length=5, growth=2)) == [5]


def test_writes_and_counts(here: Path, subwords: Subwords) -> None:
    binarize.run()
    assert sorted(path.name for path in Path("data").iterdir()) == ["binned", "subwords", "tokenized"]
    uppers = bin_uppers(BINNING)
    names = {f"train.{upper:05d}.arrow" for upper in uppers}
    assert {path.name for path in binarize.BINNED.iterdir()} == names | {"valid.arrow", "stats.json"}
    pairs, rows = sentences(300, 16), list[ROWS]()
    for name, upper, below in zip(sorted(names), uppers, [0, *uppers], strict=False):
        of_bin = read_rows(binarize.BINNED / name)
        assert all(below < len(tgt) <= upper for _, tgt, _ in of_bin), name
        assert of_bin == sorted(of_bin, key=lambda row: row[2]), "not in the corpus's order"
        rows += of_bin
    kept = {line: (src, tgt) for src, tgt, line in rows}
    for line, (source, target) in enumerate(pairs):
        ids = [*subwords.encode(source), EOS], [*subwords.encode(target), EOS]
        assert kept.get(line) == (ids if max(map(len, ids)) <= 30 else None)
    stats = json.loads((binarize.BINNED / "stats.json").read_text(encoding="utf-8"))
    assert stats["dropped"] == {"too_long": 300 - len(rows)}
    assert 0 < stats["dropped"]["too_long"] < 300
    assert stats["pairs"] == len(rows) == sum(stats["histogram"].values())
    assert stats["source_tokens"] == sum(len(src) for src, _, _ in rows)
    assert stats["target_tokens"] == sum(len(tgt) for _, tgt, _ in rows)
    assert stats["vocabulary"] == subwords.size
    rows = read_rows(binarize.BINNED / "valid.arrow")
    valid = sum(len(src) + len(tgt) - 2 for src, tgt, _ in rows)
    assert stats["out_of_vocabulary"] == {"train": 0.0, "valid": pytest.approx(1 / valid)}
    assert stats["valid"]["pairs"] == 3
    keys = "pairs source_tokens target_tokens dropped vocabulary out_of_vocabulary histogram valid"
    assert list(stats) == keys.split()
    assert [line for _, _, line in rows] == [0, 1, 2], "no pair is filtered"
    assert rows[1] == ([EOS], [*subwords.encode("neu " * 50), EOS], 1)
    assert len(rows[1][1]) > BINNING.max_length
    check_full_disk(binarize.run)


def test_same_bytes_for_any_number_of_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binarize, "PAIRS", 7)
    monkeypatch.setattr(binarize, "BATCH", 16)
    binarize.run()
    alone = {path.name: path.read_bytes() for path in binarize.BINNED.iterdir()}
    for path in binarize.BINNED.glob("*.arrow"):
        reader = pa.ipc.open_file(path)
        sizes = [reader.get_batch(index).num_rows for index in range(reader.num_record_batches)]
        assert all(16 <= size < 16 + 7 for size in sizes[:-1])
    assert len(alone) > 3
    monkeypatch.setattr(blocks, "available_cores", lambda: 2)
    monkeypatch.setattr(blocks, "_SMALL", 0)
    binarize.run()
    assert {path.name: path.read_bytes() for path in binarize.BINNED.iterdir()} == alone


@pytest.mark.parametrize(("multiple_of", "kind"), [(65_535, pa.uint16()), (65_536, pa.uint32())])
def test_ids_are_as_wide_as_the_vocabulary_needs(tmp_path: Path, multiple_of: int, kind: pa.DataType) -> None:
    made = learn({"low": 2}, SubwordSettings(kind="bpe", merges=1, vocabulary=None, multiple_of=multiple_of))
    made.save(tmp_path / "subwords")
    (tmp_path / "text").write_bytes(b"low\n")
    text = tmp_path / "text", tmp_path / "text"
    out = tmp_path / "out"
    out.mkdir()
    binarize.binarize({"train": text, "valid": text}, tmp_path / "subwords", BINNING, out, ONE_THREAD)
    assert [path.name for path in out.glob("train.*")] == ["train.00008.arrow"], "a file for a bin without pairs"
    schema = pa.ipc.open_file(out / "valid.arrow").schema
    assert schema == pa.schema({"src": pa.list_(kind), "tgt": pa.list_(kind), "line": pa.int64()})


def test_nothing_kept_is_refused_and_leaves_nothing(here: Path) -> None:
    write_sides(TOKENIZED / "train", [("low " * 40, "neu")])
    check_refusal(r"each of the 1 training pairs has more than 30 subwords .* raise it", binarize.run)
    assert sorted(path.name for path in Path("data").iterdir()) == ["subwords", "tokenized"]


def test_characters_without_subwords_are_warned_of_and_refused(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sides(TOKENIZED / "train", [*sentences(15, 9), ("the ☃ ☃ я", "neu ☃")])
    binarize.run()
    assert "% of the training subwords are <unk>: the parent's lack ☃ я" in capsys.readouterr().err
    stats = (binarize.BINNED / "stats.json").read_text()
    write_sides(TOKENIZED / "train", [("я я я ☃", "the house")])
    check_refusal(r"are <unk>: the parent's lack я ☃: start from a parent that has them", binarize.run)
    assert (binarize.BINNED / "stats.json").read_text() == stats
    monkeypatch.setattr(binarize, "PAIRS", 1)  # of which the characters are counted
    write_sides(TOKENIZED / "train", [("the", "house"), ("я я я", "house")])
    check_refusal(r"are <unk>: the parent's lack characters of later lines: start", binarize.run)
