"""Where the sentences of a line end."""

from __future__ import annotations

import re

_SENTENCE_END = re.compile(
    r"(?<!\S)(\S*)[.!?\u2026][\"'\u201c\u201d\u2019\u00bb)\]]*\s+(?=[\"'\u201c\u201e\u00ab(\[]*(\w))"
)


def split_sentences(line: str, language: str) -> list[str]:
    """Split a line at spaces after `.`, `!`, `?`, except after Moses' abbreviations and before lower case."""
    from sacremoses.corpus import NonbreakingPrefixes

    abbreviations = {entry.split()[0] for entry in NonbreakingPrefixes().words(language)}
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(line):
        word = end[1].lstrip("\"'(\u201c\u201e\u00ab[")
        if end[2].islower() or (line[end.end(1)] == "." and (word in abbreviations or "." in word)):
            continue
        sentences.append(line[start : end.end()].strip())
        start = end.end()
    return [sentence for sentence in (*sentences, line[start:].strip()) if sentence]
