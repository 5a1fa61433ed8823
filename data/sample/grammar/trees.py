"""Clauses and noun phrases as constituency trees in Penn bracketing, after the Penn Treebank's guidelines."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grammar.words import Noun, Verb

PRONOUNS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them"}
POSSESSIVES = ("my", "his", "her", "our", "their")
MODALS = ("must", "can")
_BE_TAGS = {"was": "VBD", "were": "VBD", "is": "VBZ", "are": "VBP", "am": "VBP"}
_TIME_TAGS = {"the": "DT", "every": "DT", "last": "JJ", "next": "JJ"}


@dataclass(frozen=True)
class NounPhrase:
    head: Noun | str
    """A str is a name, or a pronoun."""
    determiner: str = ""
    plural: bool = False
    number: str = ""
    adjective: str = ""
    owner: NounPhrase | None = None
    """`the teacher's`, `Anna's`; takes the place of the determiner."""
    relative: Clause | None = None
    """Its gap is its subject if that is None, else its object."""

    @property
    def is_plural(self) -> bool:
        return self.plural or self.head in ("we", "they")


@dataclass(frozen=True)
class Clause:
    """A verb and what belongs to it. `subject` or `object` is None where a question or relative clause asks for it."""

    subject: NounPhrase | None
    verb: Verb
    tense: str = "present"
    """`present`, `past`, `future`, `want`, or one of MODALS."""
    negated: bool = False
    object: NounPhrase | None = None
    predicate: str = ""
    """A tree that stands where an object does."""
    frequency: str = ""
    after: tuple[str, ...] = ()
    """Trees of what follows the verb and its object."""
    time: str = ""
    """A tree; it stands last."""


def bracket(label: str, *parts: str) -> str:
    """Return a constituent of the parts that are not empty, or "" without any."""
    filled = [part for part in parts if part]
    return f"({label} {' '.join(filled)})" if filled else ""


def adverb(word: str) -> str:
    """Return a phrase of one adverb, or "" without any."""
    return bracket("ADVP", word and f"(RB {word})")


def prepositional(preposition: str, *parts: str) -> str:
    """Return a prepositional phrase."""
    return bracket("PP", f"({'TO' if preposition == 'to' else 'IN'} {preposition})", *parts)


def named(text: str) -> str:
    """Return a noun phrase of proper names."""
    return bracket("NP", *(f"(NNP {word})" for word in text.split()))


def when(text: str) -> str:
    """Return the tree of `now`, `last week`, `in the morning`, `on Monday` or `in 1985`."""
    first, *rest = text.split()
    if first in ("now", "soon"):
        return adverb(first)
    words = rest if first in ("in", "on", "at") else [first, *rest]
    tags = ("CD" if word.isdigit() else "NNP" if word[0].isupper() else _TIME_TAGS.get(word, "NN") for word in words)
    inner = bracket("NP", *(f"({tag} {word})" for tag, word in zip(tags, words, strict=True)))
    return inner if words[0] == first else prepositional(first, inner)


def _determiner(phrase: NounPhrase, following: str) -> str:
    if phrase.owner:
        *_, last = parts = flat(phrase.owner)
        return bracket("NP", *parts, "(POS ')" if phrase.owner.plural and last.endswith("s)") else "(POS 's)")
    word = phrase.determiner
    if word == "this" and phrase.plural:
        word = "these"
    if word == "a" and re.match(r"[aeio]|u(?!ni|se)|honest", following):
        word = "an"
    tag = "PRP$" if word in POSSESSIVES else "JJ" if word == "many" else "DT"
    return f"({tag} {word})" if word else ""


def flat(phrase: NounPhrase, is_object: bool = False) -> list[str]:
    """Return the parts of a noun phrase without its relative clause."""
    head = phrase.head
    if isinstance(head, str):
        pronoun = PRONOUNS[head] if is_object and head in PRONOUNS else head
        return [f"(PRP {pronoun})" if head in PRONOUNS else named(head)[len("(NP ") : -1]]
    return [
        _determiner(phrase, phrase.number or phrase.adjective or head.text),
        phrase.number and f"(CD {phrase.number})",
        phrase.adjective and f"(JJ {phrase.adjective})",
        f"(NNS {head.plural})" if phrase.plural else f"(NN {head.text})",
    ]


def noun_phrase(phrase: NounPhrase | None, is_object: bool = True) -> str:
    """Return the tree of a noun phrase, or "" without any."""
    if phrase is None:
        return ""
    bare = bracket("NP", *flat(phrase, is_object))
    if not phrase.relative:
        return bare
    if isinstance(phrase.head, Noun) and phrase.head.kind == "person":
        pronoun = "(WP who)" if phrase.relative.subject is None else "(WP whom)"
    else:
        pronoun = "(WDT that)"
    relative = bracket("SBAR", bracket("WHNP", pronoun), bracket("S", *clause(phrase.relative, gap=phrase)))
    return bracket("NP", bare, relative)


def be(subject: NounPhrase, past: bool = False) -> str:
    """Return the form of `be` that agrees with the subject, with its tag."""
    singular = "was" if past else "am" if subject.head == "I" else "is"
    form = ("were" if past else "are") if subject.is_plural else singular
    return f"({_BE_TAGS[form]} {form})"


def _complements(spoken: Clause) -> list[str]:
    """Return what follows the verb, in order."""
    verb = spoken.verb
    particle = bracket("PRT", verb.particle and f"(RP {verb.particle})")
    thing = noun_phrase(spoken.object)
    return [
        "(NP (NN part))" if verb.particle == "part" else particle,
        spoken.predicate,
        prepositional(verb.preposition, thing) if verb.preposition else thing,
        *spoken.after,
        spoken.time,
    ]


def _verb(spoken: Clause, agrees: NounPhrase, ask: bool) -> tuple[str, list[str]]:
    """Return the finite verb where it is an auxiliary or be, else "", and what follows it."""
    verb, tense, complements = spoken.verb, spoken.tense, _complements(spoken)
    third = agrees.head != "I" and not agrees.is_plural
    negation, frequency = "(RB not)" if spoken.negated else "", adverb(spoken.frequency)
    infinitive = bracket("VP", f"(VB {verb.text})", *complements)
    to_infinitive = bracket("S", bracket("VP", "(TO to)", infinitive))
    if tense in MODALS:
        return f"(MD {tense})", [negation, frequency, infinitive]
    if tense == "future":
        return be(agrees), [negation, frequency, bracket("VP", "(VBG going)", to_infinitive)]
    if verb.text == "be":
        return be(agrees, tense == "past"), [negation, frequency, *complements]
    if ask or spoken.negated:
        do = "(VBD did)" if tense == "past" else "(VBZ does)" if third else "(VBP do)"
        return do, [negation, frequency, bracket("VP", "(VB want)", to_infinitive) if tense == "want" else infinitive]
    if tense == "want":
        return "", [frequency, bracket("VP", "(VBZ wants)" if third else "(VBP want)", to_infinitive)]
    finite = f"(VBD {verb.past})" if tense == "past" else f"(VBZ {verb.third})" if third else f"(VBP {verb.text})"
    return "", [frequency, bracket("VP", finite, *complements)]


def clause(spoken: Clause, gap: NounPhrase | None = None, ask: bool = False) -> list[str]:
    """Return the parts of a clause; a missing subject agrees with `gap`. With `ask`, they are those of SQ."""
    agrees = spoken.subject or gap
    assert agrees, "a clause without a subject needs what its gap stands for"
    finite, rest = _verb(spoken, agrees, ask)
    subject = noun_phrase(spoken.subject, is_object=False)
    if ask:
        return [finite, subject, *rest]
    return [subject, bracket("VP", finite, *rest)] if finite else [subject, *rest]


def question(spoken: Clause, asks: str = "", gap: NounPhrase | None = None) -> str:
    """Return a question: of yes or no without `asks`, the phrase that asks; with `gap`, it asks for the subject."""
    asked = clause(spoken, gap, ask=gap is None)
    return bracket("SBARQ", asks, bracket("SQ", *asked), "(. ?)") if asks else bracket("SQ", *asked, "(. ?)")


def capital(tree: str) -> str:
    """Return the tree with a capital at its first word that is no quote."""
    return re.sub(r" ([A-Za-z])([^\s()]*\))", lambda match: f" {match[1].upper()}{match[2]}", tree, count=1)
