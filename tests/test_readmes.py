"""Every README.md: its links, paths, commands and targets exist."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pipeline import cli

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 130
"""Of the main README."""
GENERATED = (
    ".venv", "work", "models/a", "models/b", "results/ablation.md", "data/catalog/mine.yaml",
    "config.yaml",  # of a model folder
)  # fmt: skip
"""Paths that commands in the READMEs make, beside the outputs of dvc.yaml's stages."""
SUFFIXES = (".py", ".md", ".yaml", ".yml", ".toml", ".lock")
"""What ends like this is a path, even without a folder."""


def readmes() -> list[str]:
    """The paths of all README.md files; hidden and generated folders are left out."""
    left_out = {ROOT / path for path in outputs()}
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if not name.startswith(".") and Path(folder, name) not in left_out]
        found += [Path(folder, name).relative_to(ROOT).as_posix() for name in files if name == "README.md"]
    return sorted(found)


@cache
def stages() -> dict[str, list[str]]:
    """The stages of dvc.yaml, each with the paths that it makes."""
    content = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
    return {name: stage.get("outs", []) + stage.get("metrics", []) for name, stage in content.items()}


def outputs() -> list[str]:
    """Paths that git does not track: what stages and commands make."""
    return [*GENERATED, *(path for made in stages().values() for path in made)]


def read(readme: str) -> str:
    return (ROOT / readme).read_text(encoding="utf-8")


def prose(readme: str) -> str:
    """The text outside of fenced blocks."""
    return re.sub(r"^```.*?^```$", "", read(readme), flags=re.DOTALL | re.MULTILINE)


def code(readme: str) -> Iterator[str]:
    """Lines of shell blocks, without comments, and inline code."""
    for block in re.findall(r"^```(?:sh|console)\n(.*?)^```$", read(readme), flags=re.DOTALL | re.MULTILINE):
        yield from (re.sub(r"(^|\s)#.*", "", line) for line in block.splitlines())
    yield from re.findall(r"`([^`\n]+)`", prose(readme))


def anchors(text: str) -> set[str]:
    """The anchors that a Markdown page gets from its headings."""
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_path(word: str) -> bool:
    """Whether inline code names a file or a folder of the repository: by its first folder, or by how it ends."""
    if not re.fullmatch(r"[\w.][\w./-]*", word):
        return False
    first, folder, _ = word.partition("/")
    tops = {path.name for path in ROOT.iterdir()} | {path.split("/")[0] for path in outputs()}
    return word.endswith(SUFFIXES) or (bool(folder) and first in tops)


def exists(word: str) -> bool:
    made = [path.rstrip("/") for path in outputs()]
    return (ROOT / word).exists() or any(word.rstrip("/") == path or word.startswith(f"{path}/") for path in made)


each_readme = pytest.mark.parametrize("readme", readmes())


def test_every_folder_has_a_readme_and_the_main_one_links_to_it() -> None:
    folders = {"nmt", "pipeline", "data", "infra", "tests"}
    assert {readme for readme in readmes() if "/" in readme} >= {f"{folder}/README.md" for folder in folders}
    for folder in folders:
        assert f"({folder}/README.md)" in read("README.md")


def test_the_main_readme_is_short() -> None:
    assert len(read("README.md").splitlines()) <= MOST_LINES


@each_readme
def test_links_lead_to_files_and_headings(readme: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(readme)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / readme).parent / path if path else ROOT / readme
        assert target.exists(), f"{readme}: {link}"
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{readme}: {link}"


@each_readme
def test_paths_exist(readme: str) -> None:
    words = re.findall(r"`([^`\n]+)`", prose(readme))
    assert [word for word in words if is_path(word) and not exists(word)] == []


@each_readme
def test_modules_exist(readme: str) -> None:
    for line in code(readme):
        for module, argument in re.findall(r"python -m ([\w.]+)(?: ([a-z_]+))?", line):
            path = ROOT / module.replace(".", "/")
            if module.split(".")[0] in {"nmt", "pipeline", "tests"}:
                assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), f"{readme}: {line}"
            else:
                assert importlib.util.find_spec(module.split(".")[0]), f"{readme}: {line}"
            if module == "pipeline" and argument:
                assert argument in stages(), f"{readme}: {line}"


@each_readme
def test_make_targets_exist(readme: str) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))
    for line in code(readme):
        for words in re.findall(r"(?:^|[;&$] ?)make((?: [a-z]+)+)", line):
            assert set(words.split()) <= targets, f"{readme}: {line}"


@each_readme
def test_commands_exist(readme: str) -> None:
    wmt: Any = typer.main.get_command(cli.app)
    for line in code(readme):
        for words in re.findall(r"(?:^|[\s/])wmt((?: [a-z]+)+)", line):
            at = wmt
            for word in words.split():
                if not hasattr(at, "commands"):
                    break
                assert word in at.commands, f"{readme}: {line}"
                at = at.commands[word]
