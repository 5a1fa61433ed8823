"""A model's output, a linearised tree without its words, to a tree over the words of the sentence; section 6.3.

`delinearise` makes a tree of any output of a model. Its rules, each counted by its name:

1. `unknown symbol`: a symbol of no known form is ignored.
2. `closing bracket missing inside`: one closes the innermost open constituent of its label and all those inside it.
3. `closing bracket surplus`: one whose label is not open is ignored.
4. `word surplus`: words in excess of the sentence's are ignored.
5. `closing bracket missing at the end`: constituents still open at the end are closed there.
6. `word missing`: these are appended to the outermost constituent that is still open. A single finished tree is
   reopened for them.
7. `constituent without words`: it is left out.
8. `not one tree`: several, or none, become the children of one node TOP, which EVALB does not count.

If the model's attention is given, `align` runs before these rules: it finds the words that the output has too many or
lacks, so that 4 and 6 do not shift the words after them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from nmt.parsing.trees import TAG, Linearisation, Tree, escape

ALONE = 3.0  # what a symbol or a word that `align` leaves alone costs, in nats: less than half of the worst match
LEAST = 1e-3  # added to every weight of attention before its logarithm: the worst match costs 6.9 nats


def _read_symbol(symbol: str, scheme: Linearisation, known: Collection[str]) -> tuple[str, str]:
    """Return an action and a label. The action is `(`, `)`, `word`, or empty for an unknown symbol."""
    if scheme == "tensor2tensor":
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
        label, children = self.levels.pop()
        if children:
            self.levels[-1][1].append(Tree(label, tuple(children)))
        else:
            self.repairs["constituent without words"] += 1

    def close_to(self, label: str) -> None:
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

    def finish(self) -> Tree:
        trees = self.levels[0][1]
        if missing := [Tree(TAG, word=word) for word in reversed(self.words)]:
            self.repairs["word missing"] += len(missing)
            if len(self.levels) == 1 and len(trees) == 1 and trees[0].word is None:
                # A single complete tree is reopened for the remaining words.
                trees[0] = Tree(trees[0].label, (*trees[0].children, *missing))
            else:
                self.close_all(but=1)
                self.levels[-1][1].extend(missing)
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
    scheme: Linearisation,
    vocabulary: Collection[str],
    attention: Callable[[], NDArray[np.floating]],
) -> tuple[list[str], Counter[str]]:
    """Return a model's output with each word's symbol at its place, and the repairs that this took.

    `attention` gives the weights [symbols, words] with which the model wrote each symbol. Symbols of words and words
    are aligned in order, so that the product of their weights is largest. A symbol without a word is left out, and a
    word without a symbol becomes XX. `vocabulary` as in `delinearise`.
    """
    known = vocabulary or frozenset(symbols)
    rows = [row for row, symbol in enumerate(symbols) if _read_symbol(symbol, scheme, known)[0] == "word"]
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
    symbols: Sequence[str], words: Sequence[str], scheme: Linearisation, vocabulary: Collection[str] = ()
) -> tuple[Tree, Counter[str]]:
    """Return the tree of a model's output over the sentence's words, and how often each rule was needed, by its name.

    A linearised gold tree needs none and comes back with its words (with `vinyals`, every tag is XX). `vocabulary` are
    the symbols that the model knows: in tensor2tensor, X opens a constituent if `/X` is in `vocabulary`, or, without
    it, in the output; otherwise X is a tag.
    """
    known = vocabulary or frozenset(symbols)
    builder = _Builder(words)
    for symbol in symbols:
        does, label = _read_symbol(symbol, scheme, known)
        if does == "(":
            builder.levels.append((label, []))
        elif does == ")":
            builder.close_to(label)
        elif does == "word" and builder.words:
            builder.levels[-1][1].append(Tree(label, word=builder.words.pop()))
        else:
            builder.repairs["word surplus" if does else "unknown symbol"] += 1
    tree = builder.finish()
    return tree, +builder.repairs
