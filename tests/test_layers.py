"""Who may import what, and what a stage imports before it answers."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions
from typing import Any

import grimp
import pytest
from clones import ROOT, STAGES

ABSENT = """
import importlib, importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
for absent, modules in {steps!r}:
    for name in modules:
        importlib.import_module(name)
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result


@cache
def graph() -> Any:
    """Every import, also those in functions and under TYPE_CHECKING."""
    return grimp.build_graph("nmt", "pipeline", include_external_packages=True, cache_dir=None)


def test_training_needs_few_libraries_and_nothing_a_tool_of_the_tests() -> None:
    """Everything imports without the packages of the extra `dev`, and nothing else names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", tool)[0] for tool in project["optional-dependencies"]["dev"]}
    tools = {module for module, owners in packages_distributions().items() if names & set(owners)}
    assert {"pytest", "hypothesis", "jaxtyping", "beartype", "grimp", "mypy"} <= tools
    assert not names & {re.split(r"[<>=]", package)[0] for package in project["dependencies"]}
    imported = {
        (name, tool) for tool in tools & graph().modules for name in graph().find_modules_that_directly_import(tool)
    }
    # The second is copied beside an exported model, and imported there.
    copied = ("nmt.deployment.transformers_tokenizer", "transformers")
    assert imported == {("nmt.common.shapes", "jaxtyping"), copied}
    modules = [
        *("nmt.training.loop", "nmt.deployment.streams", "nmt.evaluation.bleu", "pipeline.cli", "pipeline.__main__"),
        *(f"pipeline.stages.{name}" for name in STAGES),
    ]
    few = {"mlflow", "prefect", "dvc", "sacremoses", "subword_nmt", "sentencepiece", "sacrebleu"}
    few |= {"matplotlib", "pandas", "rich", "scipy", "sklearn"}
    training = ["nmt.training.loop", "nmt.training.checkpoint", "nmt.flops"]
    # In one process: torch takes seconds to import.
    python(ABSENT.format(steps=[(few | tools, training), (tools, modules)]))


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
    assert "--help" in result.stdout
    seconds, *imported = result.stderr.split()
    assert imported == []
    assert float(seconds) < 2.0


def test_no_import_closes_a_cycle() -> None:
    cycles = {
        " -> ".join([module, *back])
        for module in graph().modules
        for imported in graph().find_modules_directly_imported_by(module)
        if (back := graph().find_shortest_chain(imported, module))
    }
    assert cycles == set()


def test_every_benchmark_can_be_imported() -> None:
    """No other test runs them: a name that the code no longer has would go unnoticed."""
    for path in (ROOT / "tests/bench").glob("*.py"):
        import_module(f"tests.bench.{path.stem}")
