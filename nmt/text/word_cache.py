"""A cache of results for words, with bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class WordCache(dict[str, Value]):
    """A function's values by word: about a quarter faster than functools.lru_cache.

    There are two generations of `size` words. When the newer is full, it becomes the older one, and the words of that
    are forgotten unless they were used again in the meantime.
    """

    def __init__(self, function: Callable[[str], Value], size: int) -> None:
        super().__init__()
        self._function, self._size = function, size
        self._older: dict[str, Value] = {}

    def __missing__(self, word: str) -> Value:
        if len(self) >= self._size:
            self._older = dict(self)
            self.clear()
        value = self[word] = self._older[word] if word in self._older else self._function(word)
        return value
