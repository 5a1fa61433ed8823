"""Random sentences: a verb of any frame with what belongs to it, frequent and rare words as in any text."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from grammar.trees import (
    MODALS,
    POSSESSIVES,
    PRONOUNS,
    Clause,
    NounPhrase,
    adverb,
    be,
    bracket,
    capital,
    clause,
    flat,
    named,
    noun_phrase,
    prepositional,
    question,
    when,
)
from grammar.words import Adjective, Noun, Verb, in_words, load

T = TypeVar("T")

FLATNESS = 2
STEEPNESS = 1.2
"""Words are drawn with weight (rank + FLATNESS) ** -STEEPNESS: Zipf's law, its head cut."""

DEFINITE = ("the", "the", "the", *POSSESSIVES, "this")
UNIQUE = ("mother", "father", "husband", "wife", "king", "queen", "boss", "president", "mother-in-law", "father-in-law")
BUILDINGS = ("house", "tower", "hotel", "school", "hospital", "castle", "factory", "library")
KINDS = ("person", "person", "thing", "animal", "text", "device", "vehicle", "clothes", "big", "place", "idea")
BE = Verb("be", "is", "was", ())


class Sampler:
    """Draws sentences from one stream of random numbers."""

    def __init__(self, seed: int) -> None:
        self.lexicon = load()
        self.random = random.Random(seed)  # noqa: S311 (text, no secret)
        self._ages = [Adjective((), f"{in_words(number)}-year-old") for number in range(2, 20)]
        self._storeys = [Adjective((), f"{in_words(number)}-storey") for number in range(2, 10)]
        self._numbers = [in_words(number) for number in range(2, 100)]

    def sentence(self) -> str:
        """Return the tree of a sentence of any kind."""
        makers: dict[Callable[[], str | None], int] = {
            self._statement: 520,
            self._question: 180,
            self._report: 80,
            self._adverbial: 80,
            self._coordination: 40,
            self._quotation: 55,
            self._existence: 35,
            self._birth: 10,
        }
        while True:
            tree = self.weighted(makers)()
            if tree is not None:
                return capital(tree)

    # Words and noun phrases

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability

    def weighted(self, weights: Mapping[T, int]) -> T:
        """Return one of the keys, by its weight."""
        return self.random.choices(tuple(weights), tuple(weights.values()))[0]

    def pick(self, words: Sequence[T]) -> T:
        """Return one of the words, the first ones more often."""
        weights = itertools.accumulate((rank + FLATNESS) ** -STEEPNESS for rank in range(len(words)))
        return self.random.choices(words, cum_weights=list(weights))[0]

    def _noun(self, kinds: Sequence[str]) -> Noun:
        kind = self.random.choice(kinds)
        if not kind.startswith("="):
            return self.pick(self.lexicon.nouns[kind])
        text = self.random.choice(kind[1:].split(","))
        return next(noun for nouns in self.lexicon.nouns.values() for noun in nouns if noun.text == text)

    def _adjective(self, noun: Noun, predicate: bool = False) -> Adjective:
        """Return an adjective that goes with the noun."""
        if not predicate and noun.kind in ("person", "animal") and self.chance(0.06):
            return self.pick(self._ages)
        if not predicate and noun.text in BUILDINGS and self.chance(0.3):
            return self.pick(self._storeys)
        fits = {noun.kind} if noun.kind in ("mass", "drink", "food") else {noun.kind, "all"}
        return self.pick([word for word in self.lexicon.adjectives if fits & set(word.kinds)])

    def _name(self) -> NounPhrase:
        first, surname = self.pick(self.lexicon.names["first"]), self.pick(self.lexicon.names["surname"])
        return NounPhrase(f"{first} {surname}" if self.chance(0.25) else first)

    def _phrase(self, kinds: Sequence[str], simple: bool = False) -> NounPhrase:
        """Return a noun phrase; `simple` has no adjective, number or owner."""
        noun = self._noun(kinds)
        adjective = self._adjective(noun).text if not simple and self.chance(0.3) else ""
        plural = self.chance(0.27) and noun.plural != ""
        if simple or not noun.plural:
            determiner = self.random.choice(DEFINITE)
            return NounPhrase(noun, determiner, plural and noun.text not in UNIQUE, adjective=adjective)
        if self.chance(0.07) and noun.kind not in ("person", "place"):
            owner = NounPhrase(self.pick(self.lexicon.names["first"]))
            return NounPhrase(noun, plural=plural, owner=owner if self.chance(0.4) else self._phrase(["person"], True))
        kind = self.weighted({"the": 43, "a": 22, "possessive": 14, "number": 9, "this": 6, "many": 4, "every": 2})
        determiner, number = kind, ""
        if kind == "possessive":
            determiner, plural = self.random.choice(POSSESSIVES), plural and noun.text not in UNIQUE
        elif kind == "number":
            determiner, plural, number = "the" if self.chance(0.2) else "", True, self.pick(self._numbers)
        elif kind == "many":
            determiner, plural = self.random.choice(("many", "some")), True
        elif kind == "every":
            plural = False
        elif kind == "a" and plural:
            determiner = ""
        return NounPhrase(noun, determiner, plural, number, adjective)

    def _person(self) -> NounPhrase:
        """Return a name or a pronoun."""
        return self._name() if self.chance(0.5) else NounPhrase(self.random.choice(tuple(PRONOUNS)))

    def _subject(self, kinds: Sequence[str], simple: bool = False) -> NounPhrase:
        """Return a subject of one of the kinds: a name, a pronoun or a noun phrase."""
        kind = self.random.choice(kinds)
        if kind == "person" and self.chance(0.45):
            return self._person()
        return self._phrase([kind], simple=simple or self.chance(0.4))

    def _place(self) -> str:
        kind = self.weighted({"noun": 70, "city": 22, "country": 8})
        if kind != "noun":
            return prepositional("in", named(self.pick(self.lexicon.names[kind])))
        noun = self._noun(["place"])
        adjective = self._adjective(noun).text if self.chance(0.12) else ""
        phrase = NounPhrase(noun, "the" if self.chance(0.75) else "a", adjective=adjective)
        return prepositional(noun.preposition, noun_phrase(phrase))

    # Clauses

    def _when(self, tense: str) -> str:
        kind = tense if tense in self.lexicon.adverbs else "time"
        if kind == "past" and self.chance(0.2):
            return self._year()
        return when(self.pick(self.lexicon.adverbs["time" if self.chance(0.7) else kind]))

    def _year(self) -> str:
        return when(f"in {self.random.randint(1980, 2024)}")

    def _object(self, verb: Verb, negated: bool) -> NounPhrase | None:
        if not verb.objects:
            return None
        kind = self.random.choice(verb.objects)
        if kind == "person" and self.chance(0.3):
            return self._person()
        phrase = self._phrase([kind])
        plain = phrase.determiner in ("the", "a") and not phrase.number
        return replace(phrase, determiner="any") if negated and phrase.plural and plain else phrase

    def _clause(self, room: int = 2, tense: str = "") -> Clause:
        """Return a clause with a verb of any frame; `room` is how much may be added to what the verb needs."""
        kind = self.weighted({"present": 44, "past": 28, "modal": 18, "future": 10})
        tense = tense or (self.random.choice((*MODALS, "want")) if kind == "modal" else kind)
        frame = self.weighted({"be": 16, "t": 44, "d": 10, "i": 22, "g": 8})
        if frame == "be":
            return self._copula(tense if tense in ("present", "past") else "present")
        verb = self.pick(self.lexicon.verbs[frame])
        negated = self.chance(0.16)
        after: tuple[str, ...] = ()
        if frame == "d":
            recipient = self._name() if self.chance(0.2) else self._phrase(["person"], simple=self.chance(0.6))
            after = (prepositional("to", noun_phrase(recipient)),)
        if frame == "g":
            after, verb = (self._goal(verb),), verb._replace(objects=())
        if verb.subjects[0] != "person" and tense == "want":
            tense = "present"
        seen = self._object(verb, negated)
        subject = self._subject(verb.subjects, simple=room < 2)
        same = seen is not None and (seen.head == subject.head or {seen.head, subject.head} <= {"I", "we"})
        subject = self._name() if same else subject  # who sees her is not she, nor do I see us
        return self._decorate(Clause(subject, verb, tense, negated, seen, after=after), room)

    def _goal(self, verb: Verb) -> str:
        kind = self.random.choice(verb.objects)
        if kind == "city":
            return prepositional("to", named(self.pick(self.lexicon.names["country" if self.chance(0.25) else "city"])))
        preposition = "in" if kind == "into" else "at"
        fits = [noun for noun in self.lexicon.nouns["place"] if noun.preposition == preposition]
        return prepositional(kind, noun_phrase(NounPhrase(self.pick(fits), "the")))

    def _decorate(self, spoken: Clause, room: int) -> Clause:
        """Add time or frequency where there is room, and manner, company or a place where there is more."""
        if self.chance(0.26) and room:
            spoken = replace(spoken, time=self._when(spoken.tense))
        elif self.chance(0.13) and not spoken.negated and spoken.tense in ("present", "past"):
            spoken = replace(spoken, frequency=self.random.choice(self.lexicon.adverbs["frequency"]))
        if room < 2 or spoken.verb.text == "belong" or spoken.after:
            return spoken
        added = self.weighted({"manner": 9, "place": 28, "company": 5, "": 58})
        if added == "manner":
            tree = adverb(self.pick(self.lexicon.adverbs["manner"]))
        elif added == "place":
            tree = self._place()
        else:
            tree = prepositional("with", noun_phrase(self._phrase(["person"], simple=True))) if added else ""
        return replace(spoken, after=(tree,) if tree else ())

    def _copula(self, tense: str) -> Clause:
        """Return be with an adjective or a comparison, or a measure."""
        if self.chance(0.24):
            return self._measured(tense)
        subject = replace(self._phrase([self.random.choice(KINDS)]), adjective="")
        noun = subject.head
        assert isinstance(noun, Noun)
        predicate = self._adjective(noun, predicate=True)
        if noun.kind == "person" and self.chance(0.4):
            subject = self._subject(["person"])
        verb, negated = BE._replace(subjects=predicate.kinds), self.chance(0.2)
        if not predicate.comparative or self.chance(0.25):
            time = self._when(tense) if self.chance(0.15) else ""
            return Clause(subject, verb, tense, negated, predicate=f"(ADJP (JJ {predicate.text}))", time=time)
        other = self._name() if noun.kind == "person" and self.chance(0.5) else self._phrase([noun.kind], simple=True)
        if self.chance(0.65):
            more = predicate.comparative
            words = f"(RBR more) (JJ {predicate.text})" if more.startswith("more ") else f"(JJR {more})"
            compared = bracket("ADJP", words, prepositional("than", noun_phrase(other)))
        else:
            compared = bracket("ADJP", "(RB as)", f"(JJ {predicate.text})", prepositional("as", noun_phrase(other)))
        return Clause(subject, BE, tense, negated, predicate=compared)

    def _measured(self, tense: str) -> Clause:
        """Return an age, a price or a weight."""
        number = self.random.randint(2, 99)
        if self.chance(0.4):
            person = self._name() if self.chance(0.5) else self._phrase(["person", "animal"], simple=True)
            return Clause(person, BE, tense, predicate=f"(ADJP (NP (CD {number}) (NNS years)) (JJ old))")
        verb = self.pick(self.lexicon.verbs["measure"])
        amount = number if verb.objects == ("euros",) else (number + 20) / 10
        what = self._phrase([self.random.choice(verb.subjects)])
        return Clause(what, verb, tense, predicate=f"(NP (CD {amount:g}) (NNS {verb.objects[0]}))")

    def _with_relative(self, spoken: Clause) -> Clause | None:
        """Return the clause with a relative clause at its subject or its object, or None where no attempt fits."""
        at_object = self.chance(0.45) and spoken.object is not None
        phrase = spoken.object if at_object else spoken.subject
        if phrase is None or not isinstance(phrase.head, Noun) or phrase.owner or phrase.determiner == "any":
            return None
        if at_object and (spoken.after or spoken.time):  # it would part them from their verb
            return None
        inner = next(filter(None, (self._relative(phrase.head) for _ in range(8))), None)
        if inner is None:
            return None
        phrase = replace(phrase, relative=inner)
        return replace(spoken, object=phrase) if at_object else replace(spoken, subject=phrase)

    def _relative(self, noun: Noun) -> Clause | None:
        """Return a clause with a gap that the noun fits, or None where the clause drawn has none."""
        inner = self._clause(room=1)
        if self.chance(0.45) and inner.object is not None:
            fits = noun.kind in inner.verb.objects and not inner.verb.preposition
            return replace(inner, object=None) if fits else None
        return replace(inner, subject=None) if noun.kind in inner.verb.subjects else None

    # Sentences

    def _statement(self) -> str | None:
        spoken = self._clause(room=3)
        if self.chance(0.15):
            relative = self._with_relative(spoken)
            return bracket("S", *clause(relative), "(. .)") if relative else None
        if spoken.time and self.chance(0.5):
            return bracket("S", spoken.time, *clause(replace(spoken, time="")), "(. .)")
        return bracket("S", *clause(spoken), "(. .)")

    def _question(self) -> str | None:
        spoken = self._clause()
        kind = self.weighted({"whether": 35, "adverb": 25, "who": 12, "what": 10, "which": 18})
        if kind == "whether":
            return question((self._with_relative(spoken) or spoken) if self.chance(0.1) else spoken)
        if kind == "adverb":
            asked = self.random.choice(("why", "when", "where"))
            if spoken.verb.text == "be" or spoken.after or spoken.negated:
                asked = "why"
            spoken = replace(spoken, time="") if asked == "when" else spoken
            return question(spoken, bracket("WHADVP", f"(WRB {asked})"))
        if kind == "who":
            fits = "person" in spoken.verb.subjects
            return question(replace(spoken, subject=None), "(WHNP (WP who))", NounPhrase("who")) if fits else None
        if spoken.object is None or spoken.verb.preposition or not isinstance(spoken.object.head, Noun):
            return None
        gap, noun = replace(spoken, object=None), spoken.object.head
        if kind == "what":
            return question(gap, "(WHNP (WP what))") if noun.kind != "person" else None
        how_many = self.chance(0.4) and noun.plural != ""
        words = "(WHADJP (WRB how) (JJ many))" if how_many else "(WDT which)"
        which = NounPhrase(noun, "", how_many or spoken.object.plural, adjective=spoken.object.adjective)
        return question(gap, bracket("WHNP", words, *flat(which)))

    def _speaker(self, says: str) -> Clause:
        """Return who says, knows or asks, with a verb that takes `that`, `whether`, `quote` or `askquote`."""
        verb = self.pick([word for word in self.lexicon.verbs["c"] if says in word.objects])
        negated = says == "whether" and verb.text == "know"
        return Clause(self._subject(verb.subjects, simple=True), verb, negated=negated)

    def _report(self) -> str:
        conjunction, spoken = "whether" if self.chance(0.2) else "that", self._clause()
        if self.chance(0.1):
            spoken = self._with_relative(spoken) or spoken
        reported = bracket("SBAR", f"(IN {conjunction})", bracket("S", *clause(spoken)))
        return bracket("S", *clause(replace(self._speaker(conjunction), after=(reported,))), "(. .)")

    def _adverbial(self) -> str:
        conjunction = self.random.choice(("because", "if", "when", "while"))
        tense = "" if conjunction == "because" else "present"
        main, other = self._clause(tense=tense), bracket("S", *clause(self._clause(room=1, tense=tense)))
        begin = "(WHADVP (WRB when))" if conjunction == "when" else f"(IN {conjunction})"
        other = bracket("SBAR", begin, other)
        if self.chance(0.35):
            return bracket("S", other, "(, ,)", *clause(main), "(. .)")
        return bracket("S", *clause(replace(main, time=f"{main.time} {other}".strip())), "(. .)")

    def _coordination(self) -> str:
        first, second = (bracket("S", *clause(self._clause(room=room))) for room in (3, 2))
        conjunction = self.random.choice(("(CC and)", "(, ,) (CC but)"))
        return bracket("S", first, conjunction, second, "(. .)")

    def _quotation(self) -> str | None:
        ask = self.chance(0.3)
        speaker = self._speaker("askquote" if ask else "quote")
        said = self._question() if ask else bracket("S", *clause(self._clause()), "(. .)")
        if said is None:
            return None
        if self.chance(0.5):
            quote = f"(: :) (`` ``) {capital(said)} ('' '')"
            return bracket("S", *clause(replace(speaker, after=(quote,))))
        subject, *verb = clause(speaker)
        if subject.startswith("(NP (PRP "):  # `says he` is old
            return None
        said, comma = (said, "") if ask else (said.removesuffix(" (. .))") + ")", "(, ,)")
        return bracket("SINV", "(`` ``)", said, comma, "('' '')", *verb, subject, "(. .)")

    def _existence(self) -> str | None:
        what = self._phrase(KINDS)
        if what.determiner not in ("a", "", "many", "some") or what.owner:
            return None
        predicate = bracket("VP", be(what), noun_phrase(what), self._place())
        return bracket("S", "(NP (EX there))", predicate, "(. .)")

    def _birth(self) -> str:
        who, place = self._name(), prepositional("in", named(self.pick(self.lexicon.names["city"])))
        born = bracket("VP", "(VBN born)", self._year(), place)
        return bracket("S", noun_phrase(who), bracket("VP", be(who, past=True), born), "(. .)")
