"""Parallel text of any size that costs what WMT14's EN-DE text costs to prepare; the same text for the same seed.

What decides the cost of tokenising, counting and segmenting is taken from real text, counted in tokens of Moses'
tokenizer (without `-a`); the words themselves are made of syllables, endings and, in German, of other words.

- Lengths: a gamma distribution fits the English sentences of newstest2013 and newstest2014 (mean 22.1, standard
  deviation 11.9; at the 5th, 50th and 99th percentile 7, 20 and 58 tokens); the German side is 0.955 times as long,
  the logarithm of the ratio spread by 0.19.
- Word types: Heaps' law V(n) = K n^beta. K and beta are least squares on log-log over 25 sizes from 10,000 to 1 million
  tokens of the shuffled lines of europarl20k and the seven newstests from 2008 to 2014; the real text is never further
  than 9.2% (English) and 8.4% (German) from it. The generator brings new words in at exactly that pace.
- Frequencies: Zipf's law with the exponent 1 for the first 5,000 ranks and 1/beta after them, which is what Heaps'
  law follows from: most types are rare, as in real text.
- Punctuation: commas, full stops, quotes, brackets, apostrophes, numbers and hyphens as often as in newstest.
"""

from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from pipeline.data.blocks import map_in_order

BLOCK = 10_000  # pairs made at once
SHAPE, SCALE = 3.45, 6.27
"""Of the gamma distribution of English lengths; quotes and brackets bring the mean from 21.6 to 22.1 tokens."""
RATIO, SPREAD = 0.955, 0.19  # German tokens over English ones, and the standard deviation of the ratio's logarithm
HEAD = 5000  # ranks with Zipf's exponent 1
OPENING = 100  # the words that sentences begin with, capitalised


@dataclass(frozen=True)
class Language:
    """What is typical of one side."""

    code: str
    K: float
    beta: float
    commas: float  # commas over the tokens that are neither the first nor the last
    apostrophes: float  # sentences with a word in 's
    capitals: float  # types that begin with a capital
    onsets: tuple[str, ...]
    nuclei: tuple[str, ...]
    codas: tuple[str, ...]
    endings: tuple[str, ...]
    compounds: float  # rare types that are two other words in one

    def types(self, tokens: int) -> int:
        """Heaps' law: the types among so many tokens."""
        return int(self.K * tokens**self.beta)


ENGLISH = Language(
    code="en", K=21.35, beta=0.5462, commas=0.058, apostrophes=0.1, capitals=0.25,
    onsets=("b", "c", "d", "f", "g", "h", "l", "m", "n", "p", "r", "s", "t", "w", "v", "j", "st", "th", "tr", "ch",
            "pr", "sh", "gr", "pl", "br", "cl", "sp", "wh", "qu", "fl", "str", ""),
    nuclei=("e", "a", "i", "o", "u", "ea", "ou", "ai", "ee", "io", "y", "oo"),
    codas=("", "n", "r", "s", "t", "l", "d", "m", "nd", "st", "ll", "nt", "ck", "ng", "p", "ss", "rt", "ct"),
    endings=("s", "ed", "ing", "er", "ly", "tion", "al", "ness", "ment", "able", "ity", "ive"),
    compounds=0.04,
)  # fmt: skip
GERMAN = Language(
    code="de", K=9.754, beta=0.6476, commas=0.066, apostrophes=0.0, capitals=0.55,
    onsets=("b", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "w", "v", "z", "st", "sch", "tr", "kr",
            "pr", "gr", "pf", "br", "kl", "sp", "bl", "fr", "schl", "zw", "str", ""),
    nuclei=("e", "a", "i", "o", "u", "ei", "au", "ie", "ä", "ü", "ö", "eu"),
    codas=("", "n", "r", "s", "t", "l", "d", "m", "nd", "st", "ll", "nt", "ck", "ng", "ch", "ß", "rt", "cht"),
    endings=("en", "e", "er", "es", "ung", "ungen", "lich", "lichen", "keit", "heit", "isch", "te", "bar"),
    compounds=0.45,
)  # fmt: skip


def _syllables(language: Language, random: Random, count: int) -> str:
    """Earlier entries of the inventories are likelier, as letters are."""

    def pick(choices: tuple[str, ...]) -> str:
        return choices[int(len(choices) * random.random() ** 2)]

    return "".join([pick(language.onsets) + pick(language.nuclei) + pick(language.codas) for _ in range(count)])


def _word(language: Language, random: Random, rank: int, words: list[str]) -> str:
    """A new type; the rarer, the longer."""

    def known() -> str:
        """One of the words so far, a frequent one most likely."""
        return words[int(rank * random.random() ** 4)]

    kind = random.random()
    if rank > 300 and kind < 0.04:
        return random.choice(("{}", "{}.{}", "19{}", "20{}", "{},000")).format(random.randrange(999), rank % 10)
    if rank > 1000 and kind < 0.08:
        return f"{known()}-{known()}"
    if rank > 3000 and kind < 0.08 + language.compounds:
        return known() + known().lower()
    if rank > 1000 and random.random() < 0.55:
        word = known() + random.choice(language.endings)
    else:
        word = _syllables(language, random, 1 if rank < 100 else random.choice((1, 2, 2)))
    return word.capitalize() if random.random() < language.capitals and rank > 60 else word


@lru_cache(maxsize=2)
def inventory(language: Language, types: int) -> NDArray[np.object_]:
    """So many different words, the most frequent first; more of them begin alike."""
    random = Random(language.code)
    words: list[str] = []
    seen: set[str] = set()
    while len(words) < types:
        word = _word(language, random, len(words), words)
        while word in seen:
            word = word[:9] + _syllables(language, random, 1)
        seen.add(word)
        words.append(word)
    return np.array(words, dtype=object)


@lru_cache(maxsize=2)
def _cumulated(language: Language, types: int) -> NDArray[np.float64]:
    """The sums of the ranks' frequencies."""
    ranks = np.arange(1.0, types + 1)
    return np.cumsum(np.where(ranks <= HEAD, 1 / (ranks + 2), (ranks / HEAD) ** (-1 / language.beta) / (HEAD + 2)))


@dataclass(frozen=True)
class Plan:
    """How long every sentence of a side is, and which tokens a block's are, counted from the corpus's first."""

    language: Language
    seed: int
    lengths: NDArray[np.int32]

    def block(self, number: int) -> tuple[NDArray[np.int32], int]:
        """The lengths of a block and the number of tokens before it."""
        first = number * BLOCK
        return self.lengths[first : first + BLOCK], int(self.lengths[:first].sum(dtype=np.int64))


def plans(pairs: int, seed: int) -> tuple[Plan, Plan]:
    """Both sides of a corpus."""
    random = np.random.default_rng((seed, 0))
    source = np.clip(np.rint(random.gamma(SHAPE, SCALE, pairs)), 2, 180).astype(np.int32)
    ratio = RATIO * np.exp(random.normal(0, SPREAD, pairs))
    target = np.clip(np.rint(source * ratio), 2, 250).astype(np.int32)
    return Plan(ENGLISH, seed, source), Plan(GERMAN, seed, target)


@dataclass(frozen=True)
class Job:
    """A block of one side, for a worker."""

    language: Language
    seed: int
    number: int
    lengths: NDArray[np.int32]
    before: int
    total: int  # tokens of the whole side


def make(job: Job) -> bytes:
    """The block's lines."""
    random = np.random.default_rng((job.seed, ord(job.language.code[0]), job.number))
    count = int(job.lengths.sum())
    known, after = job.language.types(job.before), job.language.types(job.before + count)
    words = inventory(job.language, job.language.types(job.total))
    cumulated = _cumulated(job.language, len(words))
    last = np.cumsum(job.lengths) - 1
    first = last - job.lengths + 1
    marks = random.random(count) < job.language.commas
    marks[1:] &= ~marks[:-1]
    marks[last], marks[first] = True, False
    ranks = np.searchsorted(cumulated, random.random(count) * cumulated[max(known, after // 2) - 1])
    # The block's new types, each somewhere in it.
    free = ~marks
    free[first] = False
    ranks[random.permutation(np.flatnonzero(free))[: after - known]] = np.arange(known, after)
    ranks[first] %= OPENING
    tokens = words[ranks]
    tokens[marks] = ","
    tokens[last] = "."
    kinds = random.random((len(last), 3))
    lines, start = [], 0
    for end, kind in zip((last + 1).tolist(), kinds.tolist(), strict=True):
        lines.append(_line(tokens[start:end].tolist(), kind, job.language.apostrophes))
        start = end
    return "".join(lines).encode()


def _line(tokens: list[str], kind: list[float], apostrophes: float) -> str:
    """Tokens written as a sentence, some of them with quotes, brackets, an apostrophe, a question mark."""
    if kind[0] < 0.22 and len(tokens) > 5:
        at = 1 + int(kind[1] * (len(tokens) - 4))
        opening, closing = ("(", ")") if kind[0] < 0.03 else ('"', '"')
        if tokens[at] != "," and tokens[at + 2] != ",":
            tokens[at], tokens[at + 2] = opening + tokens[at], tokens[at + 2] + closing
    if kind[2] < apostrophes and tokens[-2] != ",":
        tokens[-2] += "'s"
    elif kind[2] > 0.97:
        tokens[-1] = "?"
    text = " ".join(tokens).replace(" ,", ",")
    return text[0].upper() + text[1:-2] + text[-1] + "\n"


def write(stem: str, pairs: int, seed: int, pool: Executor) -> None:
    """Write `stem`.en and `stem`.de, `pairs` lines each."""
    for plan in plans(pairs, seed):
        total = int(plan.lengths.sum(dtype=np.int64))
        with Path(f"{stem}.{plan.language.code}").open("wb") as file:
            file.writelines(map_in_order(pool, make, _jobs(plan, pairs, total)))


def _jobs(plan: Plan, pairs: int, total: int) -> Iterator[Job]:
    for number in range((pairs + BLOCK - 1) // BLOCK):
        lengths, before = plan.block(number)
        yield Job(plan.language, plan.seed, number, lengths, before, total)
