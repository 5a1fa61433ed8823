"""EVALB: labelled precision, recall and F1 of constituency trees, summed over the corpus; section 6.3, Table 4.

The counting follows EVALB of Sekine and Collins (1997) with its parameter file COLLINS.prm. Two differences:

- EVALB stops after ten sentences that cannot be scored. Here they are all counted and named.
- Where every parsed tag is XX, the gold tags replace them. Otherwise EVALB, which finds punctuation by
  each side's own tags, would find none in the parse.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from nmt.config import InputError
from nmt.text.parallel_text import read_lines
from nmt.text.trees import TAG, TRACE, Tree, read_trees

VERSION = "1"
"""Of the counting; part of the signature."""
SAMPLES = 1000
"""Resamples of the bootstrap over sentences."""
SEED = 12345
"""Of the bootstrap; the same as sacreBLEU's."""
LENGTHS = (10, 20, 30, 40)
"""Upper bounds, in words, of the groups of sentences by length; one more group has the longer ones."""


@dataclass(frozen=True)
class Rules:
    """What an EVALB parameter file says."""

    name: str
    deleted: frozenset[str]
    """Labels whose brackets are not counted, and tags whose words are removed."""
    cutoff: int = 40
    """Longest sentence, in words, of the second group of totals. Every word but traces counts, punctuation too."""
    same_label: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Label to the label that it is equal to."""
    same_word: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


COLLINS = Rules(
    "COLLINS",
    frozenset({"TOP", TRACE, ",", ":", "``", "''", "."}),
    same_label=MappingProxyType({"PRT": "ADVP"}),
)


@dataclass(frozen=True)
class Sentence:
    """The counts of one sentence. An `error` says why it cannot be scored; a `skipped` one has no parsed words."""

    length: int
    matched: int = 0
    gold: int = 0
    parsed: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0
    """Words with the gold tag, of those that are not deleted."""
    error: str | None = None
    skipped: bool = False


@dataclass(frozen=True)
class Totals:
    """The scores of a corpus, in percent; `tagging` is None where the parser wrote no tags."""

    sentences: int
    errors: int
    skipped: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    average_crossing: float
    """Crossing brackets a sentence; no percentage."""
    no_crossing: float
    two_or_less_crossing: float
    tagging: float | None


@dataclass
class _Spans:
    """A tree as EVALB compares it: words with tags, and labelled spans, without what the rules delete."""

    words: list[str]
    tags: list[str]
    brackets: list[tuple[int, int, str]]


def _spans(trees: Iterable[Tree], rules: Rules) -> _Spans:
    found = _Spans([], [], [])
    starts: list[int] = []
    for tree in trees:
        for node, closing in tree.walk():
            if node.word is not None:
                if node.label not in rules.deleted:
                    found.words.append(rules.same_word.get(node.word, node.word))
                    found.tags.append(rules.same_label.get(node.label, node.label))
            elif not closing:
                starts.append(len(found.words))
            elif (start := starts.pop()) < len(found.words):
                label = re.split("[-=]", node.label, maxsplit=1)[0]
                if label not in rules.deleted:
                    found.brackets.append((start, len(found.words), rules.same_label.get(label, label)))
    return found


def _crossing(gold: Iterable[tuple[int, int, str]], parsed: Iterable[tuple[int, int, str]]) -> int:
    """Return how many parsed brackets cross a gold bracket."""
    ours = {(start, end) for start, end, _ in gold}
    return sum(any(a < start < b < end or start < a < end < b for a, b in ours) for start, end, _ in parsed)


def compare(gold: Sequence[Tree], parsed: Sequence[Tree], rules: Rules = COLLINS) -> Sentence:
    """Return the counts of one sentence; each side has its trees, commonly one.

    A bracket that occurs m times in gold and n times in the parse matches min(m, n) times.
    """
    length = sum(leaf.label != TRACE for tree in gold for leaf in tree.leaves())
    ours, theirs = _spans(gold, rules), _spans(parsed, rules)
    if not theirs.words:
        return Sentence(length, skipped=True)
    if len(ours.words) != len(theirs.words):
        words = f"{len(ours.words)} words in GOLD and {len(theirs.words)} in PARSED, without punctuation by its tags"
        return Sentence(length, error=words)
    for word, other in zip(ours.words, theirs.words, strict=True):
        if word != other:
            return Sentence(length, error=f"the word `{word}` in GOLD is `{other}` in PARSED")
    return Sentence(
        length,
        matched=(Counter(ours.brackets) & Counter(theirs.brackets)).total(),
        gold=len(ours.brackets),
        parsed=len(theirs.brackets),
        crossing=_crossing(ours.brackets, theirs.brackets),
        words=len(ours.words),
        tags=sum(tag == other for tag, other in zip(ours.tags, theirs.tags, strict=True)),
    )


def totals(sentences: Sequence[Sentence], tagging: bool = True) -> Totals:
    """Return the scores of a corpus: sums of counts over sentences, without those that cannot be scored."""
    valid = [each for each in sentences if each.error is None and not each.skipped]

    def percent(part: float, whole: float) -> float:
        return 100.0 * part / whole if whole else 0.0

    def share(count: int) -> float:
        return percent(count, len(valid))

    matched = sum(each.matched for each in valid)
    gold, parsed = sum(each.gold for each in valid), sum(each.parsed for each in valid)
    words = sum(each.words for each in valid)
    return Totals(
        sentences=len(sentences),
        errors=sum(each.error is not None for each in sentences),
        skipped=sum(each.skipped for each in sentences),
        recall=percent(matched, gold),
        precision=percent(matched, parsed),
        # 2PR / (P + R), which is 2 * matched / (gold + parsed).
        f1=percent(2 * matched, gold + parsed),
        complete_match=share(sum(each.matched == each.gold == each.parsed for each in valid)),
        average_crossing=share(sum(each.crossing for each in valid)) / 100,
        no_crossing=share(sum(each.crossing == 0 for each in valid)),
        two_or_less_crossing=share(sum(each.crossing <= 2 for each in valid)),
        tagging=percent(sum(each.tags for each in valid), words) if tagging else None,
    )


def interval(sentences: Sequence[Sentence]) -> tuple[float, float]:
    """Return the 95% interval of F1 in percent, under resampling of the sentences that can be scored."""
    counts = np.array([(each.matched, each.gold + each.parsed) for each in sentences], dtype=np.int64)
    generator = np.random.default_rng(SEED)
    scores = []
    for _ in range(SAMPLES):
        matched, brackets = counts[generator.integers(len(counts), size=len(counts))].sum(axis=0)
        scores.append(200.0 * matched / brackets if brackets else 0.0)
    low, high = np.percentile(scores, [2.5, 97.5])
    return float(low), float(high)


def by_length(sentences: Iterable[Sentence], tagging: bool = True) -> dict[str, Totals]:
    """Return totals by length, of 1 to 10 words, 11 to 20 and so on, as LENGTHS says; empty groups are left out."""
    groups: dict[str, list[Sentence]] = {}
    bounds = (0, *LENGTHS)
    names = {high: f"{low + 1} to {high}" for low, high in zip(bounds, LENGTHS, strict=False)}
    for each in sorted(sentences, key=lambda sentence: sentence.length):
        name = next((names[high] for high in LENGTHS if each.length <= high), f"over {LENGTHS[-1]}")
        groups.setdefault(name, []).append(each)
    return {name: totals(group, tagging) for name, group in groups.items()}


def signature(rules: Rules, gold_tags: bool) -> str:
    """Return the signature: rules, tags, cutoff and version."""
    tags = "gold" if gold_tags else "own"
    return f"evalb|rules:{rules.name}|tags:{tags}|unscored:excluded|cutoff:{rules.cutoff}|version:{VERSION}"


@dataclass(frozen=True)
class Scores:
    """Everything about the parsed trees of one corpus."""

    sentences: list[Sentence]
    total: Totals
    short: Totals
    """Of the sentences of at most `cutoff` words."""
    low: float
    high: float
    """The 95% interval of F1."""
    signature: str


def _parsed(line: str, name: str, number: int) -> list[Tree] | str:
    """Return the trees of a line, or why it cannot be read."""
    try:
        return list(read_trees([line], name, number))
    except InputError as error:
        return str(error)


def _with_tags(gold: Sequence[Tree], parsed: Sequence[Tree]) -> Sequence[Tree]:
    """Return the parsed trees with the gold tags, where both have as many words."""
    tags = [leaf.label for tree in gold for leaf in tree.leaves() if leaf.label != TRACE]
    if len(tags) != sum(len(tree.leaves()) for tree in parsed):
        return parsed
    remaining = iter(tags)
    return [tree.retagged([next(remaining) for _ in tree.leaves()]) for tree in parsed]


def score(
    gold: Sequence[Sequence[Tree]],
    parsed: Sequence[Sequence[Tree] | str],
    rules: Rules = COLLINS,
    gold_tags: bool = False,
) -> Scores:
    """Return all scores of a corpus, a list of trees a sentence.

    A parsed sentence that has no tree is a string, the reason for that.

    With `gold_tags`, the gold tags replace the parsed ones, so that no wrongly tagged comma drops a sentence.
    Raises InputError where the sides have different numbers of sentences, no sentence can be scored, or GOLD has XX in
    place of tags.
    """
    if len(gold) != len(parsed):
        raise InputError(f"GOLD has {len(gold):,} sentences and PARSED has {len(parsed):,}: give a line for each line")
    gold_labels = {leaf.label for trees in gold for tree in trees for leaf in tree.leaves()}
    if gold_labels == {TAG}:
        raise InputError(
            f"every tag in GOLD is {TAG}, so its punctuation cannot be found: give the treebank first, then the parses"
        )
    leaves = (leaf for trees in parsed if not isinstance(trees, str) for tree in trees for leaf in tree.leaves())
    gold_tags = gold_tags or all(leaf.label == TAG for leaf in leaves)
    sentences = []
    for ours, theirs in zip(gold, parsed, strict=True):
        if isinstance(theirs, str):
            length = sum(leaf.label != TRACE for tree in ours for leaf in tree.leaves())
            sentences.append(Sentence(length, error=theirs))
        else:
            sentences.append(compare(ours, _with_tags(ours, theirs) if gold_tags else theirs, rules))
    valid = [each for each in sentences if each.error is None and not each.skipped]
    if not valid:
        reason = next((f"; line {row}: {each.error}" for row, each in enumerate(sentences, 1) if each.error), "")
        raise InputError(f"no sentence can be scored: give PARSED the trees of the sentences of GOLD{reason}")
    short = [each for each in sentences if each.length <= rules.cutoff]
    return Scores(
        sentences,
        totals(sentences, not gold_tags),
        totals(short, not gold_tags),
        *interval(valid),
        signature(rules, gold_tags),
    )


def score_lines(
    gold: Iterable[str],
    parsed: Iterable[str],
    rules: Rules = COLLINS,
    gold_tags: bool = False,
    names: tuple[str, str] = ("GOLD", "PARSED"),
) -> Scores:
    """Return the scores of parsed trees against gold trees, one sentence a line; `names` are for messages.

    A parsed line that breaks the bracketing is a sentence that cannot be scored. Raises InputError with name and line
    where GOLD breaks it, and where `score` does.
    """
    trees: list[list[Tree]] = []
    others: list[list[Tree] | str] = []
    for number, (line, other) in enumerate(zip_longest(gold, parsed), start=1):
        if line is not None:
            trees.append(list(read_trees([line], names[0], number)))
        if other is not None:
            others.append(_parsed(other, names[1], number))
    if not trees:
        raise InputError(f"{names[0]} is empty: there is no tree to score against")
    return score(trees, others, rules, gold_tags)


def read(gold: Path, parsed: Path, rules: Rules = COLLINS, gold_tags: bool = False) -> Scores:
    """Return the scores of two files, as of `score_lines`; raises InputError also where one cannot be read."""
    try:
        return score_lines(read_lines(gold), read_lines(parsed), rules, gold_tags, (str(gold), str(parsed)))
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror or error}"
        raise InputError(f"{problem}: give a file of trees in Penn bracketing, one a line") from error


def report(gold: Path, parsed: Path, gold_tags: bool = False) -> dict[str, Any]:
    """Return the scores of a file as a JSON object; `gold_tags` as for `score`."""
    scores = read(gold, parsed, gold_tags=gold_tags)
    tagging = scores.total.tagging is not None
    return {
        "gold": str(gold),
        "parsed": str(parsed),
        "signature": scores.signature,
        "f1_low": scores.low,
        "f1_high": scores.high,
        "all": vars(scores.total),
        f"at most {COLLINS.cutoff} words": vars(scores.short),
        "by length": {name: vars(total) for name, total in by_length(scores.sentences, tagging).items()},
        "errors": [
            {"line": row, "reason": each.error} for row, each in enumerate(scores.sentences, start=1) if each.error
        ],
    }


def text(found: Mapping[str, Any], errors: int = 10) -> str:
    """Return a `report` as text; it names the first `errors` sentences that cannot be scored."""
    lines = [
        f"{found['parsed']} against {found['gold']}",
        f"  F1 {found['all']['f1']:.2f}, 95% interval {found['f1_low']:.2f} to {found['f1_high']:.2f}",
        f"    {found['signature']}",
    ]
    for name in ("all", f"at most {COLLINS.cutoff} words"):
        each = found[name]
        tagging = "" if each["tagging"] is None else f", tagging {each['tagging']:.2f}"
        lines.append(
            f"  {name}: {each['sentences']:,} sentences, recall {each['recall']:.2f}, precision "
            f"{each['precision']:.2f}, F1 {each['f1']:.2f}, complete match {each['complete_match']:.2f}, average "
            f"crossing {each['average_crossing']:.2f}{tagging}"
        )
    lines += [f"  {name} words: F1 {each['f1']:.2f}" for name, each in found["by length"].items()]
    count, skipped = found["all"]["errors"], found["all"]["skipped"]
    lines.append(f"  not scored: {count:,} with an error, {skipped:,} without a parse")
    lines += [f"    line {each['line']}: {each['reason']}" for each in found["errors"][:errors]]
    return "\n".join(lines)
