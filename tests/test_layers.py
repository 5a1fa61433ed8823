"""Who may import what, and what a stage imports before it answers."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
STAGES = list(yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"])
TRAINING = {"torch", "numpy", "pyarrow", "safetensors", "yaml", "pydantic"}
"""What a machine that trains has."""

ABSENT = """
import importlib, importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for name in {modules!r}:
    importlib.import_module(name)
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


ALL_OF_NMT = """
sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Absent)]
for name in {modules!r}:
    importlib.import_module(name)
print(*sorted({{"mlflow", "prefect", "dvc", "pipeline"}} & set(sys.modules)))
"""


def test_training_needs_few_libraries_and_nmt_imports_no_orchestrator() -> None:
    """In one process, which imports torch once: the modules of training without most libraries, then all with them."""
    absent = {
        "mlflow",
        "prefect",
        "dvc",
        "sacremoses",
        "subword_nmt",
        "sentencepiece",
        "sacrebleu",
        "jaxtyping",
        "beartype",
        "matplotlib",
        "pandas",
        "rich",
        "scipy",
        "sklearn",
    }
    assert not absent & TRAINING
    training = ["nmt.training.trainer", "nmt.training.checkpoint", "nmt.flops"]
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted((ROOT / "nmt").rglob("*.py"))
        if path.stem != "__init__"
    ]
    result = python(ABSENT.format(absent=absent, modules=training) + ALL_OF_NMT.format(modules=modules))
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == []


def test_running_needs_no_tool_of_the_tests() -> None:
    """Everything imports without the packages of the extra `dev`, and nothing else names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", tool)[0] for tool in project["optional-dependencies"]["dev"]}
    tools = {module for module, owners in packages_distributions().items() if names & set(owners)}
    assert {"pytest", "hypothesis", "jaxtyping", "beartype", "grimp", "mypy"} <= tools
    assert not names & {re.split(r"[<>=]", package)[0] for package in project["dependencies"]}
    graph = grimp.build_graph("nmt", "pipeline", include_external_packages=True, cache_dir=None)
    imported = {
        (name, tool) for tool in tools & graph.modules for name in graph.find_modules_that_directly_import(tool)
    }
    assert imported == {("nmt.common.shapes", "jaxtyping")}
    modules = [
        *("nmt.training.trainer", "nmt.deployment.streams", "nmt.evaluation.bleu", "pipeline.cli", "pipeline.__main__"),
        *(f"pipeline.stages.{name}" for name in STAGES),
    ]
    result = python(ABSENT.format(absent=tools, modules=modules))
    assert result.returncode == 0, result.stderr


HELP = """
import atexit, runpy, sys, time
slow = {{"torch", "mlflow", "prefect", "dvc"}}
atexit.register(lambda: print(time.process_time(), *sorted(slow & set(sys.modules)), file=sys.stderr))
sys.argv = ["wmt", "--help"]
runpy.run_module({module!r}, run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("module", ["pipeline", "pipeline.cli"], ids=["stage", "wmt"])
def test_help_answers_at_once(module: str) -> None:
    """No slow library is imported; the limit in seconds of CPU, which a busy machine does not change, is a wide one."""
    result = python(HELP.format(module=module))
    assert result.returncode == 0, result.stderr
    assert "--help" in result.stdout
    seconds, *imported = result.stderr.split()
    assert imported == []
    assert float(seconds) < 2.0


def test_no_import_closes_a_cycle() -> None:
    """All imports count, also those in functions and under TYPE_CHECKING."""
    graph = grimp.build_graph("nmt", "pipeline", cache_dir=None)
    cycles = {
        " -> ".join([module, *back])
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
        if (back := graph.find_shortest_chain(imported, module))
    }
    assert cycles == set()


BY_NAME = {
    "pipeline/__main__.py": "it runs the stage that its argument names; test_graph.py checks the imports of each",
    "pipeline/orchestration/flow.py": "it imports itself, because it is `__main__` in the process that serves it",
}
"""The files that import modules by name, each with the reason."""


def imports_by_name(node: ast.AST) -> bool:
    """Whether this can import a module whose name stands in a string. importlib.metadata and its like cannot."""
    if isinstance(node, ast.Import):
        return any(alias.name in {"importlib", "runpy", "pkgutil"} for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        found = {f"{node.module}.{alias.name}" for alias in node.names}
        return node.module in {"runpy", "pkgutil"} or bool(found & {"importlib.import_module", "importlib.reload"})
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name in {"__import__", "import_module", "module_from_spec", "exec_module", "load_module"}


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("import importlib", True),
        ("import importlib.util\nimportlib.import_module('os')", True),
        ("from importlib import import_module as load", True),
        ("__import__('os')", True),
        ("import importlib.metadata\nimportlib.metadata.version('torch')", False),
        ("from importlib.resources import files", False),
    ],
)
def test_imports_by_name_are_found(program: str, found: bool) -> None:
    assert any(map(imports_by_name, ast.walk(ast.parse(program)))) == found


def test_two_files_import_modules_by_name() -> None:
    """Such an import is not in the import graph, so a cycle or a missing dep of a stage could hide behind it."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in (*ROOT.glob("nmt/**/*.py"), *ROOT.glob("pipeline/**/*.py"))
        if any(map(imports_by_name, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == BY_NAME.keys()
