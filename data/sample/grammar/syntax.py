"""Sentences as trees, the same for all languages, and the constructions found in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grammar.words import Adjective, Name, Noun, Phrase, Verb

Person = Literal["I", "he", "she", "we", "they"]
Tense = Literal["present", "past", "must", "can", "want", "future"]
Determiner = Literal["the", "a", "no", "this", "every", "many", "some", "my", "his", "her", "our", "their", ""]

POSSESSIVES: tuple[Determiner, ...] = ("my", "his", "her", "our", "their")
MODALS = ("must", "can", "want")


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; `they` is masculine in French, and so are `I` and `we`."""

    person: Person


@dataclass(frozen=True)
class NounPhrase:
    """A determiner, a number, an adjective and a head; `no` is the `a` or `any` of a negated object."""

    head: Noun | Name | Pronoun
    determiner: Determiner = ""
    plural: bool = False
    number: Phrase | None = None
    adjective: Adjective | None = None
    owner: NounPhrase | None = None
    """`the teacher's`, `Anna's`; takes the place of the determiner."""
    surname: str = ""
    relative: Clause | None = None
    """Its gap is its subject if that is None, else its object."""

    @property
    def noun(self) -> Noun:
        """The head, where it is a noun; raises TypeError where it is not."""
        if not isinstance(self.head, Noun):
            raise TypeError(f"{self.head} is no noun")
        return self.head

    @property
    def person(self) -> Literal[1, 3]:
        """Grammatical person."""
        return 1 if isinstance(self.head, Pronoun) and self.head.person in ("I", "we") else 3

    @property
    def is_plural(self) -> bool:
        """Grammatical number."""
        return self.plural or (isinstance(self.head, Pronoun) and self.head.person in ("we", "they"))

    @property
    def is_definite(self) -> bool:
        """In German, a definite object stands before `nicht`."""
        return self.determiner not in ("a", "no", "", "some", "many") or not isinstance(self.head, Noun)


@dataclass(frozen=True)
class Place:
    """Where, or where to: a noun with its own preposition, or a city or country."""

    where: NounPhrase | Phrase
    country: bool = False


@dataclass(frozen=True)
class Comparison:
    """`more` is `bigger than`, else `as big as`."""

    more: bool
    other: NounPhrase


@dataclass(frozen=True)
class Clause:
    """A verb and what belongs to it. `subject` or `object` is None where a question or relative clause asks for it."""

    subject: NounPhrase | None
    verb: Verb
    tense: Tense = "present"
    negated: bool = False
    object: NounPhrase | None = None
    recipient: NounPhrase | None = None
    frequency: Phrase | None = None
    manner: Phrase | None = None
    companion: NounPhrase | None = None
    place: Place | None = None
    goal: Place | None = None
    into: bool = False
    time: Phrase | None = None
    predicate: Adjective | None = None
    comparison: Comparison | None = None
    measure: Phrase | None = None

    def agreeing(self, gap: NounPhrase | None) -> NounPhrase:
        """What the verb agrees with: the subject, or what its gap stands for; raises ValueError without either."""
        phrase = self.subject or gap
        if phrase is None:
            raise ValueError("a clause without a subject needs what its gap stands for")
        return phrase

    @property
    def negative(self) -> bool:
        """French needs `ne`."""
        return self.negated or (self.frequency is not None and self.frequency.en == "never")


@dataclass(frozen=True)
class Statement:
    """A main clause, `fronted` where its time stands first."""

    clause: Clause
    fronted: bool = False


@dataclass(frozen=True)
class Question:
    """A question: yes or no (`asked` is None), why, when, where, who (the subject), what (the object), or a noun
    phrase asked for with which or how many; the clause's gap tells what is missing."""

    clause: Clause
    asked: Literal["why", "when", "where", "who", "what"] | None = None
    which: NounPhrase | None = None
    how_many: bool = False


@dataclass(frozen=True)
class Subordination:
    """Two clauses and because, if, when, while, that or whether."""

    main: Clause
    conjunction: Phrase
    subordinate: Clause
    fronted: bool = False


@dataclass(frozen=True)
class Coordination:
    """Two main clauses and `and` or `but`."""

    first: Clause
    conjunction: Phrase
    second: Clause


@dataclass(frozen=True)
class Quotation:
    """Who says it, and what, in quotes; `last` where the speaker stands after it."""

    speaker: Clause
    said: Statement | Question
    last: bool = False


@dataclass(frozen=True)
class Existence:
    """There is something somewhere."""

    what: NounPhrase
    place: Place


@dataclass(frozen=True)
class Birth:
    """Somebody was born in a year in a city."""

    who: NounPhrase
    year: str
    place: Place


Sentence = Statement | Question | Subordination | Coordination | Quotation | Existence | Birth


def _noun_phrase_tags(phrase: NounPhrase, dative: bool = False) -> Iterator[str]:
    words = [word.en for word in (phrase.adjective, phrase.head) if isinstance(word, Adjective | Noun)]
    found = {
        "plural": phrase.plural,
        "dative": dative,
        "number": phrase.number is not None or phrase.determiner in ("many", "some"),
        "adjective": phrase.adjective is not None,
        "negation": phrase.determiner == "no",
        "possessive": phrase.determiner in POSSESSIVES,
        "pronoun": isinstance(phrase.head, Pronoun),
        "name": isinstance(phrase.head, Name),
        "hyphen": any("-" in word for word in words),
        "genitive": phrase.owner is not None,
        "relative": phrase.relative is not None,
    }
    yield from (tag for tag, there in found.items() if there)
    if phrase.owner:
        yield from _noun_phrase_tags(phrase.owner)
    if phrase.relative:
        yield from _clause_tags(phrase.relative)


def _clause_tags(clause: Clause) -> Iterator[str]:
    case = clause.verb.de_case
    found = {
        "modal" if clause.tense in MODALS else clause.tense: True,
        "separable": clause.verb.de_prefix != "",
        "negation": clause.negative,
        "hyphen": clause.predicate is not None and "-" in clause.predicate.en,
        "comparison": clause.comparison is not None,
        "number": clause.measure is not None,
        "preposition": "+" in case,
        "dative": case == "dat",
        "place": clause.place is not None or clause.goal is not None,
    }
    yield from (tag for tag, there in found.items() if there)
    places = [place.where for place in (clause.place, clause.goal) if place]
    parts = [clause.subject, *places, clause.comparison.other if clause.comparison else None]
    for part in parts:
        if isinstance(part, NounPhrase):
            yield from _noun_phrase_tags(part)
    if clause.object:
        yield from _noun_phrase_tags(clause.object, dative=case.endswith("dat"))
    for other in (clause.recipient, clause.companion):
        if other:
            yield from _noun_phrase_tags(other, dative=True)


def _tags(sentence: Sentence) -> Iterator[str]:
    if isinstance(sentence, Statement):
        if sentence.fronted:
            yield "fronted"
        yield from _clause_tags(sentence.clause)
    elif isinstance(sentence, Question):
        yield "question"
        yield from _clause_tags(sentence.clause)
        if sentence.which:
            yield from _noun_phrase_tags(sentence.which)
    elif isinstance(sentence, Subordination):
        yield "subordinate"
        if sentence.fronted:
            yield "fronted"
        yield from _clause_tags(sentence.main)
        yield from _clause_tags(sentence.subordinate)
    elif isinstance(sentence, Coordination):
        yield "coordination"
        yield from _clause_tags(sentence.first)
        yield from _clause_tags(sentence.second)
    elif isinstance(sentence, Quotation):
        yield "quote"
        yield from _clause_tags(sentence.speaker)
        yield from _tags(sentence.said)
    elif isinstance(sentence, Existence):
        yield "existence"
        yield from _noun_phrase_tags(sentence.what)
    else:
        yield from ("birth", "number", "past")
        yield from _noun_phrase_tags(sentence.who)


def constructions(sentence: Sentence) -> frozenset[str]:
    """The constructions that a sentence combines."""
    return frozenset(_tags(sentence))
