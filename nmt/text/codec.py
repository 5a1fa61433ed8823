"""The two sides of a pair, between raw lines and ids: tokenizers and vocabularies of text and of constituency trees.

`tokenizers` and `load` read the settings; callers need not know whether the target is text or trees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from nmt.config import UNK, InputError, SubwordSettings, TokenizerSettings
from nmt.text import subwords
from nmt.text.delinearisation import align, delinearise
from nmt.text.moses import Moses
from nmt.text.subwords import SPECIALS, Subwords
from nmt.text.trees import Linearisation, Tree, escape, linearise, read_trees, words_of

TARGET = "target"
"""The folder of a closed target vocabulary, inside the folder of the source's subwords."""
_SYMBOLS = "vocabulary.txt"
Attention = Callable[[], NDArray[np.floating]]
"""Computes the weights [tokens of the target, words of the source] with which the model wrote each token."""


@runtime_checkable
class Tokenizer(Protocol):
    """One side's raw lines to tokenised ones, and back."""

    joins: bool
    """Whether several lines may be joined with spaces into one valid line: text may, trees may not."""

    def normalize(self, line: str) -> str:
        """Return the raw line with its punctuation normalised, where that is asked for."""

    def tokenize(self, line: str) -> str:
        """Return a normalised line as tokens with one space between."""

    def detokenize(self, line: str, source: str, attention: Attention | None = None) -> str:
        """Return a tokenised line as it is written; `source` is the raw source line that it belongs to.

        `attention`, where the model is at hand, helps to repair a tree.
        """

    def repairs(self, line: str, source: str, attention: Attention | None = None) -> Mapping[str, int] | None:
        """Return what `detokenize` repairs in this line, by name; None where it repairs no line whatever it is."""

    def counts(self) -> Mapping[str, int]:
        """Return counts over all lines so far, by name: the trees, and what had to be repaired in them."""


class Words:
    r"""A sentence whose words are separated by spaces; round brackets become -LRB- and -RRB-, as in treebanks.

    Spaces are those of a treebank: ` `, \t, \r and \n. A no-break space is a character of a word.
    """

    joins = True

    def normalize(self, line: str) -> str:
        return line

    def tokenize(self, line: str) -> str:
        return " ".join(escape(word) for word in words_of(line))

    def detokenize(self, line: str, source: str, attention: Attention | None = None) -> str:
        return line

    def repairs(self, line: str, source: str, attention: Attention | None = None) -> Mapping[str, int] | None:
        return None

    def counts(self) -> Mapping[str, int]:
        return {}


class Trees:
    """A tree in Penn bracketing on one line, linearised without its words. Any linearisation becomes a tree."""

    joins = False

    def __init__(self, name: Linearisation, symbols: Collection[str] = ()) -> None:
        """`symbols`: those of the model's vocabulary, if it is closed; a tree needs them where a bracket is missing."""
        self.name, self.symbols = name, frozenset(symbols)
        self._repairs: Counter[str] = Counter()

    def normalize(self, line: str) -> str:
        return line

    def tokenize(self, line: str) -> str:
        """Return the symbols of the tree; raises InputError where the line is no tree."""
        found = list(read_trees([line], "the target"))
        if len(found) > 1:
            raise InputError(f"a line of the target holds {len(found)} trees: write one a line")
        return " ".join(linearise(found[0], self.name)) if found else ""

    def detokenize(self, line: str, source: str, attention: Attention | None = None) -> str:
        """Return the tree over the source's words; an empty line where the source has none."""
        tree, repairs = self._tree(line, source, attention)
        if tree is None:
            return ""
        self._repairs += repairs + Counter({"trees": 1, "malformed trees": int(bool(repairs))})
        return str(tree)

    def repairs(self, line: str, source: str, attention: Attention | None = None) -> Mapping[str, int] | None:
        return self._tree(line, source, attention)[1]

    def _tree(self, line: str, source: str, attention: Attention | None) -> tuple[Tree | None, Counter[str]]:
        words, symbols = [escape(word) for word in words_of(source)], line.split()
        if not words:
            return None, Counter()
        aligned: Counter[str] = Counter()
        if attention is not None:
            symbols, aligned = align(symbols, words, self.name, self.symbols, attention)
        tree, repairs = delinearise(symbols, words, self.name, self.symbols)
        return tree, aligned + repairs

    def counts(self) -> Mapping[str, int]:
        return self._repairs


class Symbols(Subwords):
    """A closed vocabulary: every token is a symbol of its own, and an unknown one is UNK."""

    def __init__(self, symbols: Sequence[str], settings: SubwordSettings) -> None:
        """`symbols` are all rows before padding, the specials first."""
        super().__init__(symbols, settings)
        self._ids = {symbol: row for row, symbol in enumerate(symbols) if row >= len(SPECIALS)}

    def encode(self, line: str) -> list[int]:
        """Return the ids of a tokenised line, without EOS."""
        return [self._ids.get(token, UNK) for token in line.split()]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the tokenised line that ids stand for; specials and padding rows are skipped."""
        return " ".join(self._symbols[row] for row in ids if len(SPECIALS) <= row < self.used_rows)

    def _save_model(self, folder: Path) -> None:
        (folder / _SYMBOLS).write_bytes(("\n".join(self._symbols[: self.used_rows]) + "\n").encode())


def tokenizers(
    source: str, target: str, settings: TokenizerSettings, symbols: Collection[str] = ()
) -> tuple[Tokenizer, Tokenizer]:
    """Return the tokenizers of both languages. `symbols`: those of a closed target vocabulary, for detokenising."""
    if settings.tokenizer in ("vinyals", "tensor2tensor"):
        return Words(), Trees(settings.tokenizer, symbols)
    return Moses(source, settings), Moses(target, settings)


def learn(
    source: Mapping[str, int], target: Mapping[str, int], settings: SubwordSettings
) -> tuple[Subwords, Subwords | None]:
    """Learn one vocabulary from both sides. With `target: closed`, learn subwords from the source alone.

    Each token of a closed target becomes one symbol. Raises InputError where a side has no words.
    """
    if settings.target == "joint":
        return subwords.learn(Counter(source) + Counter(target), settings), None
    if not target:
        raise InputError("the training text's target has no symbols: give a corpus that has some")
    ordered = sorted(target, key=lambda symbol: (-target[symbol], symbol))
    return subwords.learn(source, settings), Symbols([*SPECIALS, *ordered], settings)


def save(folder: Path, source: Subwords, target: Subwords | None) -> None:
    """Write the folder that `load` reads."""
    source.save(folder)
    if target is not None:
        target.save(folder / TARGET)


def load(folder: Path) -> tuple[Subwords, Subwords]:
    """Return the vocabularies of source and target, one object where they are joint.

    Raises InputError for damaged files.
    """
    source = subwords.load(folder)
    if source.settings.target == "joint":
        return source, source
    try:
        rows = (folder / TARGET / _SYMBOLS).read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder / TARGET} holds no symbols ({error}): learn the subwords again") from error
    if tuple(rows[: len(SPECIALS)]) != SPECIALS or len(set(rows)) < len(rows):
        raise InputError(f"{folder / TARGET / _SYMBOLS} is damaged: learn the subwords again")
    return source, Symbols(rows, source.settings)
