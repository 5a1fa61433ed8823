"""The two sides of a pair, between raw lines and ids. Callers need not know whether the target is text or trees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

from nmt.errors import InputError
from nmt.parsing.tokenizers import Symbols, TreeTokenizer, WordTokenizer, load_symbols
from nmt.text import subwords
from nmt.text.moses import Moses
from nmt.text.settings import SubwordSettings, TokenizerSettings
from nmt.text.subwords import SPECIALS, Subwords

TARGET = "target"
"""The folder of a closed target vocabulary, inside the folder of the source's subwords."""


def tokenizers(
    source: str, target: str, settings: TokenizerSettings, symbols: Collection[str] = ()
) -> tuple[Moses | WordTokenizer, Moses | TreeTokenizer]:
    """Return the tokenizers of both languages, of raw lines to tokens with one space between, and back.

    `symbols`: those of a closed target vocabulary, for detokenising."""
    if settings.tokenizer in ("vinyals", "tensor2tensor"):
        return WordTokenizer(), TreeTokenizer(settings.tokenizer, symbols)
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
    return source, load_symbols(folder / TARGET, source.settings)
