"""English: do-support, agreement of the third person, phrasal verbs, possessive 's."""

from __future__ import annotations

import re

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
)
from grammar.words import Name, Phrase

_OBJECT_PRONOUNS = {"I": "me", "he": "him", "she": "her", "we": "us", "they": "them"}


def _possessive(phrase: NounPhrase) -> str:
    text = noun_phrase(phrase)
    return text + ("'" if phrase.plural and text.endswith("s") else "'s")


def noun_phrase(phrase: NounPhrase, is_object: bool = False) -> str:
    """A noun phrase with its relative clause."""
    head = phrase.head
    if isinstance(head, Pronoun):
        return _OBJECT_PRONOUNS[head.person] if is_object else head.person
    if isinstance(head, Name):
        return f"{head.text} {phrase.surname}".strip()
    words = [_possessive(phrase.owner) if phrase.owner else phrase.determiner]
    if phrase.determiner == "no":
        words = ["any" if phrase.plural else "a"]
    if phrase.determiner == "this" and phrase.plural:
        words = ["these"]
    if phrase.number:
        words.append(phrase.number.en)
    if phrase.adjective:
        words.append(phrase.adjective.en)
    words.append(head.en_plural if phrase.plural else head.en)
    if phrase.relative:
        person = head.kind == "person"
        if phrase.relative.subject is None:
            words.append("who" if person else "that")
        else:
            words.append("whom" if person else "that")
        words.append(clause(phrase.relative, phrase))
    text = " ".join(word for word in words if word)
    return re.sub(r"^a (?=[aeio]|u(?!ni|se)|honest|X-)", "an ", text)


def _place(place: Place, preposition: str = "") -> str:
    if isinstance(place.where, Phrase):
        return f"{preposition or 'in'} {place.where.en}"
    return f"{preposition or place.where.noun.en_place} {noun_phrase(place.where, is_object=True)}"


def _be(subject: NounPhrase, past: bool) -> str:
    if past:
        return "were" if subject.is_plural else "was"
    return "are" if subject.is_plural else "am" if subject.person == 1 else "is"


def _verb_group(spoken: Clause, subject: NounPhrase, ask: bool) -> tuple[str, str]:
    """The finite verb that a question puts first (or "" where none is needed), and the rest up to the verb itself."""
    verb, tense = spoken.verb, spoken.tense
    third = subject.person == 3 and not subject.is_plural
    negation = "not" if spoken.negated else ""
    if tense == "can" and spoken.negated and not ask:
        return "cannot", verb.en
    if tense in ("must", "can"):
        return tense, f"{negation} {verb.en}"
    if tense == "future":
        return _be(subject, past=False), f"{negation} going to {verb.en}"
    if verb.en == "be":
        return _be(subject, tense == "past"), negation
    base = f"want to {verb.en}" if tense == "want" else verb.en
    if ask or spoken.negated:
        return "did" if tense == "past" else "does" if third else "do", f"{negation} {base}"
    singular = f"wants to {verb.en}" if tense == "want" else verb.en_third
    return "", verb.en_past if tense == "past" else singular if third else base


def _predicate(spoken: Clause) -> str:
    if spoken.measure:
        return spoken.measure.en
    if not spoken.predicate or not spoken.comparison:
        return spoken.predicate.en if spoken.predicate else ""
    other = noun_phrase(spoken.comparison.other)
    if spoken.comparison.more:
        return f"{spoken.predicate.en_comparative} than {other}"
    return f"as {spoken.predicate.en} as {other}"


def _after(preposition: str, phrase: NounPhrase | None) -> str:
    return f"{preposition} {noun_phrase(phrase, is_object=True)}" if phrase else ""


def _complements(spoken: Clause, with_time: bool) -> list[str]:
    return [
        spoken.verb.en_particle,
        _predicate(spoken),
        spoken.verb.en_preposition,
        _after("", spoken.object),
        _after("to", spoken.recipient),
        spoken.manner.en if spoken.manner else "",
        _place(spoken.goal, "into" if spoken.into else "to") if spoken.goal else "",
        _after("with", spoken.companion),
        _place(spoken.place) if spoken.place else "",
        spoken.time.en if spoken.time and with_time else "",
    ]


def clause(spoken: Clause, gap: NounPhrase | None = None, ask: bool = False, with_time: bool = True) -> str:
    """A clause; the missing subject agrees with `gap`. With `ask`, the finite verb stands before the subject."""
    subject = spoken.agreeing(gap)
    finite, rest = _verb_group(spoken, subject, ask)
    frequency = spoken.frequency.en if spoken.frequency else ""
    middle = [rest, frequency] if spoken.verb.en == "be" else [frequency, rest]
    text = noun_phrase(spoken.subject) if spoken.subject else ""
    start = [finite, text] if ask else [text, finite]
    return " ".join(word for word in [*start, *middle, *_complements(spoken, with_time)] if word.strip())


def _question(asked: Question) -> str:
    if asked.which:
        words = "how many" if asked.how_many else "which"
        return f"{words} {noun_phrase(asked.which)} {clause(asked.clause, ask=True)}"
    if asked.asked == "who":
        return f"who {clause(asked.clause, NounPhrase(Name('who', female=False)))}"
    return f"{asked.asked or ''} {clause(asked.clause, ask=True)}"


def _simple(sentence: Statement | Question) -> str:
    if isinstance(sentence, Question):
        return _question(sentence)
    if sentence.fronted and sentence.clause.time:
        return f"{sentence.clause.time.en} {clause(sentence.clause, with_time=False)}"
    return clause(sentence.clause)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _quotation(sentence: Quotation) -> str:
    said = _capital(" ".join(_simple(sentence.said).split()))
    if not sentence.last:
        return f'{clause(sentence.speaker)}: "{said}{"?" if isinstance(sentence.said, Question) else "."}"'
    speaker = noun_phrase(sentence.speaker.agreeing(None))
    verb = clause(sentence.speaker).removeprefix(speaker)
    return f'"{said}{"?" if isinstance(sentence.said, Question) else ","}" {verb} {speaker}'


def _joined(sentence: Subordination | Coordination) -> str:
    if isinstance(sentence, Coordination):
        comma = "," if sentence.conjunction.en == "but" else ""
        return f"{clause(sentence.first)}{comma} {sentence.conjunction.en} {clause(sentence.second)}"
    main, other = clause(sentence.main), f"{sentence.conjunction.en} {clause(sentence.subordinate)}"
    return f"{other}, {main}" if sentence.fronted else f"{main} {other}"


def _sentence(sentence: Sentence) -> str:
    if isinstance(sentence, Statement | Question):
        return _simple(sentence)
    if isinstance(sentence, Subordination | Coordination):
        return _joined(sentence)
    if isinstance(sentence, Existence):
        verb = "are" if sentence.what.plural else "is"
        return f"there {verb} {noun_phrase(sentence.what)} {_place(sentence.place)}"
    if isinstance(sentence, Birth):
        was = _be(sentence.who, past=True)
        return f"{noun_phrase(sentence.who)} {was} born in {sentence.year} {_place(sentence.place)}"
    return _quotation(sentence)


def spell(sentence: Sentence) -> str:
    """The sentence in English, with a capital and its punctuation."""
    text = _capital(" ".join(_sentence(sentence).split()))
    if isinstance(sentence, Quotation) and not sentence.last:
        return text
    return text + ("?" if isinstance(sentence, Question) else ".")
