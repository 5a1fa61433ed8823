"""Constituency trees: Penn bracketing, normalisation, and linearisation into symbols and back; section 6.3.

Two linearisations, by name:

- `vinyals` (Vinyals et al. 2015, "Grammar as a Foreign Language"): `(S (NP XX XX )NP (VP XX )VP )S`. Words are left
  out, part-of-speech tags are XX, closing brackets have labels.
- `tensor2tensor` (its wsj_parsing.py): `S NP DT NN /NP VP VBZ /VP /S`. Tags stay.

`delinearise` makes a tree of any output of a model. Its rules, each counted by its name in `REPAIRS`:

1. A symbol of no known form is ignored.
2. A closing bracket closes the innermost open constituent of its label and all those inside it.
3. A closing bracket whose label is not open is ignored.
4. Words in excess of the sentence's are ignored.
5. Constituents still open at the end are closed there.
6. Missing words are appended to the outermost constituent that is still open. A single finished tree is reopened for
   them.
7. A constituent without words is left out.
8. Several trees, or none, become the children of one node TOP, which EVALB does not count.

Where the model's attention is at hand, `align` comes before these rules: it finds the words that the output has too
many or lacks, so that 4 and 6 do not shift the words after them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from nmt.config import InputError

Linearisation = Literal["vinyals", "tensor2tensor"]
LINEARISATIONS: tuple[Linearisation, ...] = get_args(Linearisation)
TAG = "XX"
"""The tag of every word where part-of-speech tags are normalised."""
TRACE = "-NONE-"
OUTER = frozenset({"TOP", "ROOT", "S1"})
"""Labels that treebanks and parsers give to the bracket around a tree."""
REPAIRS = (
    "unknown symbol",
    "closing bracket missing inside",
    "closing bracket surplus",
    "word surplus",
    "closing bracket missing at the end",
    "word missing",
    "constituent without words",
    "not one tree",
)

ALONE = 3.0
"""What a symbol or a word that `align` leaves alone costs, in nats: less than half of the worst match."""
LEAST = 1e-3
"""Added to every weight of attention before its logarithm: the worst match costs 6.9 nats."""

# The label is what follows `(` without a space. U+00A0 and other Unicode spaces are characters of words.
_TOKEN = re.compile(r"\(([^ \t\r\n()]*)|\)|[^ \t\r\n()]+")


@dataclass(frozen=True, slots=True)
class Tree:
    """A constituent with children, or a word with its part-of-speech tag as the label."""

    label: str
    children: tuple[Tree, ...] = ()
    word: str | None = None

    def walk(self) -> Iterator[tuple[Tree, bool]]:
        """Yield each node in order with False; each constituent again with True after its children."""
        stack = [(self, False)]
        while stack:
            node, closing = stack.pop()
            yield node, closing
            if node.word is None and not closing:
                stack.append((node, True))
                stack.extend((child, False) for child in reversed(node.children))

    def leaves(self) -> list[Tree]:
        """Return the words in order, with their tags."""
        return [node for node, _ in self.walk() if node.word is not None]

    def words(self) -> list[str]:
        """Return the words in order."""
        return [node.word for node, _ in self.walk() if node.word is not None]

    def retagged(self, tags: Iterable[str]) -> Tree:
        """Return the same tree with other tags; raises ValueError unless there is one for each word."""
        remaining = iter(tags)
        levels: list[list[Tree]] = [[]]
        for node, closing in self.walk():
            if node.word is not None:
                if (tag := next(remaining, None)) is None:
                    raise ValueError("there are fewer tags than words")
                levels[-1].append(Tree(tag, word=node.word))
            elif closing:
                children = tuple(levels.pop())
                levels[-1].append(Tree(node.label, children))
            else:
                levels.append([])
        if next(remaining, None) is not None:
            raise ValueError("there are more tags than words")
        return levels[0][0]

    def __str__(self) -> str:
        """Return the tree in Penn bracketing, on one line."""
        parts: list[str] = []
        for node, closing in self.walk():
            if closing:
                parts.append(")")
            else:
                parts.append(f" ({node.label}" + (f" {node.word})" if node.word is not None else ""))
        return "".join(parts).lstrip()


@dataclass
class _Bracket:
    """An open bracket while a treebank is read."""

    label: str
    line: int
    children: list[Tree]
    word: str | None = None

    def closed(self, is_outermost: bool) -> Tree:
        """Return the tree in the bracket; raises ValueError with the rule that it breaks."""
        if not self.children and self.word is None:
            raise ValueError(f"the bracket `({self.label})` holds nothing: give each tree words")
        if self.label:
            return Tree(self.label, tuple(self.children), self.word)
        if not is_outermost or self.word is not None:
            raise ValueError("a bracket has an empty label: write the label directly after `(`")
        if len(self.children) > 1:
            raise ValueError(f"the outer bracket without a label holds {len(self.children)} trees: give each its own")
        return self.children[0]


def words_of(line: str) -> list[str]:
    """Return the words between a treebank's spaces; U+00A0 and other Unicode spaces are characters of words."""
    return [word for word in re.split(r"[ \t\r\n]+", line) if word]


def escape(word: str) -> str:
    """Return the word with its round brackets as the Penn Treebank writes them: -LRB- and -RRB-."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


class _Reader:
    """The open brackets of a treebank while it is read."""

    def __init__(self) -> None:
        self.stack: list[_Bracket] = []

    def check_all_closed(self) -> None:
        """Raise ValueError where a bracket is open."""
        if self.stack:
            line = self.stack[0].line
            raise ValueError(
                f"the tree that begins on line {line} lacks {len(self.stack)} of its closing brackets: add them"
            )

    def add(self, token: re.Match[str], line: int) -> Tree | None:
        """Read one token; return the tree that it completes. Raises ValueError where it breaks a rule."""
        if token[1] is not None:
            if self.stack and self.stack[-1].word is not None:
                raise ValueError(f"the word `{self.stack[-1].word}` is not alone in its bracket")
            self.stack.append(_Bracket(token[1], line, []))
        elif not self.stack:
            what = "a closing bracket" if token[0] == ")" else f"`{token[0][:40]}`"
            raise ValueError(f"{what} stands outside a tree: remove it, or add the opening bracket")
        elif token[0] == ")":
            tree = self.stack.pop().closed(not self.stack)
            if not self.stack:
                return tree
            self.stack[-1].children.append(tree)
        elif self.stack[-1].word is not None or self.stack[-1].children:
            raise ValueError(f"the word `{token[0][:40]}` is not alone in its bracket")
        else:
            self.stack[-1].word = token[0]
        return None


def read_trees(lines: Iterable[str], name: str, first: int = 1) -> Iterator[Tree]:
    r"""Yield the trees of lines in Penn bracketing; `name` and the first line's number are for messages.

    A tree may span lines; a line that begins with `(` begins a tree. The outer bracket may lack its label, as in
    `( (S ...) )`, or be absent. \r before the end of a line is space. Raises InputError with file and line at
    unbalanced brackets, an empty label or bracket, and text outside a tree.
    """
    reader = _Reader()
    number = first
    try:
        for number, line in enumerate(lines, start=first):
            if line.startswith("("):
                reader.check_all_closed()
            for token in _TOKEN.finditer(line):
                if (tree := reader.add(token, number)) is not None:
                    yield tree
        reader.check_all_closed()
    except ValueError as error:
        # The lines' own errors, such as invalid UTF-8, name their file and line already.
        raise error if isinstance(error, InputError) else InputError(f"{name}, line {number}: {error}") from error


def bare(label: str) -> str:
    """Return the label without function tags and indices: `NP-SBJ-1` and `NP=2` are NP; -LRB- stays."""
    return label if label.startswith("-") else re.split("[-=]", label, maxsplit=1)[0]


def normalise(tree: Tree, removed: Counter[str]) -> Tree | None:
    """Remove traces, constituents that hold only traces, function tags and outer labels.

    Returns None if nothing is left. What is removed is added to `removed` by name.
    """
    levels: list[list[Tree]] = [[]]
    for node, closing in tree.walk():
        if node.word is not None:
            if node.label == TRACE:
                removed["traces"] += 1
            else:
                levels[-1].append(node)
        elif not closing:
            levels.append([])
        elif children := levels.pop():
            label = bare(node.label)
            removed["function tags"] += label != node.label
            levels[-1].append(Tree(label, tuple(children)))
        else:
            removed["constituents of traces alone"] += 1
    if not levels[0]:
        removed["trees of traces alone"] += 1
        return None
    top = levels[0][0]
    while top.label in OUTER and len(top.children) == 1:
        removed["outer labels"] += 1
        top = top.children[0]
    return top


def linearise(tree: Tree, name: Linearisation) -> list[str]:
    """Return the symbols of a normalised tree, without its words."""
    opening, end = ("(", ")") if name == "vinyals" else ("", "/")
    symbols = []
    for node, closing in tree.walk():
        if node.word is not None:
            symbols.append(TAG if name == "vinyals" else node.label)
        else:
            symbols.append((end if closing else opening) + node.label)
    return symbols


def _read_symbol(symbol: str, name: Linearisation, known: Collection[str]) -> tuple[str, str]:
    """Return an action and a label. The action is `(`, `)`, `word`, or empty for an unknown symbol."""
    if name == "tensor2tensor":
        if escape(symbol) != symbol:
            return "", symbol
        if symbol.startswith("/") and len(symbol) > 1:
            return ")", symbol[1:]
        return ("(" if f"/{symbol}" in known else "word"), symbol
    if symbol[:1] in ("(", ")") and len(symbol) > 1:
        return symbol[0], symbol[1:]
    return ("word" if symbol == TAG else ""), symbol


class _Builder:
    """The open constituents and the remaining words while a model's output becomes a tree."""

    def __init__(self, words: Sequence[str]) -> None:
        # The first level has the trees themselves and is never closed.
        self.levels: list[tuple[str, list[Tree]]] = [("", [])]
        self.words = list(reversed(words))
        self.repairs: Counter[str] = Counter()

    def close(self) -> None:
        """Close the innermost constituent."""
        label, children = self.levels.pop()
        if children:
            self.levels[-1][1].append(Tree(label, tuple(children)))
        else:
            self.repairs["constituent without words"] += 1

    def close_to(self, label: str) -> None:
        """Close the innermost constituent with the label and those inside it."""
        if all(label != other for other, _ in self.levels[1:]):
            self.repairs["closing bracket surplus"] += 1
            return
        while self.levels[-1][0] != label:
            self.repairs["closing bracket missing inside"] += 1
            self.close()
        self.close()

    def close_all(self, but: int = 0) -> None:
        """Close what is open at the end of the output, except the outermost `but` constituents."""
        while len(self.levels) > 1 + but:
            self.repairs["closing bracket missing at the end"] += 1
            self.close()

    def add_word(self, tag: str) -> None:
        """Add the sentence's next word."""
        if self.words:
            self.levels[-1][1].append(Tree(tag, word=self.words.pop()))
        else:
            self.repairs["word surplus"] += 1

    def finish(self) -> Tree:
        """Return the tree, with all words."""
        trees = self.levels[0][1]
        # A single complete tree is reopened for the remaining words.
        reopen = bool(self.words) and len(self.levels) == 1 and len(trees) == 1 and trees[0].word is None
        if reopen:
            only = trees.pop()
            self.levels.append((only.label, list(only.children)))
        elif self.words:
            self.close_all(but=1)
        self.repairs["word missing"] += len(self.words)
        while self.words:
            self.add_word(TAG)
        if reopen:
            self.close()
        self.close_all()
        if len(trees) == 1:
            return trees[0]
        self.repairs["not one tree"] += 1
        return Tree("TOP", tuple(trees))


def _partners(gains: NDArray[np.floating]) -> list[int | None]:
    """Return the word of each symbol, in order, with the largest sum of gains [symbols, words]; None: no word."""
    columns = ALONE * np.arange(gains.shape[1] + 1)
    best, steps = -columns, []
    for row in gains:
        match, skip = np.concatenate(([-np.inf], best[:-1] + row)), best - ALONE
        either = np.maximum(match, skip)
        # Of the words up to each, any number of the last ones may be left alone.
        best = np.maximum.accumulate(either + columns) - columns
        steps.append((match >= skip, best > either + 1e-9))
    partners: list[int | None] = [None] * len(gains)
    column = gains.shape[1]
    for row_number in reversed(range(len(gains))):
        takes, alone = steps[row_number]
        while alone[column]:
            column -= 1
        if takes[column]:
            column -= 1
            partners[row_number] = column
    return partners


def align(
    symbols: Sequence[str],
    words: Sequence[str],
    name: Linearisation,
    vocabulary: Collection[str],
    attention: Callable[[], NDArray[np.floating]],
) -> tuple[list[str], Counter[str]]:
    """Return a model's output with each word's symbol at its place, and the repairs that this took.

    An output with one word too many or too few would shift all words after it. `attention` gives the weights [symbols,
    words] by which the model looked at each word when it wrote each symbol. Symbols of words and words are aligned in
    order, so that the product of their weights is largest. A symbol without a word is left out, and a word without a
    symbol becomes XX. `vocabulary` as in `delinearise`.
    """
    known = vocabulary or frozenset(symbols)
    rows = [row for row, symbol in enumerate(symbols) if _read_symbol(symbol, name, known)[0] == "word"]
    repairs: Counter[str] = Counter()
    if len(rows) == len(words):
        return list(symbols), repairs
    partners = dict(zip(rows, _partners(np.log(attention()[rows] + LEAST)), strict=True))
    aligned: list[str] = []
    following = 0
    for row, symbol in enumerate(symbols):
        word = partners.get(row, -1)
        if word is None:
            repairs["word surplus"] += 1
            continue
        if word >= 0:
            repairs["word missing"] += word - following
            aligned += [TAG] * (word - following)
            following = word + 1
        aligned.append(symbol)
    return aligned, +repairs


def delinearise(
    symbols: Sequence[str], words: Sequence[str], name: Linearisation, vocabulary: Collection[str] = ()
) -> tuple[Tree, Counter[str]]:
    """Return the tree of a model's output over the sentence's words, and how often each of `REPAIRS` was needed.

    A linearised gold tree needs none and comes back with its words (with `vinyals`, every tag is XX). `vocabulary` are
    the symbols that the model knows: in tensor2tensor, X opens a constituent if `/X` is in `vocabulary`, or, without
    it, in the output; otherwise X is a tag. Raises ValueError where there are no words.
    """
    if not words:
        raise ValueError("a tree needs at least one word")
    known = vocabulary or frozenset(symbols)
    builder = _Builder(words)
    for symbol in symbols:
        does, label = _read_symbol(symbol, name, known)
        if does == "(":
            builder.levels.append((label, []))
        elif does == ")":
            builder.close_to(label)
        elif does == "word":
            builder.add_word(label)
        else:
            builder.repairs["unknown symbol"] += 1
    tree = builder.finish()
    return tree, +builder.repairs
