"""The words of the grammar in three languages, and the files of lexicon/ that list them.

A file has one word a line, fields parted by `|`, its format told in its first line. The order of a file is the order
of frequency. Regular forms are derived here; whatever is irregular stands in the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LEXICON = Path(__file__).resolve().parent.parent / "lexicon"
ASPIRATED = "*"
"""Stands before a French word that allows no elision; taken away when a sentence is spelled out."""

_VOWELS = "aeiouyäöü"


@dataclass(frozen=True)
class Phrase:
    """A word or phrase that is not inflected."""

    en: str
    de: str
    fr: str


@dataclass(frozen=True)
class Noun:
    """A noun; `plural` forms are empty for what is not counted."""

    kind: str
    en: str
    en_plural: str
    de: str
    de_gender: str
    de_plural: str
    de_genitive: str
    de_weak: str
    fr: str
    fr_gender: str
    fr_plural: str
    en_place: str = ""
    de_place: str = ""
    fr_place: str = ""


@dataclass(frozen=True)
class Adjective:
    """An adjective; `fr` holds masculine, feminine, masculine plural, feminine plural, masculine before a vowel."""

    kinds: tuple[str, ...]
    en: str
    en_comparative: str
    de: str
    de_stem: str
    de_comparative: str
    fr: tuple[str, str, str, str, str]
    fr_before: bool = False


@dataclass(frozen=True)
class Verb:
    """A verb; `fr_forms` holds the present of je, il, nous, ils; `de_case` is acc, dat or `preposition+case`."""

    frame: str
    en: str
    en_third: str
    en_past: str
    en_particle: str
    de: str
    de_prefix: str
    de_third: str
    de_participle: str
    de_sein: bool
    fr: str
    fr_forms: tuple[str, str, str, str]
    fr_participle: str
    fr_etre: bool
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    en_preposition: str = ""
    de_case: str = "acc"
    fr_preposition: str = ""

    @property
    def plain(self) -> bool:
        """Whether its object is a direct one in all three languages."""
        return self.de_case == "acc" and not self.fr_preposition and not self.en_preposition


@dataclass(frozen=True)
class Name:
    """A person's name, `female` for agreement in French."""

    text: str
    female: bool


@dataclass(frozen=True)
class Lexicon:
    """All words, each list in the order of frequency."""

    nouns: dict[str, tuple[Noun, ...]]
    verbs: dict[str, tuple[Verb, ...]]
    adjectives: tuple[Adjective, ...]
    adverbs: dict[str, tuple[Phrase, ...]]
    names: tuple[Name, ...]
    surnames: tuple[str, ...]
    cities: tuple[Phrase, ...]
    countries: tuple[Phrase, ...]
    by_english: dict[str, Noun] = field(default_factory=dict)


def _rows(name: str) -> list[list[str]]:
    lines = (LEXICON / name).read_text(encoding="utf-8").split("\n")
    return [[cell.strip() for cell in line.split("|")] for line in lines if line and not line.startswith("#")]


def _parts(cell: str) -> list[str]:
    return [part.strip() for part in cell.split(",")]


def _syllables(word: str) -> int:
    return len(re.findall(f"[{_VOWELS}]+", word.lower()))


def _french_plural(word: str) -> str:
    if word.endswith(("s", "x", "z")):
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + ("x" if word.endswith(("au", "eu")) else "s")


def _german_genitive(noun: str, gender: str, weak: str) -> str:
    if weak:
        return noun + weak
    if gender == "f":
        return noun
    if noun.endswith(tuple(_VOWELS)):
        return noun + "s"
    return noun + ("es" if noun.endswith(("s", "ß", "z", "x", "sch")) or _syllables(noun) == 1 else "s")


def _noun(row: list[str]) -> Noun:
    kind, english, german, french = row[:4]
    en = _parts(english)
    article, rest = german.split(" ", 1)
    de = _parts(rest)
    gender = {"der": "m", "die": "f", "das": "n"}[article]
    extra = de[2] if len(de) > 2 else ""
    weak = "" if extra.startswith("g:") else extra
    fr_article, fr_rest = french.split(" ", 1)
    fr = _parts(fr_rest)
    plural = fr[1] if len(fr) > 1 else _french_plural(fr[0])
    if fr[0].startswith(ASPIRATED) and not plural.startswith(ASPIRATED):
        plural = ASPIRATED + plural
    counted = en[-1] != "-"
    place = row[4].split() if len(row) > 4 else ["", "", ""]
    regular = en[0] + ("es" if en[0].endswith(("s", "x", "ch", "sh")) else "s")
    return Noun(
        kind=kind,
        en=en[0],
        en_plural=(en[1] if len(en) > 1 else regular) if counted else "",
        de=de[0],
        de_gender=gender,
        de_plural=de[1] if counted else "",
        de_genitive=extra[2:] if extra.startswith("g:") else _german_genitive(de[0], gender, weak),
        de_weak=weak,
        fr=fr[0],
        fr_gender="f" if fr_article == "une" else "m",
        fr_plural=plural,
        en_place=place[0],
        de_place=place[1],
        fr_place=place[2],
    )


def _adjective(row: list[str]) -> Adjective:
    english, german, french = (_parts(cell) for cell in row[1:])
    options = {part[0]: part[2:] for part in french[1:] if part[1:2] == ":"}
    forms = [part for part in french if part not in ("pre", "=") and part[1:2] != ":"]
    masculine = forms[0]
    if "=" in french:
        return Adjective(
            kinds=tuple(row[0].split()),
            en=english[0],
            en_comparative=english[1] if len(english) > 1 else "",
            de=german[0],
            de_stem=german[-1] if len(german) < 3 else german[1],
            de_comparative=german[2] if len(german) > 2 else "",
            fr=(masculine,) * 5,
        )
    feminine = forms[1] if len(forms) > 1 else masculine + ("" if masculine.endswith("e") else "e")
    return Adjective(
        kinds=tuple(row[0].split()),
        en=english[0],
        en_comparative=english[1] if len(english) > 1 else "",
        de=german[0],
        de_stem=german[1] if len(german) > 1 else german[0],
        de_comparative=german[2] if len(german) > 2 else "",
        fr=(
            masculine,
            feminine,
            options.get("p", _french_plural(masculine)),
            options.get("q", feminine + "s"),
            options.get("v", masculine),
        ),
        fr_before="pre" in french,
    )


def _english_verb(cell: str) -> tuple[str, str, str, str]:
    text, _, particle = cell.partition("+")
    forms = _parts(text)
    if len(forms) == 1:
        base = forms[0]
        forms = [base, base + "s", base + ("d" if base.endswith("e") else "ed")]
    return forms[0], forms[1], forms[2], particle.strip()


def _german_verb(cell: str) -> tuple[str, str, str, str, bool]:
    """Infinitive without its prefix, prefix, third person, participle, and whether the perfect takes sein."""
    forms = _parts(cell.removeprefix("*"))
    prefix, _, infinitive = forms[0].rpartition("+")
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    needs_e = stem.endswith(("t", "d", "fn", "chn", "tm"))
    third = forms[1] if len(forms) > 1 else stem + ("et" if needs_e else "t")
    if len(forms) > 2:
        participle = forms[2]
    else:
        unstressed = (
            infinitive.startswith(("be", "er", "ver", "zer", "ent", "ge", "unter", "über"))
            and _syllables(infinitive) > 2
        )
        joined = "" if unstressed or infinitive.endswith("ieren") else "ge"
        participle = prefix + joined + stem + ("et" if needs_e else "t")
    return infinitive, prefix, third, participle, cell.startswith("*")


def _french_verb(cell: str) -> tuple[str, tuple[str, str, str, str], str, bool]:
    """Infinitive, present of je, il, nous, ils, participle, and whether the past takes être."""
    etre = cell.startswith("*")
    forms = _parts(cell.removeprefix("*"))
    infinitive, _, strong = forms[0].partition(":")
    if len(forms) > 1:
        return infinitive, (forms[1], forms[2], forms[3], forms[4]), forms[5], etre
    stem = infinitive[:-2]
    if infinitive.endswith("ir"):
        return infinitive, (stem + "is", stem + "it", stem + "issons", stem + "issent"), stem + "i", etre
    strong = strong or stem
    soft = stem + "e" if stem.endswith("g") else stem[:-1] + "ç" if stem.endswith("c") else stem
    return infinitive, (strong + "e", strong + "e", soft + "ons", strong + "ent"), stem + "é", etre


def _classes(cell: str) -> tuple[str, ...]:
    """Kinds of nouns; a list of single nouns is written `=one,two`."""
    return tuple(part for part in cell.split() if part)


def _verb(row: list[str]) -> Verb:
    en, third, past, particle = _english_verb(row[1])
    de, prefix, de_third, participle, sein = _german_verb(row[2])
    fr, fr_forms, fr_participle, etre = _french_verb(row[3])
    prepositions = row[6].split("/") if len(row) > 6 else ["-", "acc", "-"]
    return Verb(
        frame=row[0],
        en=en,
        en_third=third,
        en_past=past,
        en_particle=particle,
        de=de,
        de_prefix=prefix,
        de_third=de_third,
        de_participle=participle,
        de_sein=sein,
        fr=fr,
        fr_forms=fr_forms,
        fr_participle=fr_participle,
        fr_etre=etre,
        subjects=_classes(row[4]),
        objects=_classes(row[5]) if len(row) > 5 else (),
        en_preposition=prepositions[0].replace("-", ""),
        de_case=prepositions[1],
        fr_preposition=prepositions[2].replace("-", ""),
    )


def _phrase(text: str) -> Phrase:
    parts = text.strip().split("/")
    return Phrase(parts[0], parts[1], parts[2]) if len(parts) == 3 else Phrase(text.strip(), text.strip(), text.strip())


def _shuffled_pairs(names: dict[str, list[str]]) -> tuple[Name, ...]:
    """Female and male names in turn, so that both are frequent."""
    both = zip(names["f"], names["m"], strict=True)
    return tuple(name for f, m in both for name in (Name(f, True), Name(m, False)))


def load() -> Lexicon:
    """Read the files of lexicon/; raises KeyError or ValueError where a line breaks its file's format."""
    nouns: dict[str, list[Noun]] = {}
    for row in _rows("nouns.txt"):
        nouns.setdefault(row[0], []).append(_noun(row))
    verbs: dict[str, list[Verb]] = {}
    for row in _rows("verbs.txt"):
        verbs.setdefault(row[0], []).append(_verb(row))
    adverbs: dict[str, list[Phrase]] = {}
    for row in _rows("adverbs.txt"):
        adverbs.setdefault(row[0], []).append(Phrase(row[1], row[2], row[3]))
    names: dict[str, list[str]] = {}
    for kind, text in _rows("names.txt"):
        names.setdefault(kind, []).extend(_parts(text) if kind in "mfs" else text.split(";"))
    return Lexicon(
        nouns={kind: tuple(words) for kind, words in nouns.items()},
        verbs={frame: tuple(words) for frame, words in verbs.items()},
        adjectives=tuple(_adjective(row) for row in _rows("adjectives.txt")),
        adverbs={kind: tuple(words) for kind, words in adverbs.items()},
        names=_shuffled_pairs(names),
        surnames=tuple(names["s"]),
        cities=tuple(_phrase(text) for text in names["c"]),
        countries=tuple(_phrase(text) for text in names["n"]),
        by_english={noun.en: noun for words in nouns.values() for noun in words},
    )
