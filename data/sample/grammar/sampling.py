"""Random sentences of the grammar."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from grammar.clauses import BE, BE_AGED, ClauseSampler
from grammar.syntax import (
    Birth,
    Clause,
    Coordination,
    Existence,
    NounPhrase,
    Place,
    Pronoun,
    Question,
    Quotation,
    Sentence,
    Statement,
    Subordination,
    Tense,
)
from grammar.words import Noun, Phrase, Verb

THAT, WHETHER = Phrase("that", "dass", "que"), Phrase("whether", "ob", "si")
ADVERBIAL = (
    Phrase("because", "weil", "parce que"),
    Phrase("if", "wenn", "si"),
    Phrase("when", "wenn", "quand"),
    Phrase("while", "während", "pendant que"),
)
CONJUNCTIONS = (Phrase("and", "und", "et"), Phrase("but", "aber", "mais"))
EXISTING = ("person", "animal", "thing", "text", "device", "clothes", "vehicle")


class Sampler(ClauseSampler):
    """Draws sentences from one stream of random numbers."""

    def sentence(self) -> Sentence:
        """A sentence of any kind."""
        makers = {
            "statement": self._statement,
            "question": self._question,
            "report": self._report,
            "adverbial": self._adverbial,
            "coordination": self._coordination,
            "quotation": self._quotation,
            "existence": self._existence,
            "birth": self._birth,
        }
        weights = {
            "statement": 520,
            "question": 180,
            "report": 80,
            "adverbial": 80,
            "coordination": 40,
            "quotation": 55,
            "existence": 35,
            "birth": 10,
        }
        while True:
            sentence = makers[self.weighted(weights)]()
            if sentence is not None:
                return sentence

    def _statement(self) -> Statement | None:
        clause = self.clause(room=3)
        if self.chance(0.15):
            relative = self._with_relative(clause)
            return Statement(relative) if relative else None
        return Statement(clause, fronted=clause.time is not None and self.chance(0.5))

    def _with_relative(self, clause: Clause) -> Clause | None:
        """The clause with a relative clause at its subject or its object, or None where no attempt fits."""
        at_object = self.chance(0.45) and clause.object is not None
        phrase = clause.object if at_object else clause.subject
        if phrase is None or not isinstance(phrase.head, Noun) or phrase.owner or phrase.determiner == "no":
            return None
        if clause.comparison or (at_object and not self._ends_with_object(clause)):
            return None
        attempts = (self._relative(phrase.head) for _ in range(8))
        inner = next((made for made in attempts if made is not None), None)
        if inner is None:
            return None
        phrase = replace(phrase, relative=inner)
        return replace(clause, object=phrase) if at_object else replace(clause, subject=phrase)

    @staticmethod
    def _ends_with_object(clause: Clause) -> bool:
        """Whether nothing follows the object in English, that a relative clause would part from its verb."""
        return not (clause.recipient or clause.place or clause.companion or clause.time or clause.manner)

    def _relative(self, noun: Noun) -> Clause | None:
        """A clause with a gap that the noun fits, or None where the clause drawn has none."""
        inner = self.clause(room=1)
        if self.chance(0.45) and inner.object is not None and not inner.negated:
            fits = noun.kind in inner.verb.objects and not inner.recipient
            foreign = inner.verb.en_preposition or inner.verb.fr_preposition
            return replace(inner, object=None) if fits and not foreign else None
        if inner.verb is BE and inner.predicate:
            fits = noun.kind in inner.predicate.kinds and not inner.comparison
        else:
            fits = noun.kind in inner.verb.subjects and inner.verb is not BE_AGED
        return replace(inner, subject=None) if fits else None

    def _question(self) -> Question | None:
        clause = self.clause()
        kind = self.weighted({"whether": 35, "adverb": 25, "who": 12, "what": 10, "which": 18})
        if kind == "whether":
            return Question((self._with_relative(clause) or clause) if self.chance(0.1) else clause)
        clause = replace(clause, frequency=None)
        if kind == "adverb":
            return self._adverb_question(clause)
        if kind == "who":
            return self._who(clause)
        if clause.object is None or not clause.verb.plain or clause.negated:
            return None
        gap = replace(clause, object=None)
        if kind == "what":
            return Question(replace(gap, recipient=None), "what") if "person" not in clause.verb.objects else None
        return self._which(gap, clause.object)

    def _adverb_question(self, clause: Clause) -> Question:
        words: tuple[Literal["why", "when", "where"], ...] = ("why", "when", "where")
        asked = self.random.choice(words)
        if clause.verb in (BE, BE_AGED) or clause.place or clause.goal or clause.negated:
            asked = "why"
        return Question(replace(clause, time=None) if asked == "when" else clause, asked)

    def _who(self, clause: Clause) -> Question | None:
        kinds = clause.predicate.kinds if clause.predicate else clause.verb.subjects
        if "person" not in kinds or clause.comparison:
            return None
        return Question(replace(clause, subject=None), "who")

    def _which(self, gap: Clause, asked: NounPhrase) -> Question | None:
        if not isinstance(asked.head, Noun):
            return None
        how_many = self.chance(0.4) and bool(asked.head.en_plural)
        which = NounPhrase(asked.head, "", how_many or asked.plural, adjective=asked.adjective)
        return Question(gap, which=which, how_many=how_many)

    def _speaker(self, verb: Verb, negated: bool = False) -> Clause:
        return Clause(self.subject(verb.subjects, simple=True), verb, "present", negated)

    def _report(self) -> Subordination:
        verb = self.pick([word for word in self.lexicon.verbs["c"] if {"that", "whether"} & set(word.objects)])
        whether = "whether" in verb.objects and ("that" not in verb.objects or self.chance(0.4))
        clause = self.clause()
        if self.chance(0.1):
            clause = self._with_relative(clause) or clause
        speaker = self._speaker(verb, negated=whether and verb.en == "know")
        return Subordination(speaker, WHETHER if whether else THAT, clause)

    def _adverbial(self) -> Subordination:
        conjunction = self.random.choice(ADVERBIAL)
        tense: Tense | None = None if conjunction.en == "because" else "present"
        first, second = self.clause(tense=tense), self.clause(room=1, tense=tense)
        return Subordination(first, conjunction, second, fronted=self.chance(0.35))

    def _coordination(self) -> Coordination:
        first, second = self.clause(room=3), self.clause(room=2)
        return Coordination(first, self.random.choice(CONJUNCTIONS), second)

    def _quotation(self) -> Quotation | None:
        ask = self.chance(0.3)
        wanted = "askquote" if ask else "quote"
        verb = self.pick([word for word in self.lexicon.verbs["c"] if wanted in word.objects])
        speaker = self._speaker(verb)
        # Moses' normaliser moves a full stop out of closing quotes: statements stand before their speaker.
        last = not ask or self.chance(0.5)
        if last and speaker.subject and isinstance(speaker.subject.head, Pronoun):
            return None
        said = self._question() if ask else Statement(self.clause())
        return Quotation(speaker, said, last) if said else None

    def _existence(self) -> Existence | None:
        what = self.phrase(EXISTING)
        if what.determiner not in ("a", "", "many", "some") or what.owner:
            return None
        return Existence(what, self.place())

    def _birth(self) -> Birth:
        year = str(self.random.randint(1980, 2024))
        return Birth(self.name(), year, Place(self.pick(self.lexicon.cities)))
