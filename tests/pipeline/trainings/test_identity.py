"""What names a training: the code that computes, and not what is written about it or what surrounds it."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Callable
from pathlib import Path

import grimp
import pytest
from clones import ROOT

from pipeline.trainings import identity
from pipeline.trainings.identity import NO_ARITHMETIC, PORTABLE, START, code_digest, computing_code, syntax

ORDINARY, IN_PORTABLE = ({"training": {"arithmetic": kind}} for kind in ("ordinary", "portable"))
MODULES = sorted(path for path in (ROOT / "nmt").rglob("*.py") if path.name != "__init__.py")


class Rewritten(ast.NodeTransformer):
    """Other docstrings and no comments."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        return ast.Expr(ast.Constant("Said otherwise.")) if identity._is_docstring(node) else node


class Changed(ast.NodeTransformer):
    """Another operator in every expression of two operands, and other numbers."""

    changed = False

    def visit_BinOp(self, node: ast.BinOp) -> ast.BinOp:
        self.changed = True
        return ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)

    def visit_Constant(self, node: ast.Constant) -> ast.Constant:
        if not isinstance(node.value, int):
            return node
        self.changed = True
        return ast.Constant(node.value + 1)


def edited(source: bytes, edit: ast.NodeTransformer) -> bytes:
    return ast.unparse(ast.fix_missing_locations(edit.visit(ast.parse(source)))).encode()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_said_in_a_module_is_not_hashed_and_what_it_computes_is(path: Path) -> None:
    source = path.read_bytes()
    assert syntax(edited(source, Rewritten())) == syntax(source)
    assert syntax(source + b"# A comment.\n") == syntax(source)
    change = Changed()
    assert (syntax(edited(source, change)) != syntax(source)) == change.changed


def test_every_module_that_training_imports_is_hashed_or_listed_as_computing_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    graph = grimp.build_graph("nmt", cache_dir=None)
    imported = {*graph.find_upstream_modules("nmt.training.loop"), "nmt.training.loop"}
    files = {path for module in imported if (path := Path(f"{module.replace('.', '/')}.py")).exists()}
    hashed = {path for path in computing_code(IN_PORTABLE) if path.name != "__init__.py"}
    assert hashed == files - NO_ARITHMETIC | {START}
    assert files > NO_ARITHMETIC
    assert {path.stem for path in NO_ARITHMETIC} == {"cpu", "errors", "files", "hardware", "processes"}
    assert computing_code(IN_PORTABLE) - computing_code(ORDINARY) == {PORTABLE}


@pytest.mark.parametrize(
    ("file", "edit", "moves"),
    [
        ("nmt/model.py", lambda text: text.replace("section 3 of the paper", "the paper's section 3"), ""),
        ("nmt/model.py", lambda text: text.replace("1e-6", "1e-5"), "both"),
        ("nmt/hardware.py", lambda text: f"{text}HERE = 1\n", ""),
        ("nmt/common/cpu.py", lambda text: f"{text}HERE = 1\n", ""),
        ("nmt/portable.py", lambda text: text.replace("BITS = 22", "BITS = 21"), "portable"),
        ("pipeline/trainings/start.py", lambda text: f"{text}HERE = 1\n", "both"),
    ],
)
def test_which_edit_begins_a_training_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, edit: Callable[[str], str], moves: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("nmt", "pipeline/trainings"):
        shutil.copytree(ROOT / folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    before = [code_digest(job) for job in (ORDINARY, IN_PORTABLE)]
    text = Path(file).read_text(encoding="utf-8")
    assert edit(text) != text
    Path(file).write_text(edit(text), encoding="utf-8")
    moved = [code_digest(job) != was for job, was in zip((ORDINARY, IN_PORTABLE), before, strict=True)]
    assert moved == [moves == "both", moves in ("both", "portable")]
