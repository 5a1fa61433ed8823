"""The embedded sample: its sentences as people edit them, archives that hold just these, and their catalog."""

import hashlib
import re
import tarfile
from collections import Counter
from typing import Any

import pytest
import yaml
from clones import ROOT

from data.sample import make_sample

NAMES = r"\b(Tom|Mary|Anna|Paul|John|Smith|Brown|Boston|Berlin|Paris|Germany|France|Japan|Australia)\b|\d+"
NUMBERS = r"\b(two|three|four|five|six|seven|eight|nine|ten|twelve|twenty|thirty|fifty|hundred)\b"


@pytest.fixture(scope="module")
def sentences() -> list[Any]:
    return make_sample.read()


@pytest.fixture(scope="module")
def splits(sentences: list[Any]) -> dict[str, list[Any]]:
    return make_sample.splits(sentences)


def within_one_word(one: list[str], other: list[str]) -> bool:
    """Whether a word inserted, deleted or replaced makes them the same."""
    at = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return other[at + 1 :] in (one[at:], one[at + 1 :]) or other[at:] == one[at + 1 :]


def test_every_line_is_a_sentence_in_three_languages(sentences: list[Any]) -> None:
    assert len(sentences) >= 25_000
    english = [sentence.en for sentence in sentences]
    assert english == sorted({*english}, key=lambda en: (en.lower(), en)), "each once, in order"
    for sentence in sentences:
        for text in (sentence.en, sentence.de, sentence.fr):
            assert text == " ".join(text.split()), sentence
            assert re.fullmatch(r"[\w',.?!:; -]+[.?!]", text), sentence
        assert not re.search(r"\S[?!:;]", sentence.fr), f"{sentence}: French has a space before ? ! : ;"
        assert not re.search(r"\s[?!:;.,]", sentence.en + sentence.de), sentence


def test_near_duplicates_are_few(sentences: list[Any]) -> None:
    """Sentences that are the same but for a name or a number."""
    alike = Counter(re.sub(f"{NAMES}|{NUMBERS}", "_", sentence.en) for sentence in sentences)
    assert sum(count - 1 for count in alike.values()) < 0.05 * len(sentences)


def test_no_held_out_sentence_is_within_one_word_of_another(sentences: list[Any], splits: dict[str, list[Any]]) -> None:
    assert [len(splits[name]) for name in ("valid", "test")] == [500, 500]
    assert sum(map(len, splits.values())) == len(sentences)
    words = [(sentence.en, re.findall(r"[\w']+", sentence.en.lower())) for sentence in sentences]
    for chosen in splits["test"][:5] + splits["valid"][:5]:
        chosen_words = re.findall(r"[\w']+", chosen.en.lower())
        assert [en for en, other in words if within_one_word(chosen_words, other)] == [chosen.en]


def test_a_new_sentence_moves_few_others(sentences: list[Any], splits: dict[str, list[Any]]) -> None:
    more = make_sample.splits([*sentences, make_sample.Sentence("My aunt sings to her plants.", "-", "-", "home")])
    before, after = ({sentence.en for sentence in parts["test"] + parts["valid"]} for parts in (splits, more))
    assert len(before - after) <= 3


@pytest.mark.parametrize("archive", ["training-parallel-sample.tgz", "dev.tgz", "test-full.tgz"])
def test_archives_hold_the_sentences(splits: dict[str, list[Any]], archive: str) -> None:
    """After a correction: `python data/sample/make_sample.py`, and its sizes and hashes in data/catalog/sample.yaml."""
    with tarfile.open(ROOT / "data/sample" / archive) as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr] # files
    assert content == make_sample.members(splits)[archive]


def test_the_catalog_names_the_archives_on_disk() -> None:
    catalog = yaml.safe_load((ROOT / "data/catalog/sample.yaml").read_text(encoding="utf-8"))
    total, members = 0, {}
    for name, facts in catalog["archives"].items():
        path = ROOT / facts["urls"][0].removeprefix("file:")
        data = path.read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts["bytes"], facts["sha256"]), name
        total += len(data)
        with tarfile.open(path) as archive:
            members[name] = archive.getnames()
    assert total < 3_000_000
    for sets in catalog["pairs"].values():
        for parallel in [*sets["train"], sets["valid"], sets["test"]]:
            for side in ("source", "target"):
                assert parallel[side]["member"] in members[parallel[side]["archive"]]
