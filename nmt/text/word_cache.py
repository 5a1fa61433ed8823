"""What was worked out for words, kept for those that text goes on using, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class Remembered(dict[str, Value]):
    """A function's values by word, each found once while the word stays in use.

    There are two generations of `size` words: a full one becomes the older, what is used of that comes back, and the
    rest is forgotten when the next is full. So the words of every line stay, and the rare ones, of which text never
    has an end, go.
    """

    def __init__(self, function: Callable[[str], Value], size: int) -> None:
        super().__init__()
        self._function = function
        self._size = size
        self._older: dict[str, Value] = {}

    def __missing__(self, word: str) -> Value:
        if len(self) >= self._size:
            self._older = dict(self)
            self.clear()
        value = self._older[word] if word in self._older else self._function(word)
        self[word] = value
        return value
