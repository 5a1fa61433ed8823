"""Random clauses: a verb of any frame with what belongs to it."""

from __future__ import annotations

from dataclasses import replace

from grammar.numbers import amount
from grammar.phrases import GENDERED, PERSONS, PhraseSampler
from grammar.syntax import Clause, Comparison, NounPhrase, Place, Tense
from grammar.words import Phrase, Verb

BE = Verb(
    "be", "be", "is", "was", "", "sein", "", "ist", "gewesen", True, "être",
    ("suis", "est", "sommes", "sont"), "été", False, ("person",), (),
)  # fmt: skip
BE_AGED = replace(BE, fr="avoir", fr_forms=("ai", "a", "avons", "ont"), fr_participle="eu")
COST = Verb(
    "measure", "cost", "costs", "cost", "", "kosten", "", "kostet", "gekostet", False, "coûter",
    ("coûte", "coûte", "coûtons", "coûtent"), "coûté", False, ("thing", "clothes", "device", "vehicle"), (),
)  # fmt: skip
WEIGH = Verb(
    "measure", "weigh", "weighs", "weighed", "", "wiegen", "", "wiegt", "gewogen", False, "peser",
    ("pèse", "pèse", "pesons", "pèsent"), "pesé", False, ("thing", "animal", "device"), (),
)  # fmt: skip
EUROS = Phrase("euros", "Euro", "euros")
KILOGRAMS = Phrase("kilograms", "Kilogramm", "kilogrammes")
YEARS_OLD = Phrase("years old", "Jahre alt", "ans")
KINDS = ("person", "person", "thing", "animal", "text", "device", "vehicle", "clothes", "big", "place", "idea")


class ClauseSampler(PhraseSampler):
    """Draws clauses from one stream of random numbers."""

    def _tense(self) -> Tense:
        modals: tuple[Tense, ...] = ("must", "can", "want")
        tenses: dict[str, Tense] = {"present": "present", "past": "past", "future": "future"}
        kind = self.weighted({"present": 44, "past": 28, "modal": 18, "future": 10})
        return tenses[kind] if kind in tenses else self.random.choice(modals)

    def _when(self, tense: Tense, negated: bool = False) -> Phrase:
        kind = {"present": "present", "past": "past", "future": "future"}.get(tense, "time")
        if kind == "present" and negated:  # `not every day` would be another thing
            kind = "time"
        if kind == "past" and self.chance(0.2):
            year = str(self.random.randint(1980, 2024))
            return Phrase(f"in {year}", f"im Jahr {year}", f"en {year}")
        if kind == "time" or self.chance(0.7):
            return self.pick(self.lexicon.adverbs["time"])
        return self.random.choice(self.lexicon.adverbs[kind])

    def _decorate(self, clause: Clause, room: int) -> Clause:
        """Add time or frequency where there is room, and manner, company or a place where there is more."""
        frequencies = self.lexicon.adverbs["frequency"]
        if self.chance(0.26) and room:
            clause = replace(clause, time=self._when(clause.tense, clause.negated))
        elif self.chance(0.13) and not clause.negated and clause.tense in ("present", "past"):
            clause = replace(clause, frequency=self.random.choice(frequencies))
        # What a negation in front of them would deny is another question.
        if room < 2 or clause.verb.en == "belong" or (clause.negative and clause.object):
            return clause
        if self.chance(0.09) and not (clause.goal or clause.recipient or "+" in clause.verb.de_case):
            return replace(clause, manner=self.pick(self.lexicon.adverbs["manner"]))
        if self.chance(0.32) and not clause.goal:
            return replace(clause, place=self.place())
        if self.chance(0.09):
            return replace(clause, companion=self.phrase(["person"], simple=True))
        return clause

    def _object(self, verb: Verb, tense: Tense, negated: bool) -> NounPhrase:
        kind = self.random.choice(verb.objects)
        if kind == "person" and self.chance(0.3):
            if verb.fr_preposition == "à" and verb.en != "think":
                return self.name()
            # In French, a participle agrees with whom `me` and `us` stand for, which the English does not tell.
            return self.person(GENDERED if tense == "past" else PERSONS)
        if not negated:
            return self.phrase([kind])
        phrase = self.phrase([kind], definite=True)
        if verb.plain and self.chance(0.35) and phrase.noun.en_plural:
            return replace(phrase, determiner="no")
        return phrase

    def _transitive(self, tense: Tense, negated: bool) -> Clause:
        verb = self.pick(self.lexicon.verbs["t"])
        if verb.subjects[0] != "person" and tense == "want":
            tense = "present"
        return Clause(None, verb, tense, negated, self._object(verb, tense, negated))

    def _ditransitive(self, tense: Tense, negated: bool) -> Clause:
        verb = self.pick(self.lexicon.verbs["d"])
        recipient = self.name() if self.chance(0.2) else self.phrase(["person"], simple=self.chance(0.6))
        return Clause(None, verb, tense, negated, self._object(verb, tense, negated), recipient)

    def clause(self, room: int = 2, tense: Tense | None = None) -> Clause:
        """A clause with a verb of any frame; `room` is how much may be added to what the verb needs."""
        frame = self.weighted({"be": 16, "t": 44, "d": 10, "i": 22, "g": 8})
        tense = tense or self._tense()
        negated = self.chance(0.16) and tense != "must"
        if frame == "be":
            return self._copula(tense if tense in ("present", "past") else "present")
        if frame == "t":
            clause = self._transitive(tense, negated)
        elif frame == "d":
            clause = self._ditransitive(tense, negated)
        elif frame == "i":
            clause = Clause(None, self.pick(self.lexicon.verbs["i"]), tense, negated)
        else:
            clause = self._motion(tense, negated)
        if tense == "past" and clause.verb.en == clause.verb.en_past:
            clause = replace(clause, tense="present")  # `they read` does not tell
        subject = self.subject(clause.verb.subjects, simple=room < 2, definite=negated)
        return self._decorate(replace(clause, subject=self._sensible(subject, clause)), room)

    def _sensible(self, subject: NounPhrase, clause: Clause) -> NounPhrase:
        """Who has died is not I; who sees her is not she, nor do I see us."""
        seen = clause.object
        same = seen is not None and seen.head == subject.head
        both_first = seen is not None and seen.person == subject.person == 1
        if same or both_first or (clause.verb.en == "die" and subject.person == 1):
            return NounPhrase(self.lexicon.names[0 if self.chance(0.5) else 1])
        return subject

    def _motion(self, tense: Tense, negated: bool) -> Clause:
        verb = self.pick(self.lexicon.verbs["g"])
        kind = self.random.choice(verb.objects)
        if kind == "city":
            if self.chance(0.25):
                return Clause(None, verb, tense, negated, goal=Place(self.pick(self.lexicon.countries), country=True))
            return Clause(None, verb, tense, negated, goal=Place(self.pick(self.lexicon.cities)))
        into = kind == "into"
        places = self.lexicon.nouns["place"]
        fits = [noun for noun in places if noun.en_place == ("in" if into else "at") and noun.de_place in ("in", "an")]
        return Clause(None, verb, tense, negated, goal=Place(NounPhrase(self.pick(fits), "the")), into=into)

    def _measured(self, tense: Tense) -> Clause:
        """An age, a price or a weight."""
        kind = self.weighted({"age": 10, "price": 9, "weight": 5})
        if kind == "age":
            person = self.name() if self.chance(0.5) else self.phrase(["person", "animal"], simple=True)
            return Clause(person, BE_AGED, tense, measure=amount(self.random.randint(2, 99) * 10, YEARS_OLD))
        verb, unit = (COST, EUROS) if kind == "price" else (WEIGH, KILOGRAMS)
        tenths = self.random.randint(2, 99) * 10 if kind == "price" else self.random.randint(20, 99)
        what = self.specific(self.phrase([self.random.choice(verb.subjects)]))
        tense = "present" if verb is COST else tense  # `they cost` does not tell
        return Clause(what, verb, tense, measure=amount(tenths, unit))

    def _copula(self, tense: Tense) -> Clause:
        """Be with an adjective or a comparison, or a measure."""
        if self.chance(0.24):
            return self._measured(tense)
        subject = replace(self.specific(self.phrase([self.random.choice(KINDS)])), adjective=None)
        kind = subject.noun.kind
        predicate = self.adjective(subject.noun, predicate=True)
        if kind == "person" and self.chance(0.4):
            subject = self.subject(["person"], people=GENDERED)
        negated = self.chance(0.2) and subject.determiner not in ("every", "some", "many") and not subject.number
        clause = Clause(subject, BE, tense, negated, predicate=predicate)
        if predicate.en_comparative and self.chance(0.75):
            other = self.name() if kind == "person" and self.chance(0.5) else self.phrase([kind], simple=True)
            return replace(clause, comparison=Comparison(self.chance(0.65), other))
        return replace(clause, time=self._when(tense, negated)) if self.chance(0.15) else clause
