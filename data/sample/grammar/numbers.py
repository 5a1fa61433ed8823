"""Numbers in words from 2 to 99, and as digits, in three languages."""

from __future__ import annotations

from grammar.words import ASPIRATED, Adjective, Phrase

_EN = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_EN_TENS = (
    "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip
_DE = (
    "null", "ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf",
    "dreizehn", "vierzehn", "fünfzehn", "sechzehn", "siebzehn", "achtzehn", "neunzehn",
)  # fmt: skip
_DE_TENS = (
    "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig",
)  # fmt: skip
_FR = (
    "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze", "douze",
    "treize", "quatorze", "quinze", "seize",
)  # fmt: skip
_FR_TENS = {2: "vingt", 3: "trente", 4: "quarante", 5: "cinquante", 6: "soixante", 8: "quatre-vingt"}


def _english(number: int) -> str:
    if number < 20:
        return _EN[number]
    tens, rest = divmod(number, 10)
    return _EN_TENS[tens - 2] + (f"-{_EN[rest]}" if rest else "")


def _german(number: int) -> str:
    if number < 20:
        return _DE[number]
    tens, rest = divmod(number, 10)
    return (f"{_DE[rest]}und" if rest else "") + _DE_TENS[tens - 2]


def _french(number: int) -> str:
    if number < 17:
        return (ASPIRATED if number in (8, 11) else "") + _FR[number]
    if number < 20:
        return f"dix-{_FR[number - 10]}"
    tens, rest = divmod(number, 10)
    if tens in (7, 9):
        tens, rest = tens - 1, rest + 10
    start = _FR_TENS[tens]
    if rest == 0:
        return start + ("s" if number == 80 else "")
    if rest in (1, 11) and tens != 8:
        return f"{start} et {_FR[rest]}"
    return f"{start}-{_FR[rest] if rest < 17 else f'dix-{_FR[rest - 10]}'}"


def in_words(number: int) -> Phrase:
    """2 to 99 in words; the French may end in `un`, which agrees with its noun."""
    return Phrase(_english(number), _german(number), _french(number))


def decimal(tenths: int) -> str:
    """English digits of a number of tenths: `3.5`, or `4` where nothing follows the point."""
    whole, rest = divmod(tenths, 10)
    return f"{whole}.{rest}" if rest else str(whole)


def amount(tenths: int, unit: Phrase) -> Phrase:
    """A number with its unit: `3.5 metres`, `3,5 Meter`, `3,5 mètres`."""
    digits = decimal(tenths)
    comma = digits.replace(".", ",")
    return Phrase(f"{digits} {unit.en}", f"{comma} {unit.de}", f"{comma} {unit.fr}")


def years_old(number: int) -> Adjective:
    """`ten-year-old`, zehnjährig, de dix ans."""
    german = f"{_german(number)}jährig"
    french = f"de {_french(number)} ans"
    return Adjective(("person", "animal"), f"{_english(number)}-year-old", "", german, german, "", (french,) * 5)


def storeyed(number: int) -> Adjective:
    """`three-storey`, dreistöckig, de trois étages."""
    german = f"{_german(number)}stöckig"
    french = f"de {_french(number)} étages"
    return Adjective(("building",), f"{_english(number)}-storey", "", german, german, "", (french,) * 5)
