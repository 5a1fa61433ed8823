"""What names a training: the code that computes, and not what is written about it or what surrounds it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import grimp
import pytest
from clones import ROOT

from pipeline.trainings.identity import NO_ARITHMETIC, PORTABLE, START_MODULE, code_digest, computing_code, syntax

ORDINARY, IN_PORTABLE = ({"training": {"arithmetic": kind}} for kind in ("ordinary", "portable"))
SOURCE = '''
"""Of a module."""
RATE = 0.1
"""Of a variable."""
class Layer:
    """Of a class."""
    N: int = 6  # layers
    async def forward(self, x, *y, last=None):
        """Of a function."""
        return x * self.N if y else [len("text"), -x, last or {}]
'''


@pytest.mark.parametrize("said", ["Of a module.", "Of a variable.", "Of a class.", "layers", "Of a function."])
def test_what_is_said_in_a_module_is_not_hashed(said: str) -> None:
    assert syntax(SOURCE.replace(said, "Said otherwise.").encode()) == syntax(SOURCE.encode())


@pytest.mark.parametrize("computed", ["RATE", "0.1", "6", "Layer", "N", "async ", "last=None", " * ", "text", "-x"])
def test_what_a_module_computes_is_hashed(computed: str) -> None:
    other = {"async ": "", "last=None": "last=0", " * ": " + ", "-x": "+x"}.get(computed, f"{computed}1")
    assert syntax(SOURCE.replace(computed, other).encode()) != syntax(SOURCE.encode())


def test_every_module_that_training_imports_is_hashed_or_computes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    graph = grimp.build_graph("nmt", cache_dir=None)
    imported = {*graph.find_upstream_modules("nmt.training.loop"), "nmt.training.loop"}
    files = {path for module in imported if (path := Path(f"{module.replace('.', '/')}.py")).exists()}
    hashed = {path for path in computing_code(IN_PORTABLE) if path.name != "__init__.py"}
    assert hashed == files - NO_ARITHMETIC | {START_MODULE}
    assert files > NO_ARITHMETIC
    assert {path.stem for path in NO_ARITHMETIC} == {"cpu", "errors", "files", "hardware", "processes"}
    assert computing_code(IN_PORTABLE) - computing_code(ORDINARY) == {PORTABLE}


@pytest.mark.parametrize(
    ("file", "edit", "moves"),
    [
        ("nmt/model.py", lambda text: text.replace("section 3 of the paper", "the paper's section 3"), ""),
        ("nmt/model.py", lambda text: text.replace("1e-6", "1e-5"), "both"),
        ("nmt/hardware.py", lambda text: f"{text}HERE = 1\n", ""),
        ("nmt/portable.py", lambda text: text.replace("BITS = 22", "BITS = 21"), "portable"),
        ("pipeline/trainings/start.py", lambda text: f"{text}HERE = 1\n", "both"),
    ],
)
def test_which_edit_begins_a_training_anew(here: Path, file: str, edit: Callable[[str], str], moves: str) -> None:
    for folder in ("nmt", "pipeline/trainings"):
        shutil.copytree(ROOT / folder, folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "dvc.yaml", "dvc.yaml")
    before = [code_digest(job) for job in (ORDINARY, IN_PORTABLE)]
    text = Path(file).read_text(encoding="utf-8")
    assert edit(text) != text
    Path(file).write_text(edit(text), encoding="utf-8")
    moved = [code_digest(job) != was for job, was in zip((ORDINARY, IN_PORTABLE), before, strict=True)]
    assert moved == [moves == "both", moves in ("both", "portable")]
