"""German: four cases, weak, mixed and strong adjectives, verb-second and verb-final order, separable verbs."""

from __future__ import annotations

import re
from typing import Literal

from grammar.syntax import (
    MODALS,
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
from grammar.words import Name, Noun, Phrase, Verb

Case = Literal["nom", "acc", "dat", "gen"]
Order = Literal["second", "first", "last"]

# Endings by gender (p: plural), in the order nom, acc, dat, gen.
_CASES: tuple[Case, ...] = ("nom", "acc", "dat", "gen")
_THE = {"m": "der den dem des", "f": "die die der der", "n": "das das dem des", "p": "die die den der"}
_DER_WORD = {"m": "er en em es", "f": "e e er er", "n": "es es em es", "p": "e e en er"}
_EIN_WORD = {"m": "- en em es", "f": "e e er er", "n": "- - em es", "p": "e e en er"}
_WEAK = {"m": "e en en en", "f": "e e en en", "n": "e e en en", "p": "en en en en"}
_MIXED = {"m": "er en en en", "f": "e e en en", "n": "es es en en", "p": "en en en en"}
_STRONG = {"m": "er en em en", "f": "e e er er", "n": "es es em en", "p": "e e en er"}

_EIN_STEMS = {"a": "ein", "no": "kein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
_DER_STEMS = {"this": "dies", "every": "jed"}
_PRONOUNS = {
    "I": "ich mich mir",
    "he": "er ihn ihm",
    "she": "sie sie ihr",
    "we": "wir uns uns",
    "they": "sie sie ihnen",
}
_MODALS = {"must": ("muss", "müssen"), "can": ("kann", "können"), "want": ("will", "wollen")}
_CONTRACTIONS = {"in dem": "im", "an dem": "am", "zu dem": "zum", "zu der": "zur", "von dem": "vom", "in das": "ins"}


def _ending(table: dict[str, str], gender: str, case: Case) -> str:
    return table[gender].split()[_CASES.index(case)].replace("-", "")


def _determiner(phrase: NounPhrase, gender: str, case: Case) -> tuple[str, dict[str, str]]:
    """The determiner, and the table of endings that an adjective takes after it."""
    word = phrase.determiner
    if word == "the":
        return _ending(_THE, gender, case), _WEAK
    if word in _DER_STEMS:
        return _DER_STEMS[word] + _ending(_DER_WORD, gender, case), _WEAK
    if word in ("many", "some"):
        stem = "viel" if word == "many" else "einig"
        return stem + _ending(_DER_WORD, gender, case), _STRONG
    if word in _EIN_STEMS and not (word == "a" and phrase.plural):
        return _EIN_STEMS[word] + _ending(_EIN_WORD, gender, case), _MIXED
    return "", _STRONG


def _noun(noun: Noun, plural: bool, case: Case) -> str:
    if plural:
        return noun.de_plural + ("n" if case == "dat" and not noun.de_plural.endswith(("n", "s")) else "")
    if case == "gen":
        return noun.de_genitive
    return noun.de + (noun.de_weak if case != "nom" else "")


def _name(phrase: NounPhrase, head: Name) -> str:
    return f"{head.text} {phrase.surname}".strip()


def _owner(owner: NounPhrase) -> tuple[str, str]:
    """What stands before the noun, and what after it."""
    if isinstance(owner.head, Name):
        name = _name(owner, owner.head)
        return name + ("'" if name.endswith(("s", "x", "z", "ß")) else "s"), ""
    return "", noun_phrase(owner, "gen")[0]


def noun_phrase(phrase: NounPhrase, case: Case) -> tuple[str, str]:
    """A noun phrase, and its relative clause with the comma before it or ""."""
    head = phrase.head
    if isinstance(head, Pronoun):
        return _PRONOUNS[head.person].split()[_CASES.index(case)], ""
    if isinstance(head, Name):
        return _name(phrase, head), ""
    gender = "p" if phrase.plural else head.de_gender
    before, after = _owner(phrase.owner) if phrase.owner else ("", "")
    if phrase.owner and not before:
        determiner, endings = _ending(_THE, gender, case), _WEAK
    else:
        determiner, endings = _determiner(phrase, gender, case)
    words = [before or determiner]
    if phrase.number:
        words.append(phrase.number.de)
    if phrase.adjective:
        words.append(phrase.adjective.de_stem + _ending(endings, gender, case))
    words += [_noun(head, phrase.plural, case), after]
    return " ".join(word for word in words if word), _relative(
        phrase, phrase.relative, gender
    ) if phrase.relative else ""


def _relative(phrase: NounPhrase, inner: Clause, gender: str) -> str:
    if inner.subject is None:
        pronoun = _ending(_THE, gender, "nom")
    else:
        preposition, _, case = inner.verb.de_case.rpartition("+")
        pronoun = _ending(_THE, gender, "dat" if case == "dat" else "acc")
        if gender == "p" and case == "dat":
            pronoun = "denen"
        pronoun = f"{preposition} {pronoun}".strip()
    return f", {pronoun} {clause(inner, 'last', gap=phrase)},"


def _preposition(word: str, phrase: NounPhrase, case: Case) -> tuple[str, str]:
    text, tail = noun_phrase(phrase, case)
    joined = f"{word} {text}"
    if phrase.determiner != "the" and not phrase.owner:
        return joined, tail
    for long, short in _CONTRACTIONS.items():
        joined = re.sub(f"^{long} ", f"{short} ", joined)
    return joined, tail


def _place(place: Place, goal: bool, into: bool) -> tuple[str, str]:
    if isinstance(place.where, Phrase):
        return f"{'nach' if goal else 'in'} {place.where.de}", ""
    if goal and not into:
        return _preposition("zu", place.where, "dat")
    return _preposition(place.where.noun.de_place, place.where, "acc" if into else "dat")


def _person(subject: NounPhrase, first: str, third: str, plural: str) -> str:
    return plural if subject.is_plural else first if subject.person == 1 else third


def _finite(spoken: Clause, subject: NounPhrase) -> str:
    """The conjugated verb: full verb, auxiliary or modal."""
    verb, tense = spoken.verb, spoken.tense
    if tense in MODALS:
        singular, plural = _MODALS[tense]
        return _person(subject, singular, singular, plural)
    if tense == "future":
        return _person(subject, "werde", "wird", "werden")
    if verb.de == "sein" and tense == "past":
        return _person(subject, "war", "war", "waren")
    if verb.de == "sein" or (tense == "past" and verb.de_sein):
        return _person(subject, "bin", "ist", "sind")
    if tense == "past":
        return _person(subject, "habe", "hat", "haben")
    return _person(subject, _first_person(verb), verb.de_third, verb.de)


def _first_person(verb: Verb) -> str:
    if verb.de == "wissen":
        return "weiß"
    stem = verb.de.removesuffix("n").removesuffix("e")
    return (stem[:-2] + "l" if stem.endswith("el") else stem) + "e"


def _end(spoken: Clause) -> str:
    """Participle or infinitive at the end of the clause."""
    if spoken.tense == "present" or (spoken.tense == "past" and spoken.verb.de == "sein"):
        return ""
    return spoken.verb.de_participle if spoken.tense == "past" else spoken.verb.de_prefix + spoken.verb.de


def _predicate(spoken: Clause) -> str:
    if spoken.measure:
        return spoken.measure.de
    if not spoken.predicate:
        return ""
    if not spoken.comparison:
        return spoken.predicate.de
    other = noun_phrase(spoken.comparison.other, "nom")[0]
    if spoken.comparison.more:
        return f"{spoken.predicate.de_comparative} als {other}"
    return f"so {spoken.predicate.de} wie {other}"


def _objects(spoken: Clause) -> tuple[str, str, str, str]:
    """The object, its case's preposition phrase if it has one, the recipient, and the object's relative clause."""
    recipient = noun_phrase(spoken.recipient, "dat")[0] if spoken.recipient else ""
    if spoken.object is None:
        return "", "", recipient, ""
    preposition, _, case = spoken.verb.de_case.rpartition("+")
    text, tail = noun_phrase(spoken.object, "dat" if case == "dat" else "acc")
    if preposition:
        text, tail = _preposition(preposition, spoken.object, "dat" if case == "dat" else "acc")
        return "", text, recipient, tail
    return text, "", recipient, tail


def _middle(spoken: Clause, with_time: bool) -> tuple[list[str], str]:
    """All between the subject and the clause's end, in German's order, and the object's relative clause."""
    plain, prepositional, recipient, tail = _objects(spoken)
    time = spoken.time.de if spoken.time and with_time else ""
    pronoun = plain if spoken.object and isinstance(spoken.object.head, Pronoun) else ""
    definite = plain if spoken.object and spoken.object.is_definite and not pronoun else ""
    indefinite = plain if not (pronoun or definite) else ""
    frequency = spoken.frequency.de if spoken.frequency else ""
    negation = "nicht" if spoken.negated and not (spoken.object and spoken.object.determiner == "no") else ""
    never = frequency if frequency == "nie" else ""
    places = [_place(spoken.place, goal=False, into=False)[0]] if spoken.place else []
    if spoken.companion:
        places.insert(0, "mit " + noun_phrase(spoken.companion, "dat")[0])
    goal = _place(spoken.goal, goal=True, into=spoken.into)[0] if spoken.goal else ""
    manner = spoken.manner.de if spoken.manner else ""
    early = [recipient, definite] if negation or never else []
    late = [] if early else [recipient, definite]
    words = [
        pronoun,
        *early,
        time,
        "" if never else frequency,
        *late,
        never or negation,
        indefinite,
        *places,
        manner,
        prepositional,
        goal,
        _predicate(spoken),
    ]
    return [word for word in words if word], tail


def clause(spoken: Clause, order: Order, gap: NounPhrase | None = None, first: str = "", with_time: bool = True) -> str:
    """A clause with its finite verb second, first or last; `first` stands before the verb in place of the subject."""
    subject = spoken.agreeing(gap)
    text, aside = noun_phrase(spoken.subject, "nom") if spoken.subject else ("", "")
    finite, end = _finite(spoken, subject), _end(spoken)
    middle, tail = _middle(spoken, with_time)
    prefix = spoken.verb.de_prefix if not end else ""
    if order == "last":
        words = [text + aside, *middle, end, prefix + finite]
    elif order == "first" or first:
        words = [first, finite, text + aside, *middle, end or prefix]
    else:
        words = [text + aside, finite, *middle, end or prefix]
    return " ".join(word for word in words if word) + tail


def _question(asked: Question) -> str:
    if asked.which:
        text, _ = noun_phrase(asked.which, "acc")
        if asked.how_many:
            return clause(asked.clause, "second", first=f"wie viele {text}")
        gender = "p" if asked.which.plural else asked.which.noun.de_gender
        weak = NounPhrase(asked.which.head, "the", asked.which.plural, adjective=asked.which.adjective)
        rest = noun_phrase(weak, "acc")[0].split(" ", 1)[1]
        return clause(asked.clause, "second", first=f"welch{_ending(_DER_WORD, gender, 'acc')} {rest}")
    if asked.asked == "who":
        return clause(asked.clause, "second", gap=NounPhrase(Name("wer", female=False)), first="wer")
    if asked.asked is None:
        return clause(asked.clause, "first")
    words = {"why": "warum", "when": "wann", "where": "wo", "what": "was"}
    return clause(asked.clause, "second", first=words[asked.asked])


def _simple(sentence: Statement | Question) -> str:
    if isinstance(sentence, Question):
        return _question(sentence)
    if sentence.fronted and sentence.clause.time:
        return clause(sentence.clause, "second", first=sentence.clause.time.de, with_time=False)
    return clause(sentence.clause, "second")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _quotation(sentence: Quotation) -> str:
    said = _finish(_capital(_simple(sentence.said)))
    end = "?" if isinstance(sentence.said, Question) else "" if sentence.last else "."
    if sentence.last:
        return f'"{said}{end}", {clause(sentence.speaker, "first")}'
    return f'{clause(sentence.speaker, "second")}: "{said}{end}"'


def _joined(sentence: Subordination | Coordination) -> str:
    if isinstance(sentence, Coordination):
        comma = "," if sentence.conjunction.en == "but" else ""
        second = clause(sentence.second, "second")
        return f"{clause(sentence.first, 'second')}{comma} {sentence.conjunction.de} {second}"
    other = f"{sentence.conjunction.de} {clause(sentence.subordinate, 'last')}"
    if sentence.fronted:
        return f"{other}, {clause(sentence.main, 'first')}"
    return f"{clause(sentence.main, 'second')}, {other}"


def _sentence(sentence: Sentence) -> str:
    if isinstance(sentence, Statement | Question):
        return _simple(sentence)
    if isinstance(sentence, Subordination | Coordination):
        return _joined(sentence)
    if isinstance(sentence, Existence):
        verb = "sind" if sentence.what.plural else "ist"
        where = _place(sentence.place, goal=False, into=False)[0]
        return f"{where} {verb} {noun_phrase(sentence.what, 'nom')[0]}"
    if isinstance(sentence, Birth):
        verb = "wurden" if sentence.who.is_plural else "wurde"
        where = _place(sentence.place, goal=False, into=False)[0]
        return f"{noun_phrase(sentence.who, 'nom')[0]} {verb} {sentence.year} {where} geboren"
    return _quotation(sentence)


def _finish(text: str) -> str:
    """Commas that meet become one, and one at the end goes."""
    return re.sub(r"\s*,(\s*,)*", ",", text).strip().removesuffix(",")


def spell(sentence: Sentence) -> str:
    """The sentence in German, with a capital and its punctuation."""
    text = _capital(_finish(" ".join(_sentence(sentence).split())))
    if isinstance(sentence, Quotation) and not sentence.last:
        return text
    return text + ("?" if isinstance(sentence, Question) else ".")
