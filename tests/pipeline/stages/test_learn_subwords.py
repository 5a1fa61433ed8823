"""The stage learn_subwords: counts by any pool, the folder it writes."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from data_stages import ONE_THREAD, check_full_disk, configure, data_section, write_sides

from pipeline.config import rows
from pipeline.config.paths import TOKENIZED
from pipeline.stages import learn_subwords

SOURCE = ["the lower house is new", "", "newer houses  are lower", "low and new"] * 3
TARGET = ["das untere Haus ist neu", "leer", "neuere Häuser sind niedriger", "niedrig und neu"] * 3


@pytest.fixture
def here(here: Path) -> Path:
    """A folder with tokenised text."""
    write_sides(TOKENIZED / "train", list(zip(SOURCE, TARGET, strict=True)))
    return here


def test_words_are_kept_by_their_number(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """That both kinds of subwords are written and encode both sides is tested in tests/end_to_end."""
    settings = {"kind": "bpe", "merges": 30, "vocabulary": None, "multiple_of": 8}
    training = {**rows.settings("sample", "en-de")["training"], "seed": 1}
    configure(data_section("x"), subwords=settings, training=training)
    learn_subwords.run()
    assert sorted(path.name for path in Path("data").iterdir()) == ["subwords", "tokenized"]
    assert (learn_subwords.SUBWORDS / "words.txt").read_text().split()[:4] == ["lower", "new", "and", "are"]
    assert f"from {len(set(' '.join(SOURCE + TARGET).split())):,} different words" in capsys.readouterr().out
    check_full_disk(learn_subwords.run)


def test_counts_are_the_same_for_any_number_of_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [TOKENIZED / f"train.{language}" for language in ("en", "de")]
    expected = Counter(word for line in SOURCE + TARGET for word in line.split())
    assert sum((learn_subwords.count_words(path, ONE_THREAD) for path in paths), Counter()) == expected
    monkeypatch.setattr(learn_subwords, "LINES", 5)
    with ThreadPoolExecutor(3) as pool:
        assert sum((learn_subwords.count_words(path, pool) for path in paths), Counter()) == expected
