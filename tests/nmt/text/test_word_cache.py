"""Values by word, in bounded memory."""

from __future__ import annotations

from unittest.mock import Mock, call

from nmt.text.word_cache import WordCache


def test_finds_each_word_once_while_it_is_in_use() -> None:
    find = Mock(side_effect=str.upper)
    words = WordCache(find, 10)
    for number in range(200):
        assert words["often"] == "OFTEN"
        assert words[f"once {number}"] == f"ONCE {number}"
        assert len(words) <= 10
    assert find.mock_calls.count(call("often")) == 1
    assert find.call_count == 201
    words["once 0"]
    assert find.mock_calls.count(call("once 0")) == 2, "what is no longer used is forgotten"
