"""Every README.md: its links, paths, commands and targets exist, and its commands run."""

import importlib.util
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from clones import ROOT, SHRUNKEN, Clone, git
from command_line import wmt
from dvc.cli import main as dvc
from model_folders import folder_of
from ruamel.yaml import YAML

from pipeline.cli import app as cli
from pipeline.config import graph

STAGES = graph.stages(ROOT / "dvc.yaml")
# The config.yaml is a model folder's.
OUTPUTS = [".venv", "work", "models/a", "models/b", "results/ablation.md", "results/comparison.html",
           "data/catalog/mine.yaml", "config.yaml", "infra/.env",
           *(path for stage in STAGES.values() for path in stage.outs)]  # fmt: skip
"""Paths that git does not track: what stages and commands make."""
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".lock")  # what ends like this is a path, even without a folder


def readmes() -> list[str]:
    """The paths of all README.md files that git has or would take."""
    return git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "README.md", "*/README.md").split()


def read(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


def prose(readme: str) -> str:
    """The text outside of fenced blocks."""
    return re.sub(r"^```.*?^```$", "", read(readme), flags=re.DOTALL | re.MULTILINE)


def is_path(word: str) -> bool:
    """Whether inline code names a file or a folder of the repository: by its first folder, or by how it ends."""
    if not re.fullmatch(r"[\w.][\w./-]*", word):
        return False
    first, folder, _ = word.partition("/")
    tops = {path.name for path in ROOT.iterdir()} | {path.split("/")[0] for path in OUTPUTS}
    return word.endswith(SUFFIXES) or (bool(folder) and first in tops)


def exists(word: str) -> bool:
    made = [path.rstrip("/") for path in OUTPUTS]
    return (ROOT / word).exists() or any(word.rstrip("/") == path or word.startswith(f"{path}/") for path in made)


each_readme = pytest.mark.parametrize("readme", readmes())


def test_the_main_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= 130


@each_readme
def test_links_lead_to_files_and_headings(readme: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(readme)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / readme).parent / path if path else ROOT / readme
        assert target.exists(), f"{readme}: {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{readme}: {link}"


@each_readme
def test_paths_exist(readme: str) -> None:
    words = re.findall(r"`([^`\n]+)`", prose(readme))
    assert [word for word in words if is_path(word) and not exists(word)] == []


@each_readme
def test_modules_targets_and_commands_exist(readme: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for line in (*commands(readme), *re.findall(r"`([^`\n]+)`", prose(readme))):
        for module, argument in re.findall(r"python -m ([\w.]+)(?: ([a-z_]+))?", line):
            path = ROOT / module.replace(".", "/")
            if module.split(".")[0] in {"nmt", "pipeline", "tests"}:
                assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{readme}: {line}"
            else:
                assert importlib.util.find_spec(module.split(".")[0]), f"{readme}: {line}"
            if module == "pipeline" and argument:
                assert argument in STAGES, f"{readme}: {line}"
        for words in re.findall(r"(?:^|[;&$] ?)make((?: [a-z-]+)+)", line):
            assert set(words.split()) <= targets, f"{readme}: {line}"
        for words in re.findall(r"(?:^|[\s/])wmt((?: [a-z]+)+)", line):
            at: Any = typer.main.get_command(cli.app)
            for word in words.split():
                if not hasattr(at, "commands"):
                    break
                assert word in at.commands, f"{readme}: {line}"
                at = at.commands[word]


PROGRAMS = "wmt|dvc|make|prefect|mlflow|pytest|python|curl|export|echo"
TREATED: dict[str, Any] = YAML(typ="safe", pure=True).load(ROOT / "tests/readme_commands.yaml")
"""ruamel.yaml refuses a key that stands there twice; PyYAML would take the last one."""


def commands(readme: str) -> Iterator[str]:
    """The commands in blocks of shell code, after `$` where output follows, and those that fill a cell of a table."""
    for language, block in re.findall(r"^```(sh|console)\n(.*?)^```$", read(readme), flags=re.DOTALL | re.MULTILINE):
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        if language == "console":
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        yield from filter(None, (re.sub(r"(^|\s+)#.*", "", line) for line in lines))
    for row in re.findall(r"^\|.*$", prose(readme), flags=re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        yield from (cell.strip("`") for cell in cells if re.fullmatch(rf"`(\w+=\S+ )*({PROGRAMS}) [^`]+`", cell))


def treated() -> dict[str, str]:
    """Every command of the list, with how it is tested."""
    treatment = dict.fromkeys(TREATED["run"], "run here")
    for how in ("tested", "not_run"):
        treatment |= {command: reason for reason, listed in TREATED[how].items() for command in listed}
    return treatment


def test_every_command_is_run_or_listed_with_a_reason_or_a_test_that_exists() -> None:
    used = {command for readme in readmes() for command in commands(readme)}
    assert used - treated().keys() == set(), "list these in tests/readme_commands.yaml"
    assert treated().keys() - used == set(), "these are in no README any more"
    listed = sum(len(names) for how in ("tested", "not_run") for names in TREATED[how].values())
    assert len(treated()) == len(TREATED["run"]) + listed, "a command is listed twice"
    for path, name in (test.split("::") for test in TREATED["tested"]):
        assert f"def {name}(" in read(path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy of the repository with tiny models, lines of text and scores."""
    clone = Clone(tmp_path_factory.mktemp("readmes") / "clone")
    clone.params(overrides=SHRUNKEN)
    for number, name in enumerate(("average", "a", "b")):
        folder_of(clone.folder / "models" / name, seed=number)
    names = [f"{name}.{language}" for name in ("train", "dev", "val", "test") for language in ("en", "de")]
    names += ["test_2016_flickr.en", "test_2016_flickr.de", "in.en", "ref.de", "base.de", "other.de"]
    for name in names:
        (clone.folder / name).write_text("the old man sees a dog .\nShe sleeps well\n")
    (clone.folder / "results").mkdir()
    scores = {"bleu": 1.0, "bleu_low": 0.5, "bleu_high": 1.5, "bleu_set": "test", "bleu_signature": "nrefs:1"}
    (clone.folder / "results/scores.json").write_text(json.dumps(scores))
    return clone


@pytest.mark.parametrize("command", TREATED["run"])
def test_commands_run(
    finished: Clone, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`wmt` and `dvc` run in this process, which saves imports. Names that are exported must be read by some code."""
    monkeypatch.chdir(finished.folder)
    words, given = shlex.split(command), b""
    if words[0] == "export":
        names = {word.partition("=")[0] for word in words[1:]}
        paths = [path for package in ("nmt", "pipeline") for path in (ROOT / package).rglob("*.py")]
        code = "".join(path.read_text(encoding="utf-8") for path in paths)
        assert {name for name in names if f'"{name}"' not in code} == set(), "no code reads these variables"
        return
    if words[0] == "echo":
        given, words = f"{words[1]}\n".encode(), words[3:]
    if "<" in words:
        given, words = Path(words[-1]).read_bytes(), words[:-2]
    if words[0] == "dvc":
        assert dvc(words[1:]) == 0
        return
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert wmt(*words[1:]) == 0
    if "translate" in words and "--output" not in words:
        assert len(capsys.readouterr().out.splitlines()) >= len(given.splitlines())
