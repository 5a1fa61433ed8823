r"""Moses' punctuation normaliser, tokenizer and detokenizer (Koehn et al. 2007), by sacremoses.

What is not ordinary text, on purpose:

- With tokenizer `moses`, what Moses does: whitespace of any kind (\r, tab, U+0085, U+2028, the non-breaking space)
  separates words and comes out as one space; NUL and the other control characters below U+0020 are deleted (the
  normaliser, where it is asked for, deletes \r as well); a byte order mark inside the text is a word of its own.
- With tokenizer `none`, characters that tools take for a line's end, and the other control characters, become a
  space, so that a line stays a line; everything else stays, the non-breaking space too.

A tokenised line is its words with one space between. (tokenizer.perl leaves a second one before a final `.'`.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from nmt.config import TokenizerSettings
from nmt.text.word_cache import Remembered

_LINE_BREAKERS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")
_JUNK = re.compile("[\x00-\x1f]")
_NORMALIZED = re.compile("[\r()%:;`„“”–—´‘‚’…«»º\u00a0\"]|''|  ")
"""Every rule of the normaliser needs one of these; a line without any stays as it is."""
_CACHED = 1 << 17
"""Words whose tokens are remembered, twice over."""


_Rules = list[tuple[re.Pattern[str], str]]


def _substitute(rules: _Rules, text: str) -> str:
    """Apply rules in their order. Looking first is faster: few match, and `sub` reads its template each time."""
    for pattern, replacement in rules:
        if pattern.search(text):
            text = pattern.sub(replacement, text)
    return text


def _normalizing(language: str) -> _Rules:
    """normalize-punctuation.perl's rules of 2017, made from sacremoses', which are those of 2019.

    perl reads bytes, so that only ASCII has letters, digits and spaces: `jusqu’à` becomes `jusqu"à`.
    """
    from sacremoses import MosesPunctNormalizer

    rules = MosesPunctNormalizer(language, perl_parity=True).substitutions
    if language not in ("en", "de", "fr", "es", "cs", "cz"):
        # perl has the rules for German quotes for every language but English and Czech, before that for numbers.
        rules[-1:-1] = MosesPunctNormalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
    return [
        (re.compile(pattern, re.ASCII), '"' if pattern in ("‘", "‚", "’") else replacement)
        for pattern, replacement in rules
    ]


class Moses:
    """Raw lines to tokenised ones, `tokenize(normalize(line))`, and back, for one language. Lines hold no \\n."""

    def __init__(self, language: str, settings: TokenizerSettings) -> None:
        """`language` as in ISO 639-1; one without rules of its own is tokenised as English is."""
        from sacremoses import MosesDetokenizer, MosesTokenizer

        self._settings = settings
        self._tokenizer: Any = MosesTokenizer(language)
        self._detokenizer: Any = MosesDetokenizer(language)
        self._normalizing = _normalizing(language)
        tokenizer = self._tokenizer
        self._plain = re.compile(f"[{tokenizer.IsAlnum}]+\\.?")
        self._before_dots: _Rules = [tokenizer.PAD_NOT_ISALNUM]
        if settings.aggressive_hyphens:
            self._before_dots.append(tokenizer.AGGRESSIVE_HYPHEN_SPLIT)
        if language == "en":
            apostrophes = tokenizer.ENGLISH_SPECIFIC_APOSTROPHE
        elif language in ("fr", "it"):
            apostrophes = tokenizer.FR_IT_SPECIFIC_APOSTROPHE
        else:
            apostrophes = [tokenizer.NON_SPECIFIC_APOSTROPHE]
        commas = [tokenizer.COMMA_SEPARATE_1, tokenizer.COMMA_SEPARATE_2, tokenizer.COMMA_SEPARATE_3]
        self._after_dots: _Rules = [*commas, *apostrophes]
        # sacremoses searches lists and builds sets of the whole alphabet for each full stop.
        self._letters = frozenset(tokenizer.IsAlpha)
        self._lower = frozenset(tokenizer.IsLower)
        self._before_numbers = frozenset(tokenizer.NUMERIC_ONLY_PREFIXES)
        self._abbreviations = frozenset(tokenizer.NONBREAKING_PREFIXES) - self._before_numbers
        self._words: Remembered[list[str]] = Remembered(self._inside, _CACHED)

    def normalize(self, line: str) -> str:
        """Punctuation as normalize-punctuation.perl writes it, without whitespace at the line's ends.

        The line as it is where that is not asked for. perl sees the line's end, and a rule for quotes depends on it:
        our rules have to see it too.
        """
        if not self._settings.normalize_punctuation:
            return line
        if not _NORMALIZED.search(line):
            return line.strip()
        return _substitute(self._normalizing, line + "\n").strip()

    def tokenize(self, line: str) -> str:
        """A line, once normalised, as words with one space between. Nothing is escaped as XML.

        Equals sacremoses' tokenizer, and is several times faster by remembering words.
        """
        if self._settings.tokenizer == "none":
            return _LINE_BREAKERS.sub(" ", line)
        words = line.split()
        if _JUNK.search(line):
            words = _JUNK.sub("", " ".join(words)).split()
        text = " ".join(words)
        # Two rules compete for the space in `' '`, and DOTMULTI is what sacremoses writes dots as: its own way then.
        if "' '" in text or "DOTMULTI" in text:
            return " ".join(
                self._tokenizer.tokenize(
                    line, aggressive_dash_splits=self._settings.aggressive_hyphens, escape=False, return_str=False
                )
            )
        tokens = self._tokens(words)
        self._full_stops(tokens)
        return " ".join(tokens)

    def counts(self) -> Mapping[str, int]:
        """Moses repairs nothing."""
        return {}

    def detokenize(self, line: str, source: str = "") -> str:
        """A tokenised line as it would be written; what `tokenize` gives comes back where Moses' rules allow.

        The source line makes no difference.
        """
        if self._settings.tokenizer == "none":
            return line
        detokenized: str = self._detokenizer.detokenize(line.split(), unescape=False)
        return detokenized

    def _tokens(self, words: list[str]) -> list[str]:
        """The words' tokens, full stops not yet split off."""
        tokens: list[str] = []
        remembered = self._words
        if not words or (words[0][0] not in "'," and words[-1][-1] != "'"):
            for word in words:
                tokens += remembered[word]
            return tokens
        # Apostrophes and commas are split off by what stands on both their sides; at a line's ends nothing does.
        last = len(words) - 1
        for index, word in enumerate(words):
            if index in (0, last):
                tokens += self._split(word, first=index == 0, last=index == last)
            else:
                tokens += remembered[word]
        return tokens

    def _inside(self, word: str) -> list[str]:
        """The tokens of a word with a word on each side."""
        return self._split(word, first=False, last=False)

    def _split(self, word: str, *, first: bool, last: bool) -> list[str]:
        """What Moses' rules before those for full stops make of a word."""
        if self._plain.fullmatch(word):
            return [word]
        text = _substitute(self._before_dots, ("" if first else " ") + word + ("" if last else " "))
        if ".." not in text:
            return _substitute(self._after_dots, text).split()
        text = _substitute(self._after_dots, self._tokenizer.replace_multidots(text))
        return [self._tokenizer.restore_multidots(token) for token in text.split()]

    def _full_stops(self, tokens: list[str]) -> None:
        """Split full stops off, in place, except after abbreviations and before lower case."""
        stops = [i for i, token in enumerate(tokens) if token[-1] == "." and token.strip(".")]
        for i in reversed(stops):
            prefix = tokens[i][:-1]
            following = tokens[i + 1] if i + 1 < len(tokens) else ""
            keeps = (
                ("." in prefix and not self._letters.isdisjoint(prefix))
                or prefix in self._abbreviations
                or (following and following[0] in self._lower)
                or (following and prefix in self._before_numbers and following[0] in "0123456789")
            )
            if not keeps:
                tokens[i : i + 1] = [prefix, "."]
        if tokens and tokens[-1].endswith(".'"):
            ending = tokens.pop()
            tokens += [token for token in (ending[:-2], ".", "'") if token]
