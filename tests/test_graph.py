"""dvc.yaml, params.yaml, the schema and the imports agree: no stale result survives. And who may import what."""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml
from clones import ROOT, git

from pipeline.config import graph, resolution
from pipeline.config.corpora import RunSettings
from pipeline.config.paths import CONFIG
from pipeline.config.sections import SECTIONS
from pipeline.config.settings import Configuration

STAGES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
GRAPH = graph.stages(ROOT / "dvc.yaml")
READS = {
    "nmt.evaluation.known_sets": ["nmt/evaluation/known_sets.yaml"],
    "nmt.hardware": ["nmt/hardware.yaml"],
    "pipeline.config.rows": ["pipeline/config/rows.yaml"],
    "pipeline.report.page": ["pipeline/report/static", "pipeline/report/templates"],
}
"""Module -> the files beside the code that it reads."""
LOADERS = ("load_section", "plain_section")
"""Functions of pipeline/config/sections.py that read a section of the resolved configuration."""
each_stage = pytest.mark.parametrize("name", STAGES)


@cache
def imports() -> grimp.ImportGraph:
    """Who imports whom, wherever in a module the import stands, also under TYPE_CHECKING."""
    return grimp.build_graph("nmt", "pipeline", include_external_packages=True, cache_dir=None)


def declared(name: str) -> list[str]:
    """What a stage reads of the resolved configuration, by dvc.yaml: `section` or `section.key`."""
    entries = [entry for entry in STAGES[name].get("params", []) if isinstance(entry, dict)]
    return [key for entry in entries for key in entry.get(str(CONFIG), [])]


@cache
def module(name: str) -> ast.Module:
    return ast.parse((ROOT / "pipeline/stages" / f"{name}.py").read_text(encoding="utf-8"))


def loads(name: str) -> Iterator[tuple[str, ast.Call]]:
    """The sections that a stage's module loads, with the calls. A loop goes over SECTIONS."""
    for node in ast.walk(module(name)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in LOADERS:
            if isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value), node
            else:
                stage_module = import_module(f"pipeline.stages.{name}")
                yield from ((section, node) for section in getattr(stage_module, "CERTIFIED", SECTIONS))


def used(name: str) -> set[str]:
    """Dotted keys of the settings that a stage's module reads by the variables it loads sections into."""
    variables: dict[str, str] = {}
    calls = {id(call): section for section, call in loads(name)}
    for node in ast.walk(module(name)):
        if isinstance(node, ast.Assign):
            targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target, value in zip(targets, values, strict=False):
                if id(value) in calls and isinstance(target, ast.Name):
                    variables[target.id] = calls[id(value)]
    dotted = set()
    for node in ast.walk(module(name)):
        keys, inner = [], node
        while isinstance(inner, ast.Attribute):
            keys.append(inner.attr)
            inner = inner.value
        section = variables.get(inner.id) if isinstance(inner, ast.Name) else calls.get(id(inner))
        if keys and section is not None:
            dotted.add(".".join([section, *reversed(keys)]))
    # Of `a.b.c` the walk finds `a.b` too.
    return {key for key in dotted if not any(other.startswith(f"{key}.") for other in dotted)}


@each_stage
def test_the_code_a_stage_depends_on_is_what_it_imports(name: str) -> None:
    """And the files that its imports read."""
    modules = closure(name)
    read = {path for module, paths in READS.items() if module in modules for path in paths}
    code = {f"{module.replace('.', '/')}.py" for module in modules} | read
    deps = [dep for dep in GRAPH[name].deps if dep.split("/")[0] in {"nmt", "pipeline"}]
    covered = {file: [dep for dep in deps if file == dep or file.startswith(f"{dep}/")] for file in code}
    assert {file for file, deps in covered.items() if len(deps) != 1} == set()
    assert {dep for deps in covered.values() for dep in deps} == set(deps)


def test_packages_hold_a_docstring_alone() -> None:
    """Importing a module runs them too, but they are in no stage's deps. nmt's own has the names of the API."""
    for path in (*ROOT.glob("nmt/*/__init__.py"), *ROOT.glob("pipeline/**/__init__.py")):
        (only,) = ast.parse(path.read_text(encoding="utf-8")).body
        assert isinstance(only, ast.Expr), path


def test_the_stages_that_compute_with_a_model_ask_for_the_gpu_and_one_trains() -> None:
    """Without `meta: gpu: true` Prefect would run two of them on one GPU at a time."""
    training = {name for name in STAGES if "nmt.training.trainer" in closure(name)}
    searching = {name for name in STAGES if "nmt.inference.decoder" in closure(name)}
    assert {name for name, stage in GRAPH.items() if stage.meta.get("gpu")} == training | searching
    assert training == {"train"}, "by this name the runner, the tracking and `wmt verify` know it"


@each_stage
def test_what_carries_no_result_is_in_no_stage(name: str) -> None:
    others = ("__main__", "tracking", "flows", "trainings.launch", "trainings.progress", "trainings.sync")
    packages = tuple(f"pipeline.{part}" for part in others)
    assert [module for module in closure(name) if module.startswith(packages)] == []


def closure(name: str) -> set[str]:
    """The modules of a stage, empty packages left out."""
    stage = f"pipeline.stages.{name}"
    modules = imports().find_upstream_modules(stage) | {stage}
    return {module for module in modules if (ROOT / f"{module.replace('.', '/')}.py").is_file()}


@each_stage
def test_a_stage_declares_the_sections_and_keys_that_it_reads_and_the_versions_that_it_checks(name: str) -> None:
    keys = declared(name)
    # Versions of libraries decide a stage's bytes whether or not its module looks at them.
    sections = {key.split(".")[0] for key in keys} - {"versions"}
    assert sections == {section for section, _ in loads(name)} - {"versions"}
    undeclared = {path for path in used(name) if not any(path == key or path.startswith(f"{key}.") for key in keys)}
    assert undeclared - {f"{section}.model_dump" for section in keys} == set()
    calls = [node for node in ast.walk(module(name)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    checked = [ast.literal_eval(word) for call in calls if call.func.id == "check_versions" for word in call.args]
    assert set(checked) == {key.removeprefix("versions.") for key in keys if key.startswith("versions.")}


def test_what_the_stages_make_is_ignored_by_git(tmp_path: Path) -> None:
    git(tmp_path, "init", "--quiet")
    shutil.copyfile(ROOT / ".gitignore", tmp_path / ".gitignore")
    made = [out for name in STAGES for out in GRAPH[name].outs]
    left = [f"{folder}/.raw.{end}" for folder in ("data", "models", "results") for end in ("123.tmp", "host.1.old")]
    paths = [*made, *left, "data/catalog/.mine.yaml.host.1.tmp"]
    assert git(tmp_path, "check-ignore", *paths).splitlines() == paths


def test_params_the_schema_resolve_and_the_stages_agree() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text(encoding="utf-8"))
    assert set(params) == {*RunSettings.model_fields, "overrides"}
    assert set(STAGES["resolve"]["params"]) == set(params)
    assert set(resolution.OVERRIDABLE) <= set(Configuration.model_fields)
    assert {key.split(".")[0] for name in STAGES for key in declared(name)} == set(Configuration.model_fields)


ABSENT = """
import importlib, sys
sys.modules.update(dict.fromkeys({absent!r}))  # An import of these fails as if they were not installed.
for name in ("nmt.training.loop", "nmt.training.checkpoint", "nmt.flops"):
    importlib.import_module(name)
"""


def python(program: str) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result


def test_training_needs_few_libraries_and_nothing_a_tool_of_the_tests() -> None:
    """Of the packages of the extra `dev`, nmt.common.shapes alone names one, and works without it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {re.split(r"[<>=]", tool)[0] for tool in project["optional-dependencies"]["dev"]}
    tools = {module for module, owners in packages_distributions().items() if names & set(owners)}
    assert {"pytest", "hypothesis", "jaxtyping", "beartype", "grimp", "mypy"} <= tools
    assert not names & {re.split(r"[<>=]", package)[0] for package in project["dependencies"]}
    importers = imports().find_modules_that_directly_import
    imported = {(name, tool) for tool in tools & imports().modules for name in importers(tool)}
    # The second is copied beside an exported model, and imported there.
    copied = ("nmt.deployment.transformers_tokenizer", "transformers")
    assert imported == {("nmt.common.shapes", "jaxtyping"), copied}
    few = {"mlflow", "prefect", "dvc", "sacremoses", "subword_nmt", "sentencepiece", "sacrebleu"}
    few |= {"matplotlib", "pandas", "rich", "scipy", "sklearn"}
    python(ABSENT.format(absent=few | tools))


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
        for module in imports().modules
        for imported in imports().find_modules_directly_imported_by(module)
        if (back := imports().find_shortest_chain(imported, module))
    }
    assert cycles == set()


def test_every_benchmark_can_be_imported() -> None:
    """No other test runs them: a name that the code no longer has would go unnoticed."""
    for path in (ROOT / "tests/bench").glob("*.py"):
        import_module(f"tests.bench.{path.stem}")
