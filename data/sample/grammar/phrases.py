"""Random words, noun phrases and places, with frequent and rare words as in any text."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from grammar.numbers import in_words, storeyed, years_old
from grammar.syntax import POSSESSIVES, Determiner, NounPhrase, Person, Place, Pronoun
from grammar.words import Adjective, Lexicon, Noun, Phrase

T = TypeVar("T")

FLATNESS = 2
STEEPNESS = 1.2
"""Words are drawn with weight (rank + FLATNESS) ** -STEEPNESS: Zipf's law, its head cut."""

GENDERED: tuple[Person, ...] = ("he", "she", "they")
PERSONS: tuple[Person, ...] = (*GENDERED, "I", "we")
DEFINITE: tuple[Determiner, ...] = ("the", "the", "the", "my", "his", "her", "our", "their", "this")
UNIQUE = ("mother", "father", "husband", "wife", "king", "queen", "boss", "president", "mother-in-law", "father-in-law")
BUILDINGS = ("house", "tower", "hotel", "school", "hospital", "castle", "factory", "library")


class PhraseSampler:
    """Draws noun phrases from one stream of random numbers."""

    def __init__(self, lexicon: Lexicon, randomness: random.Random) -> None:
        self.lexicon = lexicon
        self.random = randomness
        self._weights: dict[int, list[float]] = {}
        self._ages = tuple(years_old(number) for number in range(2, 20))
        self._storeys = tuple(storeyed(number) for number in range(2, 10))
        self._numbers = tuple(in_words(number) for number in range(2, 100))
        self._adjectives: dict[str, tuple[Adjective, ...]] = {}

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.random.random() < probability

    def weighted(self, weights: Mapping[str, int]) -> str:
        """One of the keys, by its weight."""
        return self.random.choices(tuple(weights), tuple(weights.values()))[0]

    def pick(self, words: Sequence[T]) -> T:
        """One of the words, the first ones more often."""
        weights = self._weights.get(len(words))
        if weights is None:
            raw = ((rank + FLATNESS) ** -STEEPNESS for rank in range(len(words)))
            weights = self._weights[len(words)] = list(itertools.accumulate(raw))
        return self.random.choices(words, cum_weights=weights)[0]

    def noun(self, kinds: Sequence[str]) -> Noun:
        """A noun of one of the kinds, or one of the list `=one,two`."""
        kind = self.random.choice(kinds)
        if kind.startswith("="):
            return self.lexicon.by_english[self.random.choice(kind[1:].split(","))]
        return self.pick(self.lexicon.nouns[kind])

    def adjective(self, noun: Noun, predicate: bool = False) -> Adjective:
        """An adjective that goes with the noun."""
        if not predicate and noun.kind in ("person", "animal") and self.chance(0.06):
            return self.pick(self._ages)
        if not predicate and noun.en in BUILDINGS and self.chance(0.3):
            return self.pick(self._storeys)
        if noun.kind not in self._adjectives:
            fits = tuple(word for word in self.lexicon.adjectives if {noun.kind, "all"} & set(word.kinds))
            if noun.kind in ("mass", "drink", "food"):
                fits = tuple(word for word in fits if noun.kind in word.kinds)
            self._adjectives[noun.kind] = fits
        return self.pick(self._adjectives[noun.kind])

    def name(self) -> NounPhrase:
        """A first name, sometimes with a surname."""
        surname = self.pick(self.lexicon.surnames) if self.chance(0.25) else ""
        return NounPhrase(self.pick(self.lexicon.names), surname=surname)

    def _owner(self) -> NounPhrase:
        """A name whose German genitive needs no apostrophe at its end, which Moses' detokenizer misplaces."""
        return NounPhrase(self.pick([name for name in self.lexicon.names if name.text[-1] not in "sxz"]))

    def _count(self, noun: Noun) -> tuple[Determiner, bool, Phrase | None]:
        """A determiner, whether the noun is plural, and a number."""
        plural = self.chance(0.27)
        kind = self.weighted({"the": 43, "a": 22, "possessive": 14, "number": 9, "this": 6, "many": 4, "every": 2})
        number = None
        determiner: Determiner = "the"
        if kind == "possessive":
            determiner = self.random.choice(POSSESSIVES)
            plural = plural and noun.en not in UNIQUE
        elif kind == "number":
            determiner, plural, number = "the" if self.chance(0.2) else "", True, self.pick(self._numbers)
        elif kind == "many":
            determiner, plural = "many" if self.chance(0.5) else "some", True
        elif kind == "every":
            determiner, plural = "every", False
        elif kind == "this":
            determiner = "this"
        elif kind == "a":
            determiner = "" if plural else "a"
        return determiner, plural, number

    def phrase(self, kinds: Sequence[str], simple: bool = False, definite: bool = False) -> NounPhrase:
        """A noun phrase; `simple` has no adjective, number or owner, `definite` stands in a negated clause."""
        noun = self.noun(kinds)
        if simple or definite or not noun.en_plural:
            adjective = self.adjective(noun) if self.chance(0.15) and not simple else None
            determiner = self.random.choice(DEFINITE)
            plural = self.chance(0.27) and bool(noun.en_plural) and not (determiner != "the" and noun.en in UNIQUE)
            return NounPhrase(noun, determiner, plural, adjective=adjective)
        if self.chance(0.07) and noun.kind not in ("person", "place"):
            owner = self._owner() if self.chance(0.4) else self.phrase(["person"], simple=True)
            return NounPhrase(noun, plural=self.chance(0.27), owner=owner)
        determiner, plural, number = self._count(noun)
        adjective = self.adjective(noun) if self.chance(0.30) else None
        return NounPhrase(noun, determiner, plural, number, adjective)

    def specific(self, phrase: NounPhrase) -> NounPhrase:
        """Not a bare plural: as a subject it would be generic, and French says that otherwise."""
        if phrase.determiner == "" and not phrase.number and not phrase.owner:
            return dataclasses.replace(phrase, determiner="the")
        return phrase

    def person(self, people: Sequence[Person]) -> NounPhrase:
        """A name or a pronoun."""
        return self.name() if self.chance(0.5) else NounPhrase(Pronoun(self.random.choice(people)))

    def subject(
        self, kinds: Sequence[str], simple: bool = False, definite: bool = False, people: Sequence[Person] = PERSONS
    ) -> NounPhrase:
        """A subject of one of the kinds: a name, a pronoun or a noun phrase."""
        kind = self.random.choice(kinds)
        if kind == "person" and self.chance(0.45):
            return self.person(people)
        return self.specific(self.phrase([kind], simple=simple or self.chance(0.4), definite=definite))

    def place(self) -> Place:
        """Where something happens."""
        kind = self.weighted({"noun": 70, "city": 22, "country": 8})
        if kind == "city":
            return Place(self.pick(self.lexicon.cities))
        if kind == "country":
            return Place(self.pick(self.lexicon.countries), country=True)
        noun = self.pick(self.lexicon.nouns["place"])
        adjective = self.adjective(noun) if self.chance(0.12) else None
        return Place(NounPhrase(noun, "the" if self.chance(0.75) else "a", adjective=adjective))
