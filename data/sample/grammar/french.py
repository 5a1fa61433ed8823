"""French: gender, elision and contraction, ne ... pas, clitics, agreement of adjectives and participles."""

from __future__ import annotations

import re

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
from grammar.words import ASPIRATED, Adjective, Name, Phrase

_VOWEL = "[aeiouhàâäéèêëîïôöùûüœAEIOUHÀÂÉÈÊÎÔŒ]"
_SUBJECTS = {"I": "je", "he": "il", "she": "elle", "we": "nous", "they": "ils"}
_CLITICS = {"I": "me", "he": "le", "she": "la", "we": "nous", "they": "les"}
_STRESSED = {"I": "moi", "he": "lui", "she": "elle", "we": "nous", "they": "eux"}
_POSSESSIVES = {
    "my": ("mon", "ma", "mes"),
    "his": ("son", "sa", "ses"),
    "her": ("son", "sa", "ses"),
    "our": ("notre", "notre", "nos"),
    "their": ("leur", "leur", "leurs"),
}
_AVOIR = ("ai", "a", "avons", "ont")
_ETRE = ("suis", "est", "sommes", "sont")
_MODALS = {
    "must": ("dois", "doit", "devons", "doivent"),
    "can": ("peux", "peut", "pouvons", "peuvent"),
    "want": ("veux", "veut", "voulons", "veulent"),
    "future": ("vais", "va", "allons", "vont"),
}


def _starts_with_vowel(word: str) -> bool:
    return re.match(_VOWEL, word) is not None


def is_feminine(phrase: NounPhrase) -> bool:
    """Gender for agreement; I, we and they count as masculine."""
    if isinstance(phrase.head, Name):
        return phrase.head.female
    if isinstance(phrase.head, Pronoun):
        return phrase.head.person == "she"
    return phrase.head.fr_gender == "f"


def _agree(form: str, feminine: bool, plural: bool) -> str:
    text = form + ("e" if feminine else "")
    return text + ("s" if plural and not text.endswith("s") else "")


def _adjective(word: Adjective, feminine: bool, plural: bool) -> str:
    return word.fr[(2 if plural else 0) + (1 if feminine else 0)]


def _determiner(phrase: NounPhrase, feminine: bool, following: str, before_adjective: bool) -> str:
    word = "the" if phrase.owner else phrase.determiner
    plural = "de" if before_adjective else "des"
    vowel = _starts_with_vowel(following)
    masculine, feminine_form, plural_form = {
        "the": ("le", "la", "les"),
        "no": ("de", "de", "de"),
        "a": ("un", "une", plural),
        "this": ("cet" if vowel else "ce", "cette", "ces"),
        "many": ("beaucoup de",) * 3,
        "some": ("quelques",) * 3,
        "every": ("chaque",) * 3,
        "": ("" if phrase.number else plural,) * 3,
        **_POSSESSIVES,
    }[word]
    if phrase.plural:
        return plural_form
    return masculine if word in _POSSESSIVES and vowel else feminine_form if feminine else masculine


def _number(phrase: Phrase, feminine: bool) -> str:
    return re.sub("un$", "une", phrase.fr) if feminine else phrase.fr


def noun_phrase(phrase: NounPhrase) -> str:
    """A noun phrase with its relative clause, before elision."""
    head = phrase.head
    if isinstance(head, Pronoun):
        return _SUBJECTS[head.person]
    if isinstance(head, Name):
        return f"{head.text} {phrase.surname}".strip()
    feminine = head.fr_gender == "f"
    noun = head.fr_plural if phrase.plural else head.fr
    before, after = "", ""
    if phrase.adjective:
        form = _adjective(phrase.adjective, feminine, phrase.plural)
        if phrase.adjective.fr_before:
            vowel = not feminine and not phrase.plural and _starts_with_vowel(noun)
            before = phrase.adjective.fr[4] if vowel else form
        else:
            after = form
    number = _number(phrase.number, feminine) if phrase.number else ""
    words = [_determiner(phrase, feminine, before or noun, bool(before)), number, before, noun, after]
    if phrase.owner:
        words.append("de " + noun_phrase(phrase.owner))
    if phrase.relative:
        words.append(_relative(phrase.relative, phrase))
    return " ".join(word for word in words if word)


def _relative(inner: Clause, antecedent: NounPhrase) -> str:
    if inner.subject is None:
        return "qui " + clause(inner, gap=antecedent)
    return "que " + clause(inner, before=antecedent)


def _place(place: Place) -> str:
    if isinstance(place.where, Phrase):
        return f"{'en' if place.country else 'à'} {place.where.fr}"
    return f"{place.where.noun.fr_place} {noun_phrase(place.where)}"


def _form(forms: tuple[str, str, str, str], subject: NounPhrase) -> str:
    return forms[(0 if subject.person == 1 else 1) + (2 if subject.is_plural else 0)]


def _verb_group(spoken: Clause, subject: NounPhrase, clitic: str, before: NounPhrase | None) -> list[str]:
    """Clitic, ne, the verb's parts, pas and the adverb of frequency, in order. `before` is an object that went before
    the verb, with which the participle agrees."""
    verb, tense = spoken.verb, spoken.tense
    ne = "ne" if spoken.negative else ""
    pas = "pas" if spoken.negated else ""
    frequency = spoken.frequency.fr if spoken.frequency else ""
    if tense in MODALS or tense == "future":
        return [ne, _form(_MODALS[tense], subject), pas, frequency, clitic, verb.fr]
    if tense == "present":
        return [ne, clitic, _form(verb.fr_forms, subject), pas, frequency]
    if verb.fr in ("être", "avoir") and verb.en == "be":
        forms = (
            ("étais", "était", "étions", "étaient") if verb.fr == "être" else ("avais", "avait", "avions", "avaient")
        )
        return [ne, _form(forms, subject), pas, frequency]
    if verb.fr_etre:
        participle = _agree(verb.fr_participle, is_feminine(subject), subject.is_plural)
        return [ne, _form(_ETRE, subject), pas, frequency, participle]
    agrees = before is not None and not verb.fr_preposition
    participle = verb.fr_participle
    if before is not None and agrees:
        participle = _agree(participle, is_feminine(before), before.is_plural)
    return [ne, clitic, _form(_AVOIR, subject), pas, frequency, participle]


def _predicate(spoken: Clause, subject: NounPhrase) -> str:
    if spoken.measure:
        return spoken.measure.fr
    if not spoken.predicate:
        return ""
    word = _adjective(spoken.predicate, is_feminine(subject), subject.is_plural)
    if not spoken.comparison:
        return word
    return f"{'plus' if spoken.comparison.more else 'aussi'} {word} que {noun_phrase(spoken.comparison.other)}"


def _object(spoken: Clause) -> str:
    if spoken.object is None:
        return ""
    if isinstance(spoken.object.head, Pronoun):
        return f"{spoken.verb.fr_preposition} {_STRESSED[spoken.object.head.person]}"
    text = noun_phrase(spoken.object)
    if spoken.verb.fr_preposition == "de" and text.startswith(("des ", "de ")):
        return text if text.startswith("de ") else "de " + text.removeprefix("des ")
    return f"{spoken.verb.fr_preposition} {text}"


def clause(
    spoken: Clause, gap: NounPhrase | None = None, before: NounPhrase | None = None, with_time: bool = True
) -> str:
    """A clause; the missing subject agrees with `gap`, a participle with the object `before` it."""
    subject = spoken.agreeing(gap)
    clitic = ""
    if spoken.object and isinstance(spoken.object.head, Pronoun) and not spoken.verb.fr_preposition:
        clitic, before = _CLITICS[spoken.object.head.person], spoken.object
    words = [noun_phrase(spoken.subject)] if spoken.subject else []
    words += _verb_group(spoken, subject, clitic, before)
    words.append(_predicate(spoken, subject))
    words += [] if clitic else [_object(spoken)]
    if spoken.recipient:
        words.append("à " + noun_phrase(spoken.recipient))
    if spoken.manner:
        words.append(spoken.manner.fr)
    if spoken.goal:
        words.append(_place(spoken.goal))
    if spoken.companion:
        words.append("avec " + noun_phrase(spoken.companion))
    if spoken.place:
        words.append(_place(spoken.place))
    if spoken.time and with_time:
        words.append(spoken.time.fr)
    return " ".join(word for word in words if word.strip())


def _question(asked: Question) -> str:
    if asked.which:
        if asked.how_many:
            counted = NounPhrase(asked.which.head, "many", plural=True, adjective=asked.which.adjective)
            start = noun_phrase(counted).replace("beaucoup de", "combien de", 1)
        else:
            definite = NounPhrase(asked.which.head, "the", asked.which.plural, adjective=asked.which.adjective)
            rest = noun_phrase(definite).split(" ", 1)[1]
            start = _agree("quelle" if is_feminine(definite) else "quel", feminine=False, plural=definite.plural)
            start = f"{start} {rest}"
        return f"{start} est-ce que {clause(asked.clause, before=asked.which)}"
    if asked.asked == "who":
        return "qui " + clause(asked.clause, gap=NounPhrase(Name("qui", female=False)))
    words = {"why": "pourquoi ", "when": "quand ", "where": "où ", "what": "qu'", None: ""}
    return f"{words[asked.asked]}est-ce que {clause(asked.clause)}"


def _simple(sentence: Statement | Question) -> str:
    if isinstance(sentence, Question):
        return _question(sentence)
    if sentence.fronted and sentence.clause.time:
        return f"{sentence.clause.time.fr}, {clause(sentence.clause, with_time=False)}"
    return clause(sentence.clause)


def _join(text: str) -> str:
    """Elision (l', d', qu', s'il), then contraction (du, des, au, aux), and no more marks of an aspirated h."""
    text = " ".join(text.split())
    text = re.sub(r"\b([Ss])i (ils?)\b", r"\1'\2", text)
    text = re.sub(rf"\b([Ll]e|[Ll]a|[Dd]e|que|[Jj]e|ne|me) (?={_VOWEL})", lambda match: match[1][:-1] + "'", text)
    text = re.sub(r"\bde le ", "du ", text)
    text = re.sub(r"\bde les ", "des ", text)
    text = re.sub(r"\bà le ", "au ", text)
    text = re.sub(r"\bà les ", "aux ", text)
    return text.replace(ASPIRATED, "")


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _quotation(sentence: Quotation) -> str:
    said = _capital(_simple(sentence.said))
    end = " ?" if isinstance(sentence.said, Question) else "" if sentence.last else "."
    if not sentence.last:
        return f'{clause(sentence.speaker)} : "{said}{end}"'
    speaker = noun_phrase(sentence.speaker.agreeing(None))
    return f'"{said}{end}", {clause(sentence.speaker).removeprefix(speaker).strip()} {speaker}'


def _joined(sentence: Subordination | Coordination) -> str:
    if isinstance(sentence, Coordination):
        comma = "," if sentence.conjunction.en == "but" else ""
        return f"{clause(sentence.first)}{comma} {sentence.conjunction.fr} {clause(sentence.second)}"
    main, other = clause(sentence.main), f"{sentence.conjunction.fr} {clause(sentence.subordinate)}"
    return f"{other}, {main}" if sentence.fronted else f"{main} {other}"


def _sentence(sentence: Sentence) -> str:
    if isinstance(sentence, Statement | Question):
        return _simple(sentence)
    if isinstance(sentence, Subordination | Coordination):
        return _joined(sentence)
    if isinstance(sentence, Existence):
        return f"il y a {noun_phrase(sentence.what)} {_place(sentence.place)}"
    if isinstance(sentence, Birth):
        born = _agree("né", is_feminine(sentence.who), sentence.who.is_plural)
        where = _place(sentence.place)
        return f"{noun_phrase(sentence.who)} {_form(_ETRE, sentence.who)} {born} en {sentence.year} {where}"
    return _quotation(sentence)


def spell(sentence: Sentence) -> str:
    """The sentence in French, with a capital and its punctuation: a plain space before `?` and `:`, straight quotes."""
    text = _capital(_join(_sentence(sentence)))
    if isinstance(sentence, Quotation) and not sentence.last:
        return text
    return text + (" ?" if isinstance(sentence, Question) else ".")
