"""Constituency trees of the English sentences, in Penn bracketing and after the Penn Treebank's guidelines.

`english.spell` and `tree` take the same sentence; `text` of the tree is what `spell` gives.
"""

from __future__ import annotations

import re

from grammar.english import _OBJECT_PRONOUNS, _be
from grammar.syntax import (
    POSSESSIVES,
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
from grammar.words import Name, Noun, Phrase

_BE_TAGS = {"was": "VBD", "were": "VBD", "is": "VBZ", "are": "VBP", "am": "VBP"}
_MONTHS_AND_DAYS = re.compile(r"[A-Z]")


def _bracket(label: str, *parts: str) -> str:
    """A constituent of the parts that are not empty, or "" without any."""
    filled = [part for part in parts if part]
    return f"({label} {' '.join(filled)})" if filled else ""


def _adverb(word: str) -> str:
    return _bracket("ADVP", f"(RB {word})")


def _prepositional(preposition: str, *parts: str) -> str:
    return _bracket("PP", f"({'TO' if preposition == 'to' else 'IN'} {preposition})", *parts)


def _names(text: str) -> str:
    return " ".join(f"(NNP {word})" for word in text.split())


def _determiner(phrase: NounPhrase) -> str:
    if phrase.owner:
        mark = "'" if phrase.owner.plural and _last_word(phrase.owner).endswith("s") else "'s"
        return _bracket("NP", *_flat(phrase.owner), f"(POS {mark})")
    word: str = phrase.determiner
    if word == "no":
        word = "any" if phrase.plural else "a"
    if word == "this" and phrase.plural:
        word = "these"
    if word == "a":
        following = phrase.number or phrase.adjective or phrase.noun
        word = "an" if re.match(r"[aeio]|u(?!ni|se)|honest|X-", following.en) else "a"
    tag = "PRP$" if word in POSSESSIVES else "JJ" if word == "many" else "DT"
    return f"({tag} {word})" if word else ""


def _last_word(phrase: NounPhrase) -> str:
    return phrase.noun.en_plural if phrase.plural else phrase.noun.en


def _flat(phrase: NounPhrase, is_object: bool = False) -> list[str]:
    """The parts of a noun phrase without its relative clause."""
    head = phrase.head
    if isinstance(head, Pronoun):
        return [f"(PRP {_OBJECT_PRONOUNS[head.person] if is_object else head.person})"]
    if isinstance(head, Name):
        return [_names(f"{head.text} {phrase.surname}")]
    return [
        _determiner(phrase),
        f"(CD {phrase.number.en})" if phrase.number else "",
        f"(JJ {phrase.adjective.en})" if phrase.adjective else "",
        f"({'NNS' if phrase.plural else 'NN'} {_last_word(phrase)})",
    ]


def _noun_phrase(phrase: NounPhrase, is_object: bool = False) -> str:
    flat = _bracket("NP", *_flat(phrase, is_object))
    if not phrase.relative:
        return flat
    if isinstance(phrase.head, Noun) and phrase.head.kind == "person":
        pronoun = "(WP who)" if phrase.relative.subject is None else "(WP whom)"
    else:
        pronoun = "(WDT that)"
    relative = _bracket("SBAR", _bracket("WHNP", pronoun), _bracket("S", *_clause(phrase.relative, phrase)))
    return _bracket("NP", flat, relative)


def _place(place: Place, preposition: str = "") -> str:
    if isinstance(place.where, Phrase):
        return _prepositional(preposition or "in", _bracket("NP", _names(place.where.en)))
    return _prepositional(preposition or place.where.noun.en_place, _noun_phrase(place.where, is_object=True))


def _time(phrase: Phrase) -> str:
    """`now`, `last week`, `in the morning`, `on Monday` or `in 1985`."""
    first, *rest = phrase.en.split()
    if first in ("now", "soon"):
        return _adverb(first)
    tags = {"the": "DT", "every": "DT", "last": "JJ", "next": "JJ"}
    words = rest if first in ("in", "on", "at") else [first, *rest]
    leaves = [
        f"({'CD' if word.isdigit() else 'NNP' if _MONTHS_AND_DAYS.match(word) else tags.get(word, 'NN')} {word})"
        for word in words
    ]
    inner = _bracket("NP", *leaves)
    return inner if words[0] == first else _prepositional(first, inner)


def _predicate(spoken: Clause) -> str:
    if spoken.measure:
        digits, unit, *old = spoken.measure.en.split()
        amount = _bracket("NP", f"(CD {digits})", f"(NNS {unit})")
        return _bracket("ADJP", amount, "(JJ old)") if old else amount
    if not spoken.predicate:
        return ""
    adjective = spoken.predicate.en
    if not spoken.comparison:
        return _bracket("ADJP", f"(JJ {adjective})")
    other = _noun_phrase(spoken.comparison.other)
    if not spoken.comparison.more:
        return _bracket("ADJP", "(RB as)", f"(JJ {adjective})", _prepositional("as", other))
    more = spoken.predicate.en_comparative.split()
    words = f"(RBR more) (JJ {more[1]})" if len(more) > 1 else f"(JJR {more[0]})"
    return _bracket("ADJP", words, _prepositional("than", other))


def _particle(word: str) -> str:
    """`on` as in `turn on`, or the noun in `take part`."""
    if word == "part":
        return _bracket("NP", "(NN part)")
    return _bracket("PRT", f"(RP {word})") if word else ""


def _complements(spoken: Clause, with_time: bool) -> list[str]:
    """What follows the verb, in order."""
    verb = spoken.verb
    manner = spoken.manner.en.split() if spoken.manner else []
    place = _noun_phrase(spoken.object, is_object=True) if spoken.object else ""
    return [
        _particle(verb.en_particle),
        _predicate(spoken),
        _prepositional(verb.en_preposition, place) if verb.en_preposition else place,
        _prepositional("to", _noun_phrase(spoken.recipient, is_object=True)) if spoken.recipient else "",
        _prepositional(manner[0], _bracket("NP", f"(NN {manner[1]})")) if len(manner) > 1 else "",
        _adverb(manner[0]) if len(manner) == 1 else "",
        _place(spoken.goal, "into" if spoken.into else "to") if spoken.goal else "",
        _prepositional("with", _noun_phrase(spoken.companion, is_object=True)) if spoken.companion else "",
        _place(spoken.place) if spoken.place else "",
        _time(spoken.time) if spoken.time and with_time else "",
    ]


def _verb(spoken: Clause, subject: NounPhrase, ask: bool, complements: list[str]) -> tuple[str, list[str]]:
    """The finite verb where it is an auxiliary or be, else "", and what follows it."""
    verb, tense = spoken.verb, spoken.tense
    third = subject.person == 3 and not subject.is_plural
    negation = "(RB not)" if spoken.negated else ""
    frequency = _adverb(spoken.frequency.en) if spoken.frequency else ""
    infinitive = _bracket("VP", f"(VB {verb.en})", *complements)
    to_infinitive = _bracket("S", _bracket("VP", "(TO to)", infinitive))
    if tense in ("must", "can"):
        return f"(MD {tense})", [negation, infinitive]
    be = _be(subject, past=tense == "past")
    if tense == "future":
        return f"({_BE_TAGS[be]} {be})", [negation, _bracket("VP", "(VBG going)", to_infinitive)]
    if verb.en == "be":
        return f"({_BE_TAGS[be]} {be})", [negation, frequency, *complements]
    if ask or spoken.negated:
        do = "(VBD did)" if tense == "past" else "(VBZ does)" if third else "(VBP do)"
        want = _bracket("VP", "(VB want)", to_infinitive)
        return do, [negation, frequency, want if tense == "want" else infinitive]
    if tense == "want":
        return "", [frequency, _bracket("VP", "(VBZ wants)" if third else "(VBP want)", to_infinitive)]
    finite = f"(VBD {verb.en_past})" if tense == "past" else f"(VBZ {verb.en_third})" if third else f"(VBP {verb.en})"
    return "", [frequency, _bracket("VP", finite, *complements)]


def _clause(
    spoken: Clause,
    gap: NounPhrase | None = None,
    *,
    ask: bool = False,
    with_time: bool = True,
    reported: str = "",
    beside: str = "",
) -> list[str]:
    """The parts of a clause; the missing subject agrees with `gap`. With `ask`, they are those of SQ.

    `reported` is a clause that belongs to the verb, `beside` one that belongs to the whole predicate.
    """
    complements = [*_complements(spoken, with_time), reported]
    finite, rest = _verb(spoken, spoken.agreeing(gap), ask, complements)
    subject = _noun_phrase(spoken.subject) if spoken.subject else ""
    if ask:
        return [finite, subject, *rest, beside]
    if finite:
        return [subject, _bracket("VP", finite, *rest, beside)]
    *before, verb_phrase = rest
    return [subject, *before, f"{verb_phrase[:-1]} {beside})" if beside else verb_phrase]


def _question(asked: Question, end: str) -> str:
    if asked.which:
        words = _bracket("WHADJP", "(WRB how)", "(JJ many)") if asked.how_many else "(WDT which)"
        asks = _bracket("WHNP", words, *_flat(asked.which))
    elif asked.asked == "who":
        answer = _clause(asked.clause, NounPhrase(Name("who", female=False)))
        return _bracket("SBARQ", _bracket("WHNP", "(WP who)"), _bracket("SQ", *answer), end)
    elif asked.asked == "what":
        asks = _bracket("WHNP", "(WP what)")
    elif asked.asked:
        asks = _bracket("WHADVP", f"(WRB {asked.asked})")
    else:
        return _bracket("SQ", *_clause(asked.clause, ask=True), end)
    return _bracket("SBARQ", asks, _bracket("SQ", *_clause(asked.clause, ask=True)), end)


def _simple(sentence: Statement | Question, end: str) -> str:
    if isinstance(sentence, Question):
        return _question(sentence, end)
    if sentence.fronted and sentence.clause.time:
        return _bracket("S", _time(sentence.clause.time), *_clause(sentence.clause, with_time=False), end)
    return _bracket("S", *_clause(sentence.clause), end)


def _capital(tree: str) -> str:
    """The tree with a capital at its first word that is no quote."""
    return re.sub(r" ([A-Za-z])([^\s()]*\))", lambda match: f" {match[1].upper()}{match[2]}", tree, count=1)


def _quotation(sentence: Quotation) -> str:
    ask = isinstance(sentence.said, Question)
    if not sentence.last:
        said = _capital(_simple(sentence.said, "(. ?)" if ask else "(. .)"))
        subject, *before, verb_phrase = _clause(sentence.speaker)
        return _bracket("S", subject, *before, f"{verb_phrase[:-1]} (: :) (`` ``) {said} ('' ''))")
    said = _simple(sentence.said, "(. ?)" if ask else "")
    subject, *verb = _clause(sentence.speaker)
    return _bracket("SINV", "(`` ``)", said, "" if ask else "(, ,)", "('' '')", *verb, subject, "(. .)")


def _joined(sentence: Subordination | Coordination) -> str:
    conjunction = sentence.conjunction.en
    if isinstance(sentence, Coordination):
        first, second = (_bracket("S", *_clause(part)) for part in (sentence.first, sentence.second))
        return _bracket("S", first, "(, ,)" if conjunction == "but" else "", f"(CC {conjunction})", second, "(. .)")
    begin = _bracket("WHADVP", "(WRB when)") if conjunction == "when" else f"(IN {conjunction})"
    other = _bracket("SBAR", begin, _bracket("S", *_clause(sentence.subordinate)))
    if sentence.fronted:
        return _bracket("S", other, "(, ,)", *_clause(sentence.main), "(. .)")
    if conjunction in ("that", "whether"):
        return _bracket("S", *_clause(sentence.main, reported=other), "(. .)")
    return _bracket("S", *_clause(sentence.main, beside=other), "(. .)")


def tree(sentence: Sentence) -> str:
    """The sentence as a tree in Penn bracketing, with a capital and its punctuation."""
    if isinstance(sentence, Statement | Question):
        found = _simple(sentence, "(. ?)" if isinstance(sentence, Question) else "(. .)")
    elif isinstance(sentence, Subordination | Coordination):
        found = _joined(sentence)
    elif isinstance(sentence, Existence):
        verb = "(VBP are)" if sentence.what.plural else "(VBZ is)"
        rest = _bracket("VP", verb, _noun_phrase(sentence.what), _place(sentence.place))
        found = _bracket("S", _bracket("NP", "(EX there)"), rest, "(. .)")
    elif isinstance(sentence, Birth):
        was = _be(sentence.who, past=True)
        year = _prepositional("in", _bracket("NP", f"(CD {sentence.year})"))
        born = _bracket("VP", "(VBN born)", year, _place(sentence.place))
        found = _bracket("S", _noun_phrase(sentence.who), _bracket("VP", f"({_BE_TAGS[was]} {was})", born), "(. .)")
    else:
        found = _quotation(sentence)
    return _capital(found)


def text(bracketed: str) -> str:
    """The sentence of a tree as it is spelled: the Penn Treebank's quotes, `can not` and detached marks joined."""
    words = " ".join(re.findall(r" ([^\s()]+)\)", bracketed))
    for pattern, replacement in (
        (r"`` ", '"'),
        (r" ''", '"'),
        (r" ('s|'|[.,:?])(?=[ \"]|$)", r"\1"),
        (r"\b([Cc])an not\b", r"\1annot"),
    ):
        words = re.sub(pattern, replacement, words)
    return words
