"""Where the sentences of a line end."""

from __future__ import annotations

import re
from functools import cache

from nmt.text.scripts import code

SENTENCE_END = re.compile(
    r"(?<![^\s\u3002\uff01\uff1f\uff61])([^\s\u3002\uff01\uff1f\uff61]*)[.!?\u2026\u0964\u0965\u061f\u06d4\u1362\u0589\u104b\u17d4][\"'\u201c\u201d\u2019\u00bb)\]]*\s+"
    r"(?=[\"'\u201c\u201e\u00ab(\[\u00bf\u00a1]*(\w))"
    r"|[\u3002\uff01\uff1f\uff61][\u300d\u300f\u201d\u2019\uff09\u300b\u3011]*\s*(?=[^\s\u3002\uff01\uff1f])"
)
"""The second alternative is of Chinese and Japanese, which have no space after a sentence."""


@cache
def abbreviations(language: str) -> frozenset[str]:
    """Return the words after which a dot ends no sentence, without the dot: Moses' for the language."""
    from sacremoses.corpus import NonbreakingPrefixes

    return frozenset(entry.split()[0] for entry in NonbreakingPrefixes().words(code(language)))


def split_sentences(line: str, language: str) -> list[str]:
    """Split a line after sentences, except after Moses' abbreviations and before lower case.

    A sentence ends with `.`, `!`, `?` or another script's mark and a space, or with `。`, `！` or `？`.
    """
    shortened = abbreviations(language)
    sentences, start = [], 0
    for end in SENTENCE_END.finditer(line):
        word = (end[1] or "").lstrip("\"'(\u201c\u201e\u00ab[")
        if end[1] is not None and (
            end[2].islower() or (line[end.end(1)] == "." and (word in shortened or "." in word.rstrip(".")))
        ):
            continue
        sentences.append(line[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*sentences, line[start:].strip()) if sentence]
