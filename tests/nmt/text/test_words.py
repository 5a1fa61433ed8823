"""The words of a training text: what counts as one, which are kept."""

from pathlib import Path

import pytest

from nmt.text import words


def test_punctuation_at_the_ends_is_no_part_of_a_word() -> None:
    line = "Mary's.. (dog) \u201cdog\u201d $5 @-@ ... l' \u0915\u0940\u0964 x-y a\u00a0b"
    assert words.unseen(line, {"dog"}) == ["Mary's", "5", "l", "\u0915\u0940", "x-y", "a", "b"]


def test_the_most_frequent_words_and_the_parents_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parent, child, orphan = tmp_path / "parent", tmp_path / "child", tmp_path / "orphan"
    for folder in (parent, child, orphan):
        folder.mkdir()
    monkeypatch.setattr(words, "MOST", 4)
    words.save(orphan, {"dog": 1}, "en", parent)
    assert words.load([orphan]) is None, "what an older parent was trained on is unknown"
    words.save(parent, {"cat": 2, "dog.": 2, "(dog": 1, "a\u00a0b": 1, "...": 9, "z": 1}, "en", None)
    assert (parent / "words.txt").read_text().split() == ["dog", "cat", "a", "b"]
    words.save(child, {"bird": 1, "dog": 1}, "en", parent)
    assert (child / "words.txt").read_text().split() == ["bird", "dog", "a", "b"]
    assert words.load([parent, child]) == {"dog", "cat", "a", "b", "bird"}
    words.save(orphan, {"\u72ac\u304c": 1}, "ja_Jpan", None)
    assert words.load([parent, orphan]) is None
