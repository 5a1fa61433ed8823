"""The stage learn_subwords: counts by any pool, the folder it writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.config import InputError
from nmt.text.subwords import load
from pipeline.corpora import blocks
from pipeline.corpora.blocks import InProcess, executor
from pipeline.stages import learn_subwords

SOURCE = ["the lower house is new", "", "newer houses  are lower", "low and new"] * 3
TARGET = ["das untere Haus ist neu", "leer", "neuere Häuser sind niedriger", "niedrig und neu"] * 3


class Recorder:
    """A tracker that remembers."""

    def __init__(self) -> None:
        self.values: dict[str, float] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        assert update is None
        self.values.update(values)

    def tags(self, values: Mapping[str, str]) -> None:
        raise AssertionError(values)

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError(path, folder)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with tokenised text."""
    monkeypatch.chdir(tmp_path)
    learn_subwords.TOKENIZED.mkdir(parents=True)
    for language, lines in (("en", SOURCE), ("de", TARGET)):
        (learn_subwords.TOKENIZED / f"train.{language}").write_bytes("".join(x + "\n" for x in lines).encode())
    return tmp_path


def configure(subwords: dict[str, Any], **versions: str) -> None:
    member = {"path": "x", "sha256": "0" * 64}
    named = {"name": "x", "source": member, "target": member}
    packages = ("sacremoses", "subword_nmt", "sentencepiece", "sacrebleu")
    config = {
        "data": {"source": "en", "target": "de", "archives": [], "train": [named], "valid": named, "test": named},
        "subwords": subwords,
        "versions": {package: version(package.replace("_", "-")) for package in packages} | versions,
    }
    Path("results").mkdir()
    Path("results/config.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")


BPE = {"kind": "bpe", "merges": 30, "vocabulary": None, "multiple_of": 8}
WORD_PIECES = {"kind": "wordpieces", "merges": None, "vocabulary": 300, "multiple_of": 8}


@pytest.mark.parametrize(
    ("settings", "files"),
    [(BPE, {"subwords.yaml", "codes.bpe", "vocabulary.txt"}), (WORD_PIECES, {"subwords.yaml", "wordpieces.model"})],
)
def test_writes_a_folder_that_encodes_both_sides(here: Path, settings: dict[str, Any], files: set[str]) -> None:
    configure(settings)
    tracker = Recorder()
    learn_subwords.run(tracker)
    assert sorted(path.name for path in Path("data").iterdir()) == ["subwords", "tokenized"]
    assert {path.name for path in learn_subwords.SUBWORDS.iterdir()} == files
    subwords = load(learn_subwords.SUBWORDS)
    assert tracker.values == {
        "words": len(set(" ".join(SOURCE + TARGET).split())),
        "subwords": subwords.unpadded,
        "vocabulary": subwords.size,
    }
    for line in ("the lower house", "das niedrigste neue Haus"):
        assert subwords.decode(subwords.encode(line)) == line


def test_counts_are_the_same_for_any_number_of_workers(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [learn_subwords.TOKENIZED / f"train.{language}" for language in ("en", "de")]
    expected = Counter(word for line in SOURCE + TARGET for word in line.split())
    assert learn_subwords.count_words(paths, InProcess()) == expected
    monkeypatch.setattr(learn_subwords, "LINES", 5)
    monkeypatch.setattr(blocks, "workers", lambda: 2)
    with executor() as pool:
        assert learn_subwords.count_words(paths, pool) == expected


def test_another_version_of_the_library_is_refused(here: Path) -> None:
    configure(BPE, subword_nmt="0.0.1")
    with pytest.raises(InputError, match=r"subword_nmt .* resolved with 0\.0\.1"):
        learn_subwords.run(Recorder())
    assert [path.name for path in Path("data").iterdir()] == ["tokenized"]
