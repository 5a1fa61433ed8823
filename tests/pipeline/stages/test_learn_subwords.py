"""The stage learn_subwords: counts by any pool, the folder it writes."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from data_stages import ONE_THREAD, check_full_disk, configure, data_section

from nmt.text.subwords import load
from pipeline.config import rows
from pipeline.stages import learn_subwords

SOURCE = ["the lower house is new", "", "newer houses  are lower", "low and new"] * 3
TARGET = ["das untere Haus ist neu", "leer", "neuere Häuser sind niedriger", "niedrig und neu"] * 3


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tokenised text."""
    monkeypatch.chdir(tmp_path)
    learn_subwords.TOKENIZED.mkdir(parents=True)
    for language, lines in (("en", SOURCE), ("de", TARGET)):
        (learn_subwords.TOKENIZED / f"train.{language}").write_bytes("".join(x + "\n" for x in lines).encode())
    return tmp_path


BPE = {"kind": "bpe", "merges": 30, "vocabulary": None, "multiple_of": 8}
WORD_PIECES = {"kind": "wordpieces", "merges": None, "vocabulary": 300, "multiple_of": 8}


@pytest.mark.parametrize(
    ("settings", "files"),
    [
        (BPE, {"subwords.yaml", "codes.bpe", "vocabulary.txt", "words.txt"}),
        (WORD_PIECES, {"subwords.yaml", "wordpieces.model", "words.txt"}),
    ],
)
def test_writes_a_folder_that_encodes_both_sides(
    here: Path, settings: dict[str, Any], files: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    training = {**rows.settings("sample", "en-de")["training"], "seed": 1}
    configure(data_section("x"), subwords=settings, training=training)
    learn_subwords.run()
    assert sorted(path.name for path in Path("data").iterdir()) == ["subwords", "tokenized"]
    assert {path.name for path in learn_subwords.SUBWORDS.iterdir()} == files
    assert (learn_subwords.SUBWORDS / "words.txt").read_text().split()[:4] == ["lower", "new", "and", "are"]
    subwords = load(learn_subwords.SUBWORDS)
    assert f"from {len(set(' '.join(SOURCE + TARGET).split())):,} different words" in capsys.readouterr().out
    for line in ("the lower house", "das niedrigste neue Haus"):
        assert subwords.decode(subwords.encode(line)) == line
    check_full_disk(learn_subwords.run)


def test_counts_are_the_same_for_any_number_of_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [learn_subwords.TOKENIZED / f"train.{language}" for language in ("en", "de")]
    expected = Counter(word for line in SOURCE + TARGET for word in line.split())
    assert learn_subwords.count_words(paths, ONE_THREAD) == expected
    monkeypatch.setattr(learn_subwords, "LINES", 5)
    with ThreadPoolExecutor(3) as pool:
        assert learn_subwords.count_words(paths, pool) == expected
