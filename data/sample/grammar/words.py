"""The words of the grammar, from lexicon.txt, whose first lines tell its format; and numbers in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

LEXICON = Path(__file__).resolve().parent.parent / "lexicon.txt"

_ONES = (
    "", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


class Noun(NamedTuple):
    kind: str
    text: str
    plural: str
    """Empty for what is not counted."""
    preposition: str
    """Of a place."""


class Adjective(NamedTuple):
    kinds: tuple[str, ...]
    """Of nouns that it goes with."""
    text: str
    comparative: str = ""


class Verb(NamedTuple):
    text: str
    third: str
    past: str
    subjects: tuple[str, ...]
    """Kinds of nouns, or a list of nouns, `=one,two`."""
    objects: tuple[str, ...] = ()
    particle: str = ""
    preposition: str = ""


class Lexicon(NamedTuple):
    """Words by their kind, each list in the order of frequency."""

    nouns: dict[str, list[Noun]]
    verbs: dict[str, list[Verb]]
    adverbs: dict[str, list[str]]
    names: dict[str, list[str]]
    adjectives: list[Adjective]


def _regular(word: str, ending: str) -> str:
    """Return the word with -s or -ed."""
    if re.search("[^aeiou]y$", word):
        return f"{word[:-1]}ie{ending[-1]}"
    silent = word.endswith("e") if ending == "ed" else not re.search("([sx]|ch|sh)$", word)
    return word + (ending[-1] if silent else f"e{ending[-1]}")


def _parts(cell: str) -> tuple[str, str, str, str]:
    """Return a word, its irregular form, its particle and its preposition."""
    word, form, particle, preposition = re.fullmatch(r"([^/+@]+)/?([^+@]*)\+?([^@]*)@?(.*)", cell).groups()  # type: ignore[union-attr] # all but the first may be empty
    return word, form, particle, preposition


def _noun(kind: str, cell: str) -> Noun:
    word, plural, _, preposition = _parts(cell)
    return Noun(kind, word, "" if plural == "-" else plural or _regular(word, "s"), preposition)


def _verb(cell: str, subjects: str, objects: str = "") -> Verb:
    word, past, particle, preposition = _parts(cell)
    third = "goes" if word == "go" else _regular(word, "s")
    kinds = tuple(subjects.split()), tuple(objects.split())
    return Verb(word, third, past or _regular(word, "ed"), *kinds, particle, preposition)


def load() -> Lexicon:
    """Read lexicon.txt."""
    lexicon = Lexicon({}, {}, {}, {}, [])
    for line in LEXICON.read_text(encoding="utf-8").split("\n"):
        if not line or line.startswith("#"):
            continue
        part, kind, cell, *rest = line.split(" | ")
        if part == "noun":
            lexicon.nouns[kind] = [_noun(kind, word) for word in cell.split(", ")]
        elif part == "verb":
            lexicon.verbs.setdefault(kind, []).append(_verb(cell, *rest))
        elif part == "adjective":
            lexicon.adjectives.append(Adjective(tuple(kind.split()), *cell.split("/")))
        else:
            {"adverb": lexicon.adverbs, "name": lexicon.names}[part][kind] = cell.split(", ")
    return lexicon


def in_words(number: int) -> str:
    """Return a number from 1 to 99 in words."""
    if number < len(_ONES):
        return _ONES[number]
    tens, ones = divmod(number, 10)
    return "-".join(filter(None, (_TENS[tens], _ONES[ones])))
