"""EVALB: labelled precision, recall and F1 of constituency trees, summed over the corpus; section 6.3, Table 4.

The counting follows EVALB of Sekine and Collins (1997) with its parameter file COLLINS.prm. Two differences:

- EVALB stops after ten sentences that cannot be scored. Here they are all counted and named.
- Where every parsed tag is XX, the gold tags replace them. Otherwise EVALB, which finds punctuation by
  each side's own tags, would find none in the parse.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nmt import bootstrap
from nmt.errors import InputError
from nmt.parsing.trees import TAG, TRACE, Tree, read_trees
from nmt.text.parallel_text import read_lines

VERSION = "1"  # of the counting; part of the signature
LENGTHS = (10, 20, 30, 40)
"""Upper bounds, in words, of the groups of sentences by length; longer ones are one more group."""

DELETED = frozenset({"TOP", TRACE, ",", ":", "``", "''", "."})
"""Labels whose brackets are not counted, and tags whose words are removed: COLLINS.prm."""
SAME_LABEL = {"PRT": "ADVP"}  # label to the label that it is equal to: COLLINS.prm
CUTOFF = 40  # longest sentence of the second group of totals, in words with punctuation, without traces


@dataclass(frozen=True)
class Sentence:
    """The counts of one sentence. An `error` says why it cannot be scored; a `skipped` one has no parsed words."""

    length: int
    matched: int = 0
    gold: int = 0
    parsed: int = 0
    crossing: int = 0
    words: int = 0
    tags: int = 0  # words with the gold tag, of those that are not deleted
    error: str | None = None
    skipped: bool = False


@dataclass(frozen=True)
class Totals:
    """The scores of a corpus, in percent, but for counts; `tagging` is None where the parser wrote no tags."""

    sentences: int
    errors: int
    skipped: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging: float | None


def _spans(
    trees: Iterable[Tree], gold_tags: Sequence[str] = ()
) -> tuple[list[str], list[str], list[tuple[int, int, str]]]:
    """Return words, their tags (or `gold_tags`) and labelled spans, as EVALB compares them: without what is DELETED."""
    remaining = iter(gold_tags)
    words: list[str] = []
    tags: list[str] = []
    brackets: list[tuple[int, int, str]] = []
    starts: list[int] = []
    for tree in trees:
        for node, closing in tree.walk():
            if node.word is not None:
                tag = next(remaining, node.label)
                if tag not in DELETED:
                    words.append(node.word)
                    tags.append(SAME_LABEL.get(tag, tag))
            elif not closing:
                starts.append(len(words))
            elif (start := starts.pop()) < len(words):
                label = re.split("[-=]", node.label, maxsplit=1)[0]
                if label not in DELETED:
                    brackets.append((start, len(words), SAME_LABEL.get(label, label)))
    return words, tags, brackets


def _tags(trees: Iterable[Tree]) -> list[str]:
    return [leaf.label for tree in trees for leaf in tree.leaves()]


def compare(gold: Sequence[Tree], parsed: Sequence[Tree], gold_tags: bool = False) -> Sentence:
    """Return the counts of one sentence; each side has its trees, commonly one.

    A bracket that occurs m times in gold and n times in the parse matches min(m, n) times. With `gold_tags`, the gold
    tags replace the parsed ones where both sides have as many words.
    """
    tags_of_words = [tag for tag in _tags(gold) if tag != TRACE]
    length = len(tags_of_words)
    replaced = tags_of_words if gold_tags and length == len(_tags(parsed)) else ()
    (words, tags, ours), (others, other_tags, theirs) = _spans(gold), _spans(parsed, replaced)
    if not others:
        return Sentence(length, skipped=True)
    if len(words) != len(others):
        problem = f"{len(words)} words in GOLD and {len(others)} in PARSED, without punctuation by its tags"
        return Sentence(length, error=problem)
    for word, other in zip(words, others, strict=True):
        if word != other:
            return Sentence(length, error=f"the word `{word}` in GOLD is `{other}` in PARSED")
    spans = {(start, end) for start, end, _ in ours}
    return Sentence(
        length,
        matched=(Counter(ours) & Counter(theirs)).total(),
        gold=len(ours),
        parsed=len(theirs),
        crossing=sum(any(a < i < b < j or i < a < j < b for a, b in spans) for i, j, _ in theirs),
        words=len(words),
        tags=sum(tag == other for tag, other in zip(tags, other_tags, strict=True)),
    )


def totals(sentences: Sequence[Sentence], tagging: bool = True) -> Totals:
    """Return the scores of a corpus: sums of counts over sentences, without those that cannot be scored."""
    valid = [sentence for sentence in sentences if sentence.error is None and not sentence.skipped]

    def percent(part: float, whole: float) -> float:
        return 100.0 * part / whole if whole else 0.0

    def share(count: int) -> float:
        return percent(count, len(valid))

    matched = sum(sentence.matched for sentence in valid)
    gold, parsed = sum(sentence.gold for sentence in valid), sum(sentence.parsed for sentence in valid)
    words = sum(sentence.words for sentence in valid)
    return Totals(
        sentences=len(sentences),
        errors=sum(sentence.error is not None for sentence in sentences),
        skipped=sum(sentence.skipped for sentence in sentences),
        recall=percent(matched, gold),
        precision=percent(matched, parsed),
        # 2PR / (P + R), which is 2 * matched / (gold + parsed).
        f1=percent(2 * matched, gold + parsed),
        complete_match=share(sum(sentence.matched == sentence.gold == sentence.parsed for sentence in valid)),
        average_crossing=share(sum(sentence.crossing for sentence in valid)) / 100,
        no_crossing=share(sum(sentence.crossing == 0 for sentence in valid)),
        two_or_less_crossing=share(sum(sentence.crossing <= 2 for sentence in valid)),
        tagging=percent(sum(sentence.tags for sentence in valid), words) if tagging else None,
    )


def statistics(sentences: Iterable[Sentence]) -> NDArray[np.int64]:
    """Return what F1 sums over sentences, [sentences, 2]: matched brackets; gold and parsed ones. Zeros: not scored."""
    return np.array([(sentence.matched, sentence.gold + sentence.parsed) for sentence in sentences], dtype=np.int64)


def f1_of(sums: NDArray[np.int64]) -> float:
    """Return F1 in percent of summed statistics, [2]; 0 without brackets."""
    return 200.0 * int(sums[0]) / max(int(sums[1]), 1)


def by_length(sentences: Iterable[Sentence], tagging: bool = True) -> dict[str, Totals]:
    """Return totals by length, of 1 to 10 words, 11 to 20 and so on, as LENGTHS says; empty groups are left out."""
    groups: dict[str, list[Sentence]] = {}
    for sentence in sorted(sentences, key=lambda sentence: sentence.length):
        name = next((f"{high - 9} to {high}" for high in LENGTHS if sentence.length <= high), f"over {LENGTHS[-1]}")
        groups.setdefault(name, []).append(sentence)
    return {name: totals(group, tagging) for name, group in groups.items()}


@dataclass(frozen=True)
class Scores:
    """Of one corpus; `short` is of the sentences of at most CUTOFF words, `low` and `high` the 95% interval of F1."""

    sentences: list[Sentence]
    total: Totals
    short: Totals
    low: float
    high: float
    signature: str


def score_lines(
    gold: Iterable[str], parsed: Iterable[str], gold_tags: bool = False, names: tuple[str, str] = ("GOLD", "PARSED")
) -> Scores:
    """Return the scores of parsed trees against gold trees, one sentence a line; `names` are for messages.

    A parsed line that breaks the bracketing is a sentence that cannot be scored. With `gold_tags`, the gold tags
    replace the parsed ones, so that no wrongly tagged comma drops a sentence. Raises InputError where GOLD breaks the
    bracketing, is empty or has XX in place of tags, where the sides have different numbers of sentences, and where no
    sentence can be scored.
    """
    trees = [list(read_trees([line], names[0], number)) for number, line in enumerate(gold, start=1)]
    others: list[list[Tree] | InputError] = []
    for number, line in enumerate(parsed, start=1):
        try:
            others.append(list(read_trees([line], names[1], number)))
        except InputError as error:
            others.append(error)
    if not trees:
        raise InputError(f"{names[0]} is empty: there is no tree to score against")
    if len(trees) != len(others):
        raise InputError(f"GOLD has {len(trees):,} sentences and PARSED has {len(others):,}: give a line for each line")
    if {tag for tree in trees for tag in _tags(tree)} == {TAG}:
        raise InputError(
            f"every tag in GOLD is {TAG}, so its punctuation cannot be found: give the treebank first, then the parses"
        )
    read_ones = (tree for tree in others if not isinstance(tree, InputError))
    gold_tags = gold_tags or all(tag == TAG for tree in read_ones for tag in _tags(tree))
    sentences = [
        Sentence(sum(tag != TRACE for tag in _tags(ours)), error=str(theirs))
        if isinstance(theirs, InputError)
        else compare(ours, theirs, gold_tags)
        for ours, theirs in zip(trees, others, strict=True)
    ]
    valid = [sentence for sentence in sentences if sentence.error is None and not sentence.skipped]
    if not valid:
        reason = next(
            (f"; line {row}: {sentence.error}" for row, sentence in enumerate(sentences, 1) if sentence.error), ""
        )
        raise InputError(f"no sentence can be scored: give PARSED the trees of the sentences of GOLD{reason}")
    tags = "gold" if gold_tags else "own"
    return Scores(
        sentences,
        totals(sentences, not gold_tags),
        totals([sentence for sentence in sentences if sentence.length <= CUTOFF], not gold_tags),
        *bootstrap.interval(statistics(valid), f1_of),
        f"evalb|rules:COLLINS|tags:{tags}|unscored:excluded|cutoff:{CUTOFF}|version:{VERSION}",
    )


def read(gold: Path, parsed: Path, gold_tags: bool = False) -> Scores:
    """Return the scores of a file of parsed trees against one of gold trees; arguments and errors as `score_lines`."""
    return score_lines(read_lines(gold), read_lines(parsed), gold_tags, (str(gold), str(parsed)))


def report(gold: Path, parsed: Path, gold_tags: bool = False) -> dict[str, Any]:
    """Return the scores of a file as a JSON object; `gold_tags` as for `score_lines`."""
    scores = read(gold, parsed, gold_tags)
    tagging = scores.total.tagging is not None
    return {
        "gold": str(gold),
        "parsed": str(parsed),
        "signature": scores.signature,
        "f1_low": scores.low,
        "f1_high": scores.high,
        "all": vars(scores.total),
        f"at most {CUTOFF} words": vars(scores.short),
        "by length": {name: vars(total) for name, total in by_length(scores.sentences, tagging).items()},
        "errors": [
            {"line": row, "reason": sentence.error}
            for row, sentence in enumerate(scores.sentences, start=1)
            if sentence.error
        ],
    }


def text(scores: Mapping[str, Any]) -> str:
    """Return a `report` as text; it names the first ten sentences that cannot be scored."""
    lines = [
        f"{scores['parsed']} against {scores['gold']}",
        f"  F1 {scores['all']['f1']:.2f}, 95% interval {scores['f1_low']:.2f} to {scores['f1_high']:.2f}",
        f"    {scores['signature']}",
    ]
    for name in ("all", f"at most {CUTOFF} words"):
        group = scores[name]
        tagging = "" if group["tagging"] is None else f", tagging {group['tagging']:.2f}"
        lines.append(
            f"  {name}: {group['sentences']:,} sentences, recall {group['recall']:.2f}, precision "
            f"{group['precision']:.2f}, F1 {group['f1']:.2f}, complete match {group['complete_match']:.2f}, average "
            f"crossing {group['average_crossing']:.2f}{tagging}"
        )
    lines += [f"  {name} words: F1 {group['f1']:.2f}" for name, group in scores["by length"].items()]
    count, skipped = scores["all"]["errors"], scores["all"]["skipped"]
    lines.append(f"  not scored: {count:,} with an error, {skipped:,} without a parse")
    lines += [f"    line {failed['line']}: {failed['reason']}" for failed in scores["errors"][:10]]
    return "\n".join(lines)
