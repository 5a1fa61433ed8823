"""Moses by sacremoses: as the scripts of 2017 on real text, and as sacremoses on any text."""

import re
from functools import cache
from typing import Any

import pytest
from clones import REAL, needs_real
from hypothesis import example, given
from hypothesis import strategies as st
from sacremoses import MosesPunctNormalizer, MosesTokenizer

from nmt.text.moses import Moses
from nmt.text.parallel_text import read_lines
from nmt.text.settings import TokenizerSettings

LANGUAGES = ("en", "de", "fr")
# What rules look at, more often than in text.
HARD = st.text(st.sampled_from("aAéß19 .,'\"-`´’‘‚«»„“”()%:;?!…–—&@<|\u00a0\u2028\t\r\x00\x1c\ufeffºcmUS"), max_size=16)
ANY = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=16)


@cache
def moses(language: str, *, normalize: bool = False, aggressive: bool = False, tokenizer: str = "moses") -> Moses:
    options = {"tokenizer": tokenizer, "normalize_punctuation": normalize, "aggressive_hyphens": aggressive}
    return Moses(language, TokenizerSettings.model_validate(options))


@needs_real
@pytest.mark.parametrize(
    ("language", "kind"),
    [("en", "tok"), ("fr", "tok"), ("en", "tok-aggressive"), ("de", "tok-aggressive"), ("de", "norm")],
)
def test_equals_moses_of_2017(language: str, kind: str) -> None:
    corpus = "en-fr" if language == "fr" else "en-de"
    raw = read_lines(REAL / f"newstest/newstest2013.{corpus}.{language}")
    expected = list(read_lines(REAL / f"moses2017/newstest2013.{corpus}.{kind}.{language}"))
    ours = moses(language, normalize=kind == "norm", aggressive=kind == "tok-aggressive")
    made = [ours.normalize(line) if kind == "norm" else ours.tokenize(line) for line in raw]
    assert len(made) == 3000
    assert made == expected


@pytest.mark.parametrize("tokenizer", ["moses", "none"])
def test_letters_are_composed_where_it_is_asked_for(tokenizer: Any) -> None:
    settings = TokenizerSettings(tokenizer=tokenizer, normalize_punctuation=False, aggressive_hyphens=False)
    asked = settings.model_copy(update={"compose": True})
    assert Moses("de", asked).tokenize("gru\u0308n") == "gr\u00fcn" != Moses("de", settings).tokenize("gru\u0308n")
    assert (asked.model_dump()["compose"], "compose" in settings.model_dump()) == (True, False), "as files had it"


# What normalize-punctuation.perl of 2017 makes of lines; by the language where that matters.
NORMALIZED: list[tuple[str, str | dict[str, str]]] = [
    ("a(b )c ( d) , (e) ! f  g ", "a (b) c (d), (e)! f g"),
    ("5 % a : b ; c", "5% a: b; c"),
    ("it`s ``so'' a''b", 'it\'s " so " a " b'),
    ("„a“ ”b” 1–2 a—b", '"a" "b" 1-2 a - b'),
    ("o´c ´´a´´", 'o\'c "a"'),
    # perl sees bytes, so that an accented letter is none.
    ("don’t l‘x l’été jusqu’à s’1 1’s", 'don\'t l\'x l"été jusqu"à s"1 1"s'),
    ("‘so’ ‚no‘", '"so" "no"'),
    ("a…", "a..."),
    ("„a.“ b", {"en": '"a." b', "cs": '"a." b', "": '"a". b'}),
    ("«\u00a0a\u00a0» «b» x \u00a0«\u00a0y\u00a0»\u00a0 z a\u00a0« b »\u00a0c", '"a" "b" x "y" z a\u00a0" b "\u00a0c'),
    ("a\u00a0«\u00a0b\u00a0»\u00a0c", 'a "b" c'),
    ("5\u00a0% nº\u00a05 a\u00a0: 5\u00a0ºC 5\u00a0cm", "5% nº 5 a: 5 ºC 5 cm"),
    ("a\u00a0? b\u00a0! c\u00a0; d,\u00a0 e\u00a0f\rg\th", "a? b! c; d, e\u00a0fg\th"),
    ("٣ % ٣\u00a0٣", "٣ % ٣\u00a0٣"),
    ('"a", "b". "c".', {"en": '"a," "b." "c."', "cs": '"a", "b". "c".', "": '"a", "b". "c".'}),
    ('a," b." c..."d e." ', {"en": 'a," b." c..."d e."', "cs": 'a," b." c..."d e."', "": 'a", b". c"...d e".'}),
    ('a.."<b c." <d', {"en": 'a.."<b c." <d', "cs": 'a.."<b c." <d', "": 'a.."<b c". <d'}),
    ('a."\u00a0."b', {"en": 'a."\u00a0."b', "cs": 'a."\u00a0."b', "": 'a".\u00a0".b'}),
    ("1\u00a0000 1\u00a02\u00a03", {"en": "1.000 1.2\u00a03", "it": "1.000 1.2\u00a03", "": "1,000 1,2\u00a03"}),
]


@pytest.mark.parametrize("language", [*LANGUAGES, "es", "it", "cs"])
def test_normalises_as_perl_does(language: str) -> None:
    ours = moses(language, normalize=True)
    for line, expected in NORMALIZED:
        made = expected if isinstance(expected, str) else expected.get(language, expected[""])
        assert ours.normalize(line) == made


@pytest.mark.parametrize("aggressive", [False, True])
@pytest.mark.parametrize("language", LANGUAGES)
@given(line=HARD | ANY)
@example(line="' ' 1' '2 a' 'b")
@example(line="'tis the dogs' .'")
@example(line=",5 U.S. No. 7 No. x Mr. X. e.g. etc. a DOTMULTI .. ...")
@example(line="A well-known 4-0 win at No. 7, dogs' own - it's 5 p.m., said Mr. Smith of the U.S. (late 80's 1,000.5?")
@example(line="Am 7. Oktober kostet der Nord-Süd-Zug 3,50 Euro, usw. L'homme qu'elle a vu : d'aujourd'hui !")
def test_equals_sacremoses_on_any_text(language: str, aggressive: bool, line: str) -> None:
    expected = _sacremoses(language).tokenize(line, aggressive_dash_splits=aggressive, escape=False)
    # Twice: the second time words are remembered.
    for _ in range(2):
        assert moses(language, aggressive=aggressive).tokenize(line) == " ".join(expected)
    if not aggressive:  # Normalisation has no such setting.
        assert moses(language).normalize(line) == line
        assert moses(language, normalize=True).normalize(line) == _in_bytes(language, line)


def _in_bytes(language: str, line: str) -> str:
    """The line by sacremoses' rules, as perl applied them in 2017: to bytes, every curly single quote to a double."""
    text = f"{line}\n".encode()
    for pattern, replacement in MosesPunctNormalizer(language, perl_parity=True).substitutions:
        text = re.sub(pattern.encode(), b'"' if pattern in {"‘", "‚", "’"} else replacement.encode(), text)
    return text.decode().strip()


_sacremoses = cache(MosesTokenizer)
GUT = "„Gut“, sagte er\u00a0…"
STRANGE = "a\rb\tc\u2028d\x85e\u00a0f\x00g\ufeffh"


@pytest.mark.parametrize(
    ("language", "options", "line", "expected"),
    [
        # Normalisation comes first where asked for: quotes and dots are its business, with either tokenizer.
        ("de", {"normalize": True}, GUT, '" Gut " , sagte er ...'),
        ("de", {"normalize": True, "tokenizer": "none"}, GUT, '"Gut", sagte er\u00a0...'),
        # What the module's docstring promises.
        ("en", {}, STRANGE, "a b c d e fg \ufeff h"),
        ("en", {"normalize": True}, STRANGE, "ab c d e fg \ufeff h"),
        ("en", {"tokenizer": "none"}, STRANGE, "a b c d e\u00a0f g\ufeffh"),
        ("en", {"tokenizer": "none"}, "  a  b \r", "a  b"),
    ],
)
def test_tokens_of_lines(language: str, options: dict[str, Any], line: str, expected: str) -> None:
    assert moses(language, **options).tokenize(line) == expected


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", "The well-known author's \"new\" book (2nd edition) costs $5,300.50, doesn't it?"),
        ("de", 'Er sagte: "Das (sehr bekannte) Nord-Süd-Gefälle wächst um 3,5 Prozent."'),
        ("fr", "L'homme qu'aujourd'hui j'appelle d'Artagnan a-t-il vraiment dit ça ?"),
        ("fr", "Il l'a dit : c'est 50 % de l'eau ; n'est-ce pas ?"),
    ],
)
@pytest.mark.parametrize("aggressive", [False, True])
def test_detokenising_gives_a_line_back(language: str, line: str, aggressive: bool) -> None:
    ours = moses(language, aggressive=aggressive)
    tokens = ours.tokenize(line)
    assert tokens != line
    assert ours.detokenize(tokens) == line
    assert ours.detokenize("&amp; AT") == "&amp; AT"
