"""Names of languages; those whose writing has no spaces between words: what counts as a token, and as a sentence."""

CODES = {"zho": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "tha": "th", "khm": "km", "lao": "lo", "mya": "my"}
"""Codes of three letters, by which text is named too, and those of two."""
NAMES = {
    "ar": "Arabic", "cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "hi": "Hindi",
    "it": "Italian", "ja": "Japanese", "ko": "Korean", "pl": "Polish", "pt": "Portuguese", "ru": "Russian",
    "th": "Thai", "tr": "Turkish", "uk": "Ukrainian", "zh": "Chinese",
}  # fmt: skip
"""What a language is called; one that is not here is called by its code."""
_WITHOUT_SPACES = {"zh", "ja", "th", "km", "lo", "my", "yue", "wuu", "bo", "bod", "dz", "dzo", "shn"}
SENTENCES_JOINED = {"zh", "ja", "yue", "wuu"}
"""Languages without a space between sentences."""


def code(language: str) -> str:
    """Return the code of a language without its script, of two letters where `CODES` has one: `zho_Hans` is `zh`."""
    base = language.partition("_")[0]
    return CODES.get(base, base)


def has_spaces(language: str) -> bool:
    return code(language) not in _WITHOUT_SPACES


def tokens(text: str, language: str) -> list[str]:
    """Return what spaces separate or, in a language without spaces between words, the characters."""
    words = text.split()
    return words if has_spaces(language) else list("".join(words))
