"""What is doubtful in parallel texts that the user adds: text that makes a score worthless."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from nmt.text.parallel_text import parallel, read_lines
from nmt.text.scripts import tokens

HELD_OUT = ("valid", "test")
GRAM = 8  # words, or characters in languages without spaces
Placed = dict[str, list[list[Path]]]
"""Both sides of each text, by role."""


def warnings(placed: Placed, languages: tuple[str, str]) -> Iterator[str]:
    """Yield what is doubtful in parallel texts: pairs without text or translation, held-out lines in training, too."""
    for role, texts in placed.items():
        pairs = empty = equal = 0
        for source, target in chain.from_iterable(parallel(*both) for both in texts):
            pairs += 1
            empty += not (source.strip() and target.strip())
            equal += source == target != ""
        for count, what in ((empty, "an empty side"), (equal, "equal sides")):
            if 2 * count > pairs:
                yield f"{count:,} of the {pairs:,} pairs for --{role} have {what}"
    for side, language in enumerate(languages):
        held = {
            both[side].stem.replace(".", " ", 1): {line for line in read_lines(both[side]) if line.strip()}
            for role in HELD_OUT
            for both in placed[role]
        }
        for text, lines in held.items():
            if text != "valid" and (shared := len(lines & held["valid"])):
                yield f"{shared:,} of {len(lines):,} different lines for --{text} in {language} are those of --valid"
        training = chain.from_iterable(read_lines(both[side]) for both in placed["train"])
        equals, near = _repeated(set().union(*held.values()), training, language)
        for text, lines in held.items():
            if (lines & equals) or (lines & near):
                yield (
                    f"{len(lines & equals):,} of {len(lines):,} different lines for --{text} in {language} are also in "
                    f"the training text, and {len(lines & near):,} more share over half of their {GRAM}-grams with a "
                    "line of it"
                )


def _repeated(held: set[str], training: Iterable[str], language: str) -> tuple[set[str], set[str]]:
    """Return the held-out lines that are in the training text, and those nearly so; memory grows with them alone.

    A near one has more than half of its different 8-grams, in any case of letters, in one training line.
    """

    def grams(line: str) -> set[tuple[str, ...]]:
        words = tokens(line.casefold(), language)
        return set(zip(*(words[at:] for at in range(GRAM)), strict=False))

    sizes, having = dict[str, int](), dict[tuple[str, ...], list[str]]()
    for line in held:
        distinct = grams(line)
        sizes[line] = len(distinct)
        for gram in distinct:
            having.setdefault(gram, []).append(line)
    equal, near = set[str](), set[str]()
    for line in training:
        if line in held:
            equal.add(line)
        shared = Counter(like for gram in grams(line) for like in having.get(gram, ()))
        near.update(like for like, count in shared.items() if 2 * count > sizes[like])
    return equal, near - equal
