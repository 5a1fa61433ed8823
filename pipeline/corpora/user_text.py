"""The user's own text files or treebanks as a corpus: linked into data/local/, checked, described by a catalog."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import sha256_of, writing
from nmt.config import InputError
from nmt.text.parallel_text import parallel, read_lines
from nmt.text.trees import read_trees
from pipeline.common.paths import LOCAL
from pipeline.common.settings import DataSettings, MemberSettings, ParallelSettings

_PACKED = (".gz", ".tgz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".sgm", ".sgml")


def add(
    name: str, pair: str, texts: Mapping[str, tuple[Path, Path]], description: str, force: bool, catalogs: Path
) -> Path:
    """Write the catalog `name` of source and target files by role (train, valid, test); return its path.

    data/local/<name>/ links to the files. Their sha256 is in the catalog, so that later stages notice an edit. Raises
    InputError, having written nothing, where the name is invalid or exists (without `force`), where a file is missing,
    empty, packed or not UTF-8, where two sides differ in their number of lines, and where a treebank holds no tree or a
    wrong bracket. For the pair en-tree the two files of a role are one treebank: sentences and trees are made of it.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"`{name}` cannot name a catalog: take letters, digits, `.`, `_` and `-`")
    if yaml.safe_dump(name).startswith("'"):  # YAML reads it as text in quotes only.
        raise InputError(f"`{name}` cannot name a catalog: `corpus: {name}` in params.yaml is no text; add letters")
    catalog, folder = catalogs / f"{name}.yaml", LOCAL / name
    for path in (catalog, folder):
        if path.exists() and not force:
            raise InputError(f"{path} exists: choose another name, or replace it with --force")
    if owned := sorted(str(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        raise InputError(f"{owned[0]} is a file, not a link to one, and --force would delete it: move it elsewhere")
    links: dict[str, Path] = {}
    content: dict[str, Any] = {}
    check, sides = (_check_treebank, ["mrg", "mrg"]) if pair == "en-tree" else (_check, pair.split("-"))
    for role, files in texts.items():
        check(role, files)
        text: dict[str, Any] = {"name": f"{name}-{role}"}
        for side, ending, file in zip(("source", "target"), sides, files, strict=True):
            link = folder / f"{role}.{ending}"
            links[link.name] = file.resolve()
            text[side] = {"path": link.as_posix(), "sha256": sha256_of(file)}
        content[role] = [text] if role == "train" else text
    described = {"description": description or f"{name}: local files, {pair}", "pairs": {pair: content}}
    with writing(folder) as temporary:
        temporary.mkdir()
        for link_name, file in links.items():
            (temporary / link_name).symlink_to(file)
    with writing(catalog) as temporary:
        temporary.write_text(yaml.safe_dump(described, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return catalog


def _check(role: str, sides: tuple[Path, Path]) -> None:
    """Raise InputError where the two files are not a parallel text."""
    for file in sides:
        if not file.is_file():
            raise InputError(f"{file}, for --{role}, is no file: give two plain text files")
        if file.suffix in _PACKED:
            raise InputError(f"{file}, for --{role}, is packed or marked up: give plain text, one segment per line")
    for _ in parallel(*sides):
        pass


def _check_treebank(role: str, sides: tuple[Path, Path]) -> None:
    """Raise InputError where the two files are not one treebank in Penn bracketing."""
    file, other = sides
    if file.resolve() != other.resolve() or file.suffix != ".mrg":
        raise InputError(
            f"--{role} is {file} and {other}: for en-tree give one treebank in Penn bracketing twice, with a name that "
            "ends in .mrg; sentences and trees are made of it"
        )
    if not file.is_file():
        raise InputError(f"{file}, for --{role}, is no file: give a treebank")
    if not sum(1 for _ in read_trees(read_lines(file), str(file))):
        raise InputError(f"{file}, for --{role}, holds no tree: give a treebank in Penn bracketing")


def identified(data: DataSettings) -> DataSettings:
    """Return the settings with the sha256 of every local file; raise InputError where one is missing or was edited.

    A catalog may give a file's number of lines in place of its sha256. With the sha256 in the configuration, later
    stages run again when the file changes.
    """

    def side(member: MemberSettings) -> MemberSettings:
        if member.path is None:
            return member
        path = verified(member)
        return member if member.sha256 else member.model_copy(update={"sha256": sha256_of(path)})

    def text(parallel_text: ParallelSettings) -> ParallelSettings:
        sides = {"source": side(parallel_text.source), "target": side(parallel_text.target)}
        return parallel_text.model_copy(update=sides)

    held_out = {"valid": text(data.valid), "test": text(data.test)}
    return data.model_copy(update={"train": [text(each) for each in data.train], **held_out})


def verified(side: MemberSettings) -> Path:
    """Return the local file of one side; raise InputError where it is missing or was edited since it was added."""
    assert side.path is not None
    path = Path(side.path)
    if not path.exists() and not path.is_absolute():
        # DVC's experiments run in a copy of the repository; files that git ignores are in the original.
        path = Path(os.environ.get("DVC_ROOT", ".")) / path
    if not path.is_file():
        remedy = "make it as its catalog says" if side.lines else "restore it, or add it again with `wmt catalog add`"
        raise InputError(f"{side.path} is missing: {remedy}")
    if side.sha256 is not None and (sha256 := sha256_of(path)) != side.sha256:
        remedy = "run again" if side.lines else "add it again with `wmt catalog add --force`, or restore it"
        raise InputError(f"{side.path} has the sha256 {sha256}, not {side.sha256}: it was edited; {remedy}")
    return path
