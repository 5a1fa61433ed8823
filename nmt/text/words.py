"""The words of the training text's source side: a model guesses all others, and users are warned of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from unicodedata import category

from nmt.common.files import write_text
from nmt.text.parallel_text import read_lines
from nmt.text.scripts import has_spaces

FILE = "words.txt"  # in a folder of subwords, one word a line; models work without it
MOST = 100_000  # words in it, the most frequent ones: a megabyte


def bare(token: str) -> str:
    r"""Return a token without punctuation, symbols and controls at its ends: \p{P}, \p{S}, \p{C} (static/text.js)."""
    kept = [at for at, character in enumerate(token) if category(character)[0] not in "PSC"]
    return token[kept[0] : kept[-1] + 1] if kept else ""


def count(lines: Iterable[str]) -> Counter[str]:
    """Count the words, separated by spaces: other white space is a character of its word."""
    counts = Counter(" ".join(lines).split(" "))
    del counts[""]  # between two consecutive spaces
    return counts


def save(folder: Path, counts: Mapping[str, int], language: str, parent: Path | None) -> None:
    """Write the most frequent words of counted tokens into a folder of subwords, then those of the parent's folder.

    Without effect for a language without spaces between words, and for a parent whose words are unknown.
    """
    known = set() if parent is None else load([parent])
    if known is None or not has_spaces(language):
        return
    total = Counter[str]()
    for tokens, count in counts.items():
        for token in tokens.split():  # Of raw text, a no-break space may be inside.
            total[bare(token)] += count
    ordered = dict.fromkeys([*sorted(total, key=lambda word: (-total[word], word)), *sorted(known)])
    write_text(folder / FILE, "".join(f"{word}\n" for word in list(filter(None, ordered))[:MOST]))


def load(folders: Iterable[Path]) -> set[str] | None:
    """Return the words in any of the folders of subwords; None if one has none, as older folders."""
    paths = [folder / FILE for folder in folders]
    return {word for path in paths for word in read_lines(path)} if all(path.exists() for path in paths) else None


def unseen(tokens: str, seen: set[str]) -> list[str]:
    """Return the words of a tokenised line that are not in `seen`."""
    return [word for token in tokens.split() if token not in seen and (word := bare(token)) and word not in seen]
