"""Constituency trees: Penn bracketing, normalisation, and linearisation into symbols and back; section 6.3.

Two linearisations, by name:

- `vinyals` (Vinyals et al. 2015, "Grammar as a Foreign Language"): `(S (NP XX XX )NP (VP XX )VP )S`. Words are left
  out, part-of-speech tags are XX, closing brackets have labels.
- `tensor2tensor` (its wsj_parsing.py): `S NP DT NN /NP VP VBZ /VP /S`. Tags stay.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from nmt.errors import InputError

Linearisation = Literal["vinyals", "tensor2tensor"]
LINEARISATIONS: tuple[Linearisation, ...] = get_args(Linearisation)
TAG = "XX"  # the tag of every word where part-of-speech tags are normalised
TRACE = "-NONE-"
OUTER = frozenset({"TOP", "ROOT", "S1"})  # labels that treebanks and parsers give to the bracket around a tree
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
        return [node for node, _ in self.walk() if node.word is not None]

    def words(self) -> list[str]:
        return [node.word for node, _ in self.walk() if node.word is not None]

    def __str__(self) -> str:
        parts = (
            ")" if closing else f" ({node.label}" + (f" {node.word})" if node.word is not None else "")
            for node, closing in self.walk()
        )
        return "".join(parts).lstrip()


@dataclass
class _Bracket:
    label: str
    line: int
    children: list[Tree]
    word: str | None = None

    def closed(self, is_outermost: bool) -> Tree | None:
        """Return the tree in the bracket, or None if it breaks the bracketing."""
        if self.label and (self.children or self.word is not None):
            return Tree(self.label, tuple(self.children), self.word)
        return self.children[0] if is_outermost and not self.label and len(self.children) == 1 else None


def words_of(line: str) -> list[str]:
    """Return the words between a treebank's spaces; U+00A0 and other Unicode spaces are characters of words."""
    return [word for word in re.split(r"[ \t\r\n]+", line) if word]


def escape(word: str) -> str:
    """Return the word with its round brackets as the Penn Treebank writes them: -LRB- and -RRB-."""
    return word.replace("(", "-LRB-").replace(")", "-RRB-")


def _check_all_closed(stack: list[_Bracket], place: str) -> None:
    if stack:
        missing = f"lacks {len(stack)} of its closing brackets: add them; where a line is a tree, write it on one line"
        raise InputError(f"{place}: the tree that begins on line {stack[0].line} {missing}")


def read_trees(lines: Iterable[str], name: str, first: int = 1) -> Iterator[Tree]:
    r"""Yield the trees of lines in Penn bracketing; `name` and the first line's number are for messages.

    A tree may span lines; a line that begins with `(` begins a tree. The outer bracket may lack its label, as in
    `( (S ...) )`, or be absent. \r before the end of a line is space. Raises InputError with file and line at
    unbalanced brackets, an empty label or bracket, and text outside a tree.
    """
    stack: list[_Bracket] = []
    number = first
    for number, line in enumerate(lines, start=first):
        if line.startswith("("):
            _check_all_closed(stack, f"{name}, line {number}")
        for token in _TOKEN.finditer(line):
            last = stack[-1] if stack else None
            if token[1] is not None and (last is None or last.word is None):
                stack.append(_Bracket(token[1], number, []))
            elif token[0] == ")" and last is not None and (tree := last.closed(len(stack) == 1)) is not None:
                stack.pop()
                if stack:
                    stack[-1].children.append(tree)
                else:
                    yield tree
            elif token[0][0] not in "()" and last is not None and last.word is None and not last.children:
                last.word = token[0]
            else:
                raise InputError(
                    f"{name}, line {number}: `{token[0][:40]}` breaks the bracketing: write each tree as "
                    "`(LABEL word)` or `(LABEL TREE TREE ...)`"
                )
    _check_all_closed(stack, f"{name}, line {number}")


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


def linearise(tree: Tree, scheme: Linearisation) -> list[str]:
    """Return the symbols of a normalised tree, without its words."""
    opening, end, tag = ("(", ")", TAG) if scheme == "vinyals" else ("", "/", None)
    return [
        (tag or node.label) if node.word is not None else (end if closing else opening) + node.label
        for node, closing in tree.walk()
    ]
