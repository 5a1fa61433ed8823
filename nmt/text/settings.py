"""Settings of text: tokens, which pairs are kept, subwords, bins."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from nmt.schema import Count, Settings, Size


class TokenizerSettings(Settings):
    tokenizer: Literal["moses", "none", "vinyals", "tensor2tensor"]
    """The last two: the source is words separated by spaces, the target trees in this linearisation (6.3)."""
    normalize_punctuation: bool
    aggressive_hyphens: bool
    """Moses' `-a`: `well-known` becomes `well @-@ known`."""
    compose: Annotated[bool, Field(exclude_if=lambda asked: not asked)] = False
    """Make a letter and its accent one character (Unicode's NFC). Unless it is asked for, no file names it."""


class FilterSettings(Settings):
    """Which tokenised training pairs are dropped. Lengths are tokens, or characters for zh, ja, th, ..."""

    min_tokens: Count
    max_tokens: Count
    max_ratio: Annotated[float, Field(ge=1.0)] | None
    """Tokens of the longer side divided by those of the shorter; null: no limit."""
    drop_identical: bool
    """Drop pairs whose sides are equal; neither the paper's code nor fairseq's recipe does."""


class PreparationSettings(Settings):
    tokenizer: TokenizerSettings
    filters: FilterSettings


def one_size(base: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """Return differences from the subwords of `base` in which setting `merges` or `vocabulary` empties the other."""
    others = (("merges", "vocabulary"), ("vocabulary", "merges"))
    emptied = {other: None for size, other in others if differences.get(size) is not None and other in base}
    return {**emptied, **differences}


Symbol = Annotated[str, Field(pattern=r"^[^\s\u2581]+$")]
RESERVED = r"<(pad|s|/s|unk|0x[0-9A-F]{2})>"
"""Rows that word pieces have already: in a text, a symbol `</s>` would be the end of a sentence."""


class SubwordSettings(Settings):
    """Joint BPE (Sennrich et al. 2016) or word pieces; section 5.1."""

    kind: Literal["bpe", "wordpieces"]
    merges: Size | None
    """BPE only: the number of merge operations."""
    vocabulary: Size | None
    """The number of subwords to learn, instead of a number of merges."""
    target: Literal["joint", "closed"] = "joint"
    """One vocabulary for both sides, or the source's subwords and all symbols of the target."""
    character_coverage: Annotated[float, Field(ge=0.98, le=1.0, exclude_if=lambda value: value == 0.9995)] = 0.9995
    """Of sentencepiece, as the next two, and dumped where set: the share of characters that do not become bytes."""
    split_digits: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    """Each digit is a piece of its own."""
    user_defined_symbols: Annotated[tuple[Symbol, ...], Field(exclude_if=lambda value: not value)] = ()
    """Pieces that are never torn nor joined, such as the language tag `<2de>`."""
    multiple_of: Size
    """The vocabulary is padded to a multiple of this with rows that no text uses."""

    @model_validator(mode="after")
    def _one_size(self) -> "SubwordSettings":
        if (self.merges is None) == (self.vocabulary is None):
            raise ValueError("give either merges or vocabulary, and leave the other null")
        if self.kind == "wordpieces" and self.vocabulary is None:
            raise ValueError("word pieces are sized by vocabulary, not by merges: set subwords.vocabulary")
        if self.kind == "bpe" and (given := sorted(self.sentencepiece_options)):
            raise ValueError(f"{given[0]} is a setting of word pieces, and kind is bpe: remove it")
        symbols = self.user_defined_symbols
        for symbol in symbols:
            if re.fullmatch(RESERVED, symbol) or symbols.count(symbol) > 1:
                raise ValueError(f"user_defined_symbols has `{symbol}` twice, or it is word pieces' own: rename it")
        return self

    @property
    def sentencepiece_options(self) -> dict[str, Any]:
        """Return the settings of sentencepiece that are not its defaults, by its names."""
        return self.model_dump(mode="json", include={"character_coverage", "split_digits", "user_defined_symbols"})


class BinningSettings(Settings):
    max_length: Count
    """Training pairs with more subwords than this on a side, EOS included, are dropped."""
    growth: Annotated[float, Field(gt=1.0)]
    """The upper length of each bin divided by that of the bin before."""
