"""Values by word, in bounded memory."""

from __future__ import annotations

from nmt.text.word_cache import WordCache


def test_finds_each_word_once_while_it_is_in_use() -> None:
    asked: list[str] = []

    def upper(word: str) -> str:
        asked.append(word)
        return word.upper()

    words = WordCache(upper, 10)
    for number in range(200):
        assert words["often"] == "OFTEN"
        assert words[f"once {number}"] == f"ONCE {number}"
        assert len(words) <= 10
    assert asked.count("often") == 1
    assert len(asked) == 201
    words["once 0"]
    assert asked.count("once 0") == 2, "what is no longer used is forgotten"
