"""Two mutations that cosmic-ray does not have: wrong wiring is most often an argument or a call that is missing."""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.operators.operator import Example, Operator
from parso.python.tree import PythonNode
from parso.tree import NodeOrLeaf

Span = tuple[tuple[int, int], tuple[int, int]]


class RemoveKeywordArgument(Operator):
    """Remove `name=value` from a call, so that the default holds."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        for argument in self._keyword_arguments(node):
            yield argument.start_pos, argument.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        argument = self._keyword_arguments(node)[index]
        if node.type == "trailer":
            node.children.remove(argument)
            return node
        place = node.children.index(argument)
        # With the comma after it, or before it where it is the last.
        del node.children[place : place + 2]
        return node

    @staticmethod
    def _keyword_arguments(node: NodeOrLeaf) -> list[Any]:
        if node.type == "arglist" or (node.type == "trailer" and node.children[0] == "("):
            return [child for child in node.children if child.type == "argument" and child.children[1] == "="]
        return []

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            Example("f(a=1)", "f()"),
            Example("f(x, a=1)", "f(x, )"),
            Example("f(x, a=1, b=2)", "f(x, b=2)"),
            Example("f(x, a=1, b=2)", "f(x, a=1,)", occurrence=1),
        )


class RemoveStatement(Operator):
    """Replace a call whose result is not used, or an augmented assignment, by `pass`."""

    def mutation_positions(self, node: NodeOrLeaf) -> Iterator[Span]:
        if self._is_removable(node):
            yield node.start_pos, node.end_pos

    def mutate(self, node: NodeOrLeaf, index: int) -> NodeOrLeaf:
        first = node.get_first_leaf()
        first.value = "pass"
        return first

    @staticmethod
    def _is_removable(node: NodeOrLeaf) -> bool:
        parent = node.parent
        if parent is None or parent.type != "simple_stmt":
            return False
        if node.type == "expr_stmt":
            operator = node.children[1]
            return operator.type == "operator" and operator.value not in {"=", ":"}
        is_call = isinstance(node, PythonNode) and node.type == "atom_expr" and node.children[-1].type == "trailer"
        return is_call and node.children[-1].children[0] == "("

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (Example("a.b(c)\n", "pass\n"), Example("x += 1\n", "pass\n"))
