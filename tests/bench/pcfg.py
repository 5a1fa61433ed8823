"""A baseline for parsers: an unlexicalised PCFG read off the training trees, searched exactly by CKY.

`python -m tests.bench.pcfg [--train FILE --test FILE] [--output FILE] [--limit N] [--jobs N]` reads treebanks in Penn
bracketing (.gz too), by default the embedded one, writes the best tree of each test sentence and prints its EVALB
scores. Rules are binarised from
the left with a memory of `--markov` siblings. Words that training has at most `RARE` times share a class by their
form. A sentence that no derivation covers, or of more than `LONGEST` words, gets one flat tree; both are counted.
"""

import argparse
import gzip
import io
import itertools
import json
import math
import re
import tarfile
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nmt.parsing.evalb import by_length, score_lines
from nmt.parsing.trees import TAG, Tree, normalise, read_trees
from tests.bench.conditions import announce, conditions
from tests.soak.treebank import retagged

SAMPLE = Path(__file__).resolve().parents[2] / "data/sample/trees.tgz"
RARE = 1
LONGEST = 120
SUFFIXES = re.compile(r"(?:s|ed|ing|ion|er|est|ly|ity|al|ic|ous|ive|able|ment|ness|or|ase|in)$")

Floats = npt.NDArray[np.float32]


def word_class(word: str) -> str:
    """A class of unknown words: digits, capitals, hyphens and a suffix."""
    digits = "#" if any(letter.isdigit() for letter in word) else ""
    capital = "A" if word[0].isupper() else ""
    rest = "A" if any(letter.isupper() for letter in word[1:]) else ""
    suffix = SUFFIXES.search(word.lower())
    return f"<{digits}{capital}{rest}{'-' if '-' in word else ''}{suffix[0] if suffix else ''}>"


def read(path: Path) -> Iterator[Tree]:
    """The normalised trees of a file, without those of traces alone."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        for tree in read_trees(io.TextIOWrapper(file, encoding="utf-8", newline="\n"), str(path)):
            bare = normalise(tree, Counter())
            if bare is not None:
                yield bare


class Grammar:
    """Log probabilities of rules, by arrays of symbol numbers; numbers below `full` are labels and tags."""

    def __init__(self, trees: Iterable[Tree], markov: int) -> None:
        binary: Counter[tuple[str, str, str]] = Counter()
        unary: Counter[tuple[str, str]] = Counter()
        words: Counter[tuple[str, str]] = Counter()
        roots: Counter[str] = Counter()
        for tree in trees:
            roots[tree.label] += 1
            for node, closing in tree.walk():
                if node.word is not None:
                    words[node.label, node.word] += 1
                elif not closing:
                    labels = [child.label for child in node.children]
                    if len(labels) == 1:
                        unary[node.label, labels[0]] += 1
                    binary.update(_binarised(node.label, labels, markov))
        self._lexicon(words)
        total: Counter[str] = Counter()
        for (parent, *_), count in itertools.chain(binary.items(), unary.items()):
            total[parent] += count
        names = {name for rule in (*binary, *unary) for name in rule} | set(self.tags) | set(roots)
        self.symbols = sorted(names, key=lambda name: (name.startswith("@"), name))
        self.full = sum(not name.startswith("@") for name in self.symbols)
        self.number = {name: row for row, name in enumerate(self.symbols)}
        rules = sorted((self.number[a], self.number[b], self.number[c], binary[a, b, c]) for a, b, c in binary)
        self.parent, self.left, self.right = (np.array([rule[i] for rule in rules]) for i in range(3))
        self.rule = np.array([math.log(rule[3] / total[self.symbols[rule[0]]]) for rule in rules], dtype=np.float32)
        self._close_unaries({rule: math.log(count / total[rule[0]]) for rule, count in unary.items()})
        self.root = np.full(self.full, -np.inf, dtype=np.float32)
        for label, count in roots.items():
            self.root[self.number[label]] = math.log(count / roots.total())

    def _lexicon(self, words: Counter[tuple[str, str]]) -> None:
        """Log P(word | tag), rare words by their classes also."""
        counts: Counter[str] = Counter()
        for (_, word), count in words.items():
            counts[word] += count
        self.tags: Counter[str] = Counter()
        emitted: dict[str, Counter[str]] = defaultdict(Counter)
        for (tag, word), count in words.items():
            self.tags[tag] += count
            emitted[word_class(word) if counts[word] <= RARE else word][tag] += count
        self.emission = {
            word: {tag: math.log(count / self.tags[tag]) for tag, count in by_tag.items()}
            for word, by_tag in emitted.items()
        }

    def _close_unaries(self, unary: dict[tuple[str, str], float]) -> None:
        """The best chain of unary rules between two symbols (Floyd and Warshall), and its first step."""
        self.chain = np.full((self.full, self.full), -np.inf, dtype=np.float32)
        np.fill_diagonal(self.chain, 0.0)
        self.step = np.tile(np.arange(self.full), (self.full, 1))
        for (parent, child), value in unary.items():
            if parent != child:
                self.chain[self.number[parent], self.number[child]] = value
        for middle in range(self.full):
            through = self.chain[:, middle, None] + self.chain[None, middle]
            better = through > self.chain
            self.chain[better] = through[better]
            self.step = np.where(better, self.step[:, middle, None], self.step)

    def tag_scores(self, word: str) -> dict[str, float]:
        """Log P(word | tag) of every tag that a word can have; all tags where its class is unknown."""
        scores = self.emission.get(word) or self.emission.get(word_class(word))
        return scores or dict.fromkeys(self.tags, -math.log(self.tags.total()))


def _binarised(label: str, children: list[str], markov: int) -> Iterator[tuple[str, str, str]]:
    parent = label
    for row in range(len(children) - 1):
        if row == len(children) - 2:
            yield parent, children[row], children[row + 1]
        else:
            memory = "-".join(children[max(0, row + 1 - markov) : row + 1])
            name = f"@{label}>{memory}"
            yield parent, children[row], name
            parent = name


class Chart:
    """The best log probability of every symbol over every span of a sentence."""

    def __init__(self, grammar: Grammar, words: list[str]) -> None:
        self.grammar, self.words = grammar, words
        count, symbols = len(words), len(grammar.symbols)
        self.by_start: Floats = np.full((count, count + 1, symbols), -np.inf, dtype=np.float32)
        self.by_end: Floats = np.full((count + 1, count, symbols), -np.inf, dtype=np.float32)
        for start, word in enumerate(words):
            cell = np.full(symbols, -np.inf, dtype=np.float32)
            for tag, value in grammar.tag_scores(word).items():
                cell[grammar.number[tag]] = value
            self._store(start, start + 1, cell)
        for width in range(2, count + 1):
            for start in range(count - width + 1):
                self._store(start, start + width, self._combine(start, start + width))

    def _store(self, start: int, end: int, cell: Floats) -> None:
        full = self.grammar.full
        cell[:full] = (self.grammar.chain + cell[None, :full]).max(axis=1)
        self.by_start[start, end] = self.by_end[end, start] = cell

    def _candidates(self, start: int, end: int, rules: npt.NDArray[np.int64]) -> Floats:
        """Log probabilities by split and rule."""
        left = self.by_start[start, start + 1 : end][:, self.grammar.left[rules]]
        right = self.by_end[end, start + 1 : end][:, self.grammar.right[rules]]
        return left + right + self.grammar.rule[rules]

    def _combine(self, start: int, end: int) -> Floats:
        grammar = self.grammar
        left = (self.by_start[start, start + 1 : end] > -np.inf).any(axis=0)
        right = (self.by_end[end, start + 1 : end] > -np.inf).any(axis=0)
        rules = np.flatnonzero(left[grammar.left] & right[grammar.right])
        cell = np.full(len(grammar.symbols), -np.inf, dtype=np.float32)
        if len(rules):
            best = self._candidates(start, end, rules).max(axis=0)
            parents = grammar.parent[rules]
            first = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
            cell[parents[first]] = np.maximum.reduceat(best, first)
        return cell

    def best(self) -> Tree | None:
        """The most probable tree, or None where no derivation covers the sentence."""
        scores = self.grammar.root + self.by_start[0, len(self.words), : self.grammar.full]
        symbol = int(scores.argmax())
        return self._tree(0, len(self.words), symbol)[0] if scores[symbol] > -np.inf else None

    def _tree(self, start: int, end: int, symbol: int) -> list[Tree]:
        """The derivation of a symbol over a span; a binarisation's symbol gives several trees."""
        grammar = self.grammar
        chain = [symbol]
        if symbol < grammar.full:
            # Before unary chains, the span has only tags, or what binary rules give.
            below = self._below(start, end)
            last = int((grammar.chain[symbol] + below[: grammar.full]).argmax())
            while chain[-1] != last:
                chain.append(int(grammar.step[chain[-1], last]))
        if end - start == 1:
            trees = [Tree(grammar.symbols[chain.pop()], word=self.words[start])]
        else:
            rules = np.flatnonzero(grammar.parent == chain[-1])
            split, rule = divmod(int(self._candidates(start, end, rules).argmax()), len(rules))
            middle = start + 1 + split
            left = self._tree(start, middle, int(grammar.left[rules[rule]]))
            trees = left + self._tree(middle, end, int(grammar.right[rules[rule]]))
        for label in reversed(chain):
            if label < grammar.full:
                trees = [Tree(grammar.symbols[label], tuple(trees))]
        return trees

    def _below(self, start: int, end: int) -> Floats:
        if end - start > 1:
            return self._combine(start, end)
        cell = np.full(len(self.grammar.symbols), -np.inf, dtype=np.float32)
        for tag, value in self.grammar.tag_scores(self.words[start]).items():
            cell[self.grammar.number[tag]] = value
        return cell


def parse(grammar: Grammar, words: list[str]) -> tuple[Tree, bool]:
    """The best tree of a sentence, and whether the grammar gave it."""
    tree = Chart(grammar, words).best() if len(words) <= LONGEST else None
    if tree is not None:
        return tree, True
    return Tree("TOP", tuple(Tree(TAG, word=word) for word in words)), False


def main() -> None:
    """Train, parse and score as the arguments say."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pcfg", description=__doc__)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--markov", type=int, default=2)
    parser.add_argument("--limit", type=int, help="only this many test sentences, evenly drawn")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if (options.train is None) != (options.test is None):
        parser.error("give both --train and --test, or neither")
    announce(parser.prog)
    with tempfile.TemporaryDirectory() as folder:
        if options.train is None:
            with tarfile.open(SAMPLE) as archive:
                archive.extractall(folder, filter="data")
            options.train, options.test = (Path(folder) / f"trees/{name}.mrg" for name in ("train", "test"))
        begin = time.perf_counter()
        grammar = Grammar(read(options.train), options.markov)
        gold = list(read(options.test))
    gold = gold[:: max(1, len(gold) // options.limit)] if options.limit else gold
    trained = time.perf_counter()
    with ProcessPoolExecutor(options.jobs) as pool:
        trees = list(pool.map(partial(parse, grammar), [tree.words() for tree in gold], chunksize=8))
    seconds = time.perf_counter() - trained
    if options.output:
        options.output.write_text("".join(f"{tree}\n" for tree, _ in trees), encoding="utf-8")
    # Gold tags find the punctuation, as they do for a parser that writes none.
    scores = score_lines(map(str, gold), [str(retagged(tree, [TAG] * len(tree.words()))) for tree, _ in trees])
    report = {
        **conditions(),
        "symbols": len(grammar.symbols),
        "binary rules": len(grammar.rule),
        "training seconds": round(trained - begin, 1),
        "parsing seconds": round(seconds, 1),
        "sentences without a derivation": sum(not derived for _, derived in trees),
        "signature": scores.signature,
        "F1 interval": [round(scores.low, 2), round(scores.high, 2)],
        "all": asdict(scores.total),
        "by length": {name: round(total.f1, 2) for name, total in by_length(scores.sentences).items()},
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
