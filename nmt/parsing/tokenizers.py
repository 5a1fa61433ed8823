"""A parser's two sides: the source's words, the target's trees as symbols, and the closed vocabulary of these."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.errors import InputError
from nmt.ids import UNK
from nmt.parsing.delinearisation import align, delinearise
from nmt.parsing.trees import Linearisation, escape, linearise, normalise, read_trees, words_of
from nmt.text.settings import SubwordSettings
from nmt.text.subwords import SPECIALS, Subwords

_SYMBOLS = "vocabulary.txt"
Attention = Callable[[], NDArray[np.floating]]
"""Computes the weights [tokens of the target, words of the source] with which the model wrote each token."""


class WordTokenizer:
    r"""A sentence whose words are separated by spaces; round brackets become -LRB- and -RRB-, as in treebanks.

    Spaces are those of a treebank: ` `, \t, \r and \n. A no-break space is a character of a word.
    """

    def tokenize(self, line: str) -> str:
        return " ".join(escape(word) for word in words_of(line))


class TreeTokenizer:
    """A tree in Penn bracketing on one line, linearised without its words. Any linearisation becomes a tree."""

    def __init__(self, scheme: Linearisation, symbols: Collection[str] = ()) -> None:
        """`symbols`: those of a closed vocabulary: they tell what opens a constituent where its end is missing."""
        self.scheme, self.symbols = scheme, frozenset(symbols)

    def tokenize(self, line: str, number: int = 1) -> str:
        """Return the symbols of the tree in line `number`, normalised; raise InputError if it is no tree."""
        trees = list(read_trees([line], "the target", number))
        if len(trees) > 1:
            raise InputError(f"line {number} of the target holds {len(trees)} trees: write one a line")
        tree = normalise(trees[0], Counter()) if trees else None
        return " ".join(linearise(tree, self.scheme)) if tree else ""

    def detokenize(
        self, line: str, source: str, attention: Attention | None = None, repairs: Counter[str] | None = None
    ) -> str:
        """Return the tree over the source's words, an empty line without words; add what was repaired to `repairs`."""
        words, symbols = [escape(word) for word in words_of(source)], line.split()
        if not words:
            return ""
        aligned: Counter[str] = Counter()
        if attention is not None:
            symbols, aligned = align(symbols, words, self.scheme, self.symbols, attention)
        tree, repaired = delinearise(symbols, words, self.scheme, self.symbols)
        if repairs is not None:
            repairs.update(aligned + repaired)
        return str(tree)


class Symbols(Subwords):
    """A closed vocabulary: every token is a symbol of its own, and an unknown one is UNK."""

    def __init__(self, symbols: Sequence[str], settings: SubwordSettings) -> None:
        """`symbols` are all rows before padding, the specials first."""
        super().__init__(symbols, settings)
        self._ids = {symbol: row for row, symbol in enumerate(symbols) if row >= len(SPECIALS)}

    def encode(self, line: str) -> list[int]:
        return [self._ids.get(token, UNK) for token in line.split()]

    def decode(self, ids: Iterable[int]) -> str:
        return " ".join(self._symbols[row] for row in ids if len(SPECIALS) <= row < self.used_rows)

    def _save_model(self, folder: Path) -> None:
        (folder / _SYMBOLS).write_bytes(("\n".join(self._symbols[: self.used_rows]) + "\n").encode())


def load_symbols(folder: Path, settings: SubwordSettings) -> Symbols:
    """Return the closed vocabulary of a folder; raise InputError for damaged files."""
    try:
        rows = (folder / _SYMBOLS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder} holds no symbols ({error}): learn the subwords again") from error
    if tuple(rows[: len(SPECIALS)]) != SPECIALS or len(set(rows)) < len(rows):
        raise InputError(f"{folder / _SYMBOLS} is damaged: learn the subwords again")
    return Symbols(rows, settings)
