"""Where the sentences of a line end."""

import re
from functools import cache

from nmt.text.scripts import code

SENTENCE_END = re.compile(
    r"(?<![^\s\u3002\uff01\uff1f\uff61])([^\s\u3002\uff01\uff1f\uff61]*)[.!?\u2026\u0964\u0965\u061f\u06d4\u1362\u0589\u104b\u17d4][\"'\u201c\u201d\u2019\u00bb)\]]*\s+"
    r"(?=[\"'\u201c\u201e\u00ab(\[\u00bf\u00a1]*(\w))"
    r"|[\u3002\uff01\uff1f\uff61][\u300d\u300f\u201d\u2019\uff09\u300b\u3011]*\s*(?=[^\s\u3002\uff01\uff1f])"
)
"""The second alternative is of Chinese and Japanese, which have no space after a sentence."""
_DOTTED = re.compile(r"(?:[^\W\d]{1,4}\.[-/]?)+[^\W\d]{1,4}")
"""Several abbreviations in a row, as `U.S`, `Ph.D` and `Dipl.-Ing`, without the last dot."""


@cache
def abbreviations(language: str) -> dict[str, bool]:
    """Return Moses' abbreviations without their dot, each with whether it is one before a number alone."""
    from sacremoses.corpus import NonbreakingPrefixes

    entries = map(str.split, NonbreakingPrefixes().words(code(language)))
    return {word: "#NUMERIC_ONLY#" in rest for word, *rest in entries}


def split_sentences(line: str, language: str) -> list[str]:
    """Split a line after sentences, except after Moses' abbreviations and before lower case.

    A sentence ends with `.`, `!`, `?` or another script's mark and a space, or with `。`, `！` or `？`.
    """
    shortened = abbreviations(language)
    sentences, start = [], 0
    for end in SENTENCE_END.finditer(line):
        word = (end[1] or "").lstrip("\"'(\u201c\u201e\u00ab[")
        short = (word in shortened and (not shortened[word] or end[2].isdecimal())) or _DOTTED.fullmatch(word)
        if end[1] is not None and (end[2].islower() or (line[end.end(1)] == "." and short)):
            continue
        sentences.append(line[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*sentences, line[start:].strip()) if sentence]
