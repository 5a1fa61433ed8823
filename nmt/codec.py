"""The two sides of a pair, between raw lines and ids, whether the target is text or trees."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nmt.errors import InputError
from nmt.ids import EOS
from nmt.parsing.tokenizers import Attention, Symbols, TreeTokenizer, WordTokenizer, load_symbols
from nmt.parsing.trees import LINEARISATIONS
from nmt.text import subwords
from nmt.text.moses import Moses
from nmt.text.parallel_text import is_blank
from nmt.text.settings import SubwordSettings, TokenizerSettings
from nmt.text.subwords import SPECIALS, Subwords

TARGET = "target"  # the folder of a closed target vocabulary, inside the folder of the source's subwords


def tokenizers(
    source: str, target: str, settings: TokenizerSettings, symbols: Collection[str] = ()
) -> tuple[Moses | WordTokenizer, Moses | TreeTokenizer]:
    """Return the tokenizers of source and target. They turn raw lines into tokens separated by one space, and back.

    `symbols`: those of a closed target vocabulary, for detokenising."""
    if settings.tokenizer in LINEARISATIONS:
        return WordTokenizer(), TreeTokenizer(settings.tokenizer, symbols)
    return Moses(source, settings), Moses(target, settings)


def learn(source: Mapping[str, int], target: Mapping[str, int], settings: SubwordSettings) -> tuple[Subwords, Subwords]:
    """Learn one vocabulary from both sides, and return it twice.

    With `target: closed`, subwords are learned from the source alone, and each token of the target becomes one symbol.
    Raises InputError where a side has no words.
    """
    if settings.target == "joint":
        joint = subwords.learn(Counter(source) + Counter(target), settings)
        return joint, joint
    if not target:
        raise InputError("the training text's target has no symbols: give a corpus that has some")
    ordered = sorted(target, key=lambda symbol: (-target[symbol], symbol))
    return subwords.learn(source, settings), Symbols([*SPECIALS, *ordered], settings)


def save(folder: Path, source: Subwords, target: Subwords) -> None:
    source.save(folder)
    if target is not source:
        target.save(folder / TARGET)


def load(folder: Path) -> tuple[Subwords, Subwords]:
    """Return the vocabularies of source and target, one object if joint; raise InputError for damaged files."""
    source = subwords.load(folder)
    if source.settings.target == "joint":
        return source, source
    return source, load_symbols(folder / TARGET, source.settings)


class Codec:
    """Encode raw lines to ids and decode ids to raw lines, with a folder of subwords."""

    def __init__(self, folder: Path, source: str, target: str, settings: TokenizerSettings) -> None:
        """Raises InputError as `load` does."""
        self.subwords, self.target_subwords = load(folder)
        self.closed = self.target_subwords is not self.subwords
        """Whether each token of the target is a symbol of its own."""
        symbols = self.target_subwords.symbols(range(self.target_subwords.used_rows)) if self.closed else ()
        self.source, self.target = tokenizers(source, target, settings, symbols)
        self.writes_trees = isinstance(self.target, TreeTokenizer)
        """If so, the outputs for a line's sentences cannot be joined, and any output may have to be repaired."""

    def encode(self, line: str) -> list[int]:
        """Return the subword ids of a raw source line, EOS last; none for a line without text."""
        return _encode(line, self.source.tokenize, self.subwords)

    def encode_target(self, line: str, number: int = 1) -> list[int]:
        """Return the ids of a raw target line as `encode` does; raise InputError, with its number, if it is no tree."""
        target = self.target
        tokenize = partial(target.tokenize, number=number) if isinstance(target, TreeTokenizer) else target.tokenize
        return _encode(line, tokenize, self.target_subwords)

    def write(
        self, ids: Sequence[int], line: str, weights: Attention | None = None, repairs: Counter[str] | None = None
    ) -> str:
        """Return the raw output of a source line; what is repaired in it to make a tree is added to `repairs`.

        `weights` computes the attention [ids and EOS, source ids and EOS] with which the ids were written.
        """
        tokens = self.target_subwords.decode(ids)
        if not isinstance(self.target, TreeTokenizer):
            return self.target.detokenize(tokens)
        attention = None if weights is None else self.word_attention(ids, line, weights)
        return self.target.detokenize(tokens, line, attention, repairs)

    def word_attention(self, ids: Sequence[int], line: str, weights: Attention) -> Attention | None:
        """Return what computes the attention of symbols to words; None where symbols are not tokens."""
        if not self.closed:
            return None
        lengths = [len(self.subwords.encode(word)) for word in self.source.tokenize(line).split(" ")]

        def compute() -> NDArray[np.floating]:
            used = [row for row, token in enumerate(ids) if len(SPECIALS) <= token < self.target_subwords.used_rows]
            return np.add.reduceat(weights()[used, :-1], np.cumsum([0, *lengths[:-1]]), axis=1)

        return compute if sum(lengths) == len(self.encode(line)) - 1 else None


def _encode(line: str, tokenize: Callable[[str], str], vocabulary: Subwords) -> list[int]:
    # Subwords of raw text would keep the spaces of a blank line.
    ids = vocabulary.encode(tokenize(line)) if not is_blank(line) else []
    return [*ids, EOS] if ids else []
