"""The embedded sample: its sentences as people edit them, and archives that hold just these."""

from __future__ import annotations

import importlib.util
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "data/sample"
NAMES = r"\b(Tom|Mary|Anna|Paul|John|Smith|Brown|Boston|Berlin|Paris|Germany|France|Japan|Australia)\b|\d+"
NUMBERS = r"\b(two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|hundred)\b"

specification = importlib.util.spec_from_file_location("make_sample", SAMPLE / "make_sample.py")
assert specification is not None
assert specification.loader is not None
make_sample = importlib.util.module_from_spec(specification)
specification.loader.exec_module(make_sample)
SENTENCES = make_sample.read()
SPLITS = make_sample.splits(SENTENCES)


def distance(one: list[str], other: list[str]) -> int:
    """The words to insert, delete or replace."""
    row = list(range(len(other) + 1))
    for i, word in enumerate(one, start=1):
        before, row[0] = row[0], i
        for j, against in enumerate(other, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (word != against))
    return row[-1]


def test_every_line_is_a_sentence_in_three_languages() -> None:
    assert len(SENTENCES) >= 25_000
    assert [sentence.en for sentence in SENTENCES] == sorted(
        (sentence.en for sentence in SENTENCES), key=lambda en: (en.lower(), en)
    )
    assert len({sentence.en for sentence in SENTENCES}) == len(SENTENCES)
    for sentence in SENTENCES:
        for text in (sentence.en, sentence.de, sentence.fr):
            assert text == " ".join(text.split()), sentence
            assert re.fullmatch(r"[\w',.?!:; -]+[.?!]", text), sentence
        assert not re.search(r"\S[?!:;]", sentence.fr), f"{sentence}: French has a space before ? ! : ;"
        assert not re.search(r"\s[?!:;.,]", sentence.en + sentence.de), sentence


def test_near_duplicates_are_few() -> None:
    """Sentences that are the same but for a name or a number."""
    alike = Counter(re.sub(f"{NAMES}|{NUMBERS}", "_", sentence.en) for sentence in SENTENCES)
    assert sum(count - 1 for count in alike.values()) < 0.05 * len(SENTENCES)


def test_no_held_out_sentence_is_within_one_word_of_another() -> None:
    assert [len(SPLITS[name]) for name in ("valid", "test")] == [500, 500]
    assert sum(map(len, SPLITS.values())) == len(SENTENCES)
    words = [(sentence.en, re.findall(r"[\w']+", sentence.en.lower())) for sentence in SENTENCES]
    for chosen in SPLITS["test"][:20] + SPLITS["valid"][:20]:
        chosen_words = re.findall(r"[\w']+", chosen.en.lower())
        near = [
            en for en, other in words if abs(len(chosen_words) - len(other)) < 2 and distance(chosen_words, other) < 2
        ]
        assert near == [chosen.en]


def test_a_new_sentence_moves_few_others() -> None:
    more = make_sample.splits([*SENTENCES, make_sample.Sentence("My aunt sings to her plants.", "-", "-", "home")])
    before, after = ({sentence.en for sentence in parts["test"] + parts["valid"]} for parts in (SPLITS, more))
    assert len(before - after) <= 3


@pytest.mark.parametrize("archive", ["training-parallel-sample.tgz", "dev.tgz", "test-full.tgz"])
def test_archives_hold_the_sentences(archive: str) -> None:
    """After a correction: `python data/sample/make_sample.py`, and its sizes and hashes in data/catalog/sample.yaml."""
    with tarfile.open(SAMPLE / archive) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr] # files
    assert content == make_sample.members(SPLITS)[archive]
