r"""Moses' punctuation normaliser, tokenizer and detokenizer (Koehn et al. 2007), by sacremoses.

Characters other than ordinary text:

- Tokenizer `moses` does as Moses: white space of any kind (\r, tab, U+0085, U+2028, the non-breaking space) becomes one
  space; other control characters below U+0020 are deleted (the normaliser also deletes \r); a byte order mark inside
  the text is a word.
- Tokenizer `none` replaces control characters, and others that tools take for the end of a line, by a space.

One space separates the words of a tokenised line. (tokenizer.perl leaves two before a final `.'`.)
"""

import re
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from nmt.text.scripts import code
from nmt.text.settings import TokenizerSettings

LINE_BREAKERS = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029]")  # a space takes their place with tokenizer `none`
_JUNK = re.compile("[\x00-\x1f]")
_NORMALIZED = re.compile("[\r()%:;`„“”–—´‘‚’…«»º\u00a0\"]|''|  ")
"""The normaliser changes no line without one of these."""
# Without apostrophes, which belong to words.
_LATIN_PUNCTUATION = re.compile("\\s*([!-&(-/:-@\\[-`{-~\u00a0-\u00bf\u2000-\u2018\u201a-\u206f])\\s*")
_CACHED = 1 << 18  # words
SAMPLE = 500  # lines of each training text for which Moses is tried
MOST_CHANGED = 0.1
"""Largest share of lines that Moses may change; at most 0.03 in real en, de, fr, cs, ru, at least 0.11 in ar, ja."""

Rules = list[tuple[re.Pattern[str], str]]


def _without_spaces(line: str) -> str:
    return _LATIN_PUNCTUATION.sub(r"\1", " ".join(line.split()))


def _substitute(rules: Rules, text: str) -> str:
    for pattern, replacement in rules:
        if pattern.search(text):  # Faster: few rules match, and `sub` parses its template each time.
            text = pattern.sub(replacement, text)
    return text


def normalizing(language: str) -> Rules:
    """Return the rules of normalize-punctuation.perl of 2017, made from sacremoses', which are those of 2019.

    perl reads bytes, so only ASCII characters are letters, digits and spaces: `jusqu’à` becomes `jusqu"à`.
    """
    from sacremoses import MosesPunctNormalizer

    rules = MosesPunctNormalizer(language, perl_parity=True).substitutions
    if language not in ("en", "de", "fr", "es", "cs", "cz"):
        # perl applies the rule for German quotes, before the one for numbers, to all but English and Czech.
        rules[-1:-1] = MosesPunctNormalizer.DE_ES_FR_QUOTATION_FOLLOWED_BY_COMMA
    return [
        (re.compile(pattern, re.ASCII), '"' if pattern in ("‘", "‚", "’") else replacement)
        for pattern, replacement in rules
    ]


class Moses:
    """Tokenises raw lines of one language, and back. Lines have no \\n.

    `language` is an ISO 639-1 code; one without rules of its own is tokenised as English.
    """

    def __init__(self, language: str, settings: TokenizerSettings) -> None:
        from sacremoses import MosesDetokenizer, MosesTokenizer

        language = code(language)  # as Moses names it
        self._settings = settings
        self._tokenizer: Any = MosesTokenizer(language)
        # Its rules for Czech look at the end of the sentence, whatever the word.
        self._detokenizer: Any = MosesDetokenizer("" if language == "cs" else language)
        self._normalizing = normalizing(language)
        tokenizer = self._tokenizer
        self._plain = re.compile(f"[{tokenizer.IsAlnum}]+\\.?")
        self._before_dots: Rules = [tokenizer.PAD_NOT_ISALNUM]
        if settings.aggressive_hyphens:
            self._before_dots.append(tokenizer.AGGRESSIVE_HYPHEN_SPLIT)
        apostrophes = dict.fromkeys(("fr", "it"), tokenizer.FR_IT_SPECIFIC_APOSTROPHE)
        apostrophes["en"] = tokenizer.ENGLISH_SPECIFIC_APOSTROPHE
        commas = [tokenizer.COMMA_SEPARATE_1, tokenizer.COMMA_SEPARATE_2, tokenizer.COMMA_SEPARATE_3]
        self._after_dots: Rules = [*commas, *apostrophes.get(language, [tokenizer.NON_SPECIFIC_APOSTROPHE])]
        # sacremoses searches lists, and builds sets of the whole alphabet, at each full stop; sets are faster.
        self._letters = frozenset(tokenizer.IsAlpha)
        self._lower = frozenset(tokenizer.IsLower)
        self._before_numbers = frozenset(tokenizer.NUMERIC_ONLY_PREFIXES)
        self._abbreviations = frozenset(tokenizer.NONBREAKING_PREFIXES) - self._before_numbers
        self._word = lru_cache(_CACHED)(self._split)

    def normalize(self, line: str) -> str:
        """Compose letters; normalise punctuation as normalize-punctuation.perl does, and strip: as the settings say."""
        if self._settings.compose:
            line = unicodedata.normalize("NFC", line)
        if not self._settings.normalize_punctuation:
            return line
        if not _NORMALIZED.search(line):
            return line.strip()
        # A rule for quotes depends on the \\n at the end of the line.
        return _substitute(self._normalizing, line + "\n").strip()

    def tokenize(self, line: str) -> str:
        """Normalise a line; return its words with one space between. Nothing is escaped as XML.

        Equals sacremoses' tokenizer, and is several times faster because it caches words.
        Without Moses' rules, spaces inside the line stay. Those at its ends, which would be pieces of their own, go.
        """
        line = self.normalize(line)
        if self._settings.tokenizer == "none":
            return LINE_BREAKERS.sub(" ", line).strip()
        words = line.split()
        if _JUNK.search(line):
            words = _JUNK.sub("", " ".join(words)).split()
        text = " ".join(words)
        # sacremoses itself tokenises lines with `' '`, where two rules overlap; with DOTMULTI, its mark for dots; or
        # with an apostrophe or a comma at an end, which lacks a neighbour.
        if "' '" in text or "DOTMULTI" in text or text.startswith(("'", ",")) or text.endswith("'"):
            aggressive = self._settings.aggressive_hyphens
            return " ".join(self._tokenizer.tokenize(line, aggressive_dash_splits=aggressive, escape=False))
        tokens = list(chain.from_iterable(map(self._word, words)))
        self._full_stops(tokens)
        return " ".join(tokens)

    def detokenize(self, line: str) -> str:
        """Return a tokenised line as it would be written, as far as Moses' rules restore it."""
        if self._settings.tokenizer == "none":
            return line
        return str(self._detokenizer.detokenize(line.split(), unescape=False))

    def changed(self, lines: Sequence[str]) -> float:
        """Return the share of raw lines that do not come back, but for the spaces of Latin punctuation."""
        texts = [line for line in map(self.normalize, lines) if line.strip()]
        made = (self.detokenize(self.tokenize(text)) for text in texts)
        changed = [_without_spaces(text) != _without_spaces(new) for text, new in zip(texts, made, strict=True)]
        return sum(changed) / max(1, len(changed))

    def _split(self, word: str) -> list[str]:
        """Apply Moses' rules before those for full stops."""
        if self._plain.fullmatch(word):
            return [word]
        text = _substitute(self._before_dots, f" {word} ")
        if ".." not in text:
            return _substitute(self._after_dots, text).split()
        text = _substitute(self._after_dots, self._tokenizer.replace_multidots(text))
        return [self._tokenizer.restore_multidots(token) for token in text.split()]

    def _full_stops(self, tokens: list[str]) -> None:
        """Split off full stops, in place, except after abbreviations and before lower case."""
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
