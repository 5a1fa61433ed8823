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


def test_forgets_what_is_no_longer_used() -> None:
    asked: list[str] = []

    def find(word: str) -> int:
        asked.append(word)
        return len(word)

    words = WordCache(find, 2)
    for word in ("a", "b", "c", "d", "e", "a"):
        assert words[word] == 1
    assert asked == ["a", "b", "c", "d", "e", "a"]
