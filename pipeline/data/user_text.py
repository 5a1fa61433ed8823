"""The user's own text files or treebanks as a corpus: linked into data/local/, checked, described by a catalog."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import output_file, sha256_of, write_text, writing
from nmt.errors import InputError
from nmt.parsing.trees import read_trees
from nmt.text.parallel_text import parallel, read_lines
from pipeline.config.corpora import TREE, DataSettings, MemberSettings, sides, valid_pair
from pipeline.config.paths import LOCAL

NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
LONGEST = 1_000_000  # characters of a line; a longer one is a file without line breaks


def add(
    name: str, pair: str, texts: Mapping[str, tuple[Path, Path]], description: str, force: bool, catalogs: Path
) -> Path:
    """Write the catalog `name` of source and target files by role (train, valid, and see `named`); return its path.

    data/local/<name>/ links to the files. Their sha256 is in the catalog, so that later stages notice an edit. Raises
    InputError, having written nothing, where the name is invalid or exists (without `force`), where a file is missing,
    empty, not UTF-8 or holds NUL or an absurd line, where two sides differ in their number of lines, and where a
    treebank holds no tree or a wrong bracket. Text that makes a score worthless gets a warning. For the pair en-tree
    the two files of a role are one treebank: sentences and trees are made of it.
    """
    try:
        valid_pair(pair)
    except ValueError as error:
        raise InputError(f"--pair is `{pair}`: {error}") from error
    if not re.fullmatch(NAME, name):
        raise InputError(f"`{name}` cannot name a catalog: take letters, digits, `.`, `_` and `-`")
    catalog, folder = catalogs / f"{name}.yaml", LOCAL / name
    for path in (catalog, folder):
        if path.exists() and not force:
            raise InputError(f"{path} exists: choose another name, or replace it with --force")
    if owned := sorted(str(path) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
        raise InputError(f"{owned[0]} is a file, not a link to one, and --force would delete it: move it elsewhere")
    output_file(catalog, *(file for files in texts.values() for file in files))
    links: dict[str, Path] = {}
    content: dict[str, Any] = {}
    doubts: list[str] = []
    trees = sides(pair)[1] == TREE
    endings = ("mrg", "mrg") if trees else sides(pair)
    for stem, files in texts.items():
        role, _, own = stem.partition(".")
        _check(role, files, pair)
        doubts += [] if trees else _doubts(role, files, texts["train"])
        text: dict[str, Any] = {"name": own or f"{name}-{role}"}
        for side, ending, file in zip(("source", "target"), endings, files, strict=True):
            link = folder / f"{stem}.{ending}"
            links[link.name] = file.resolve()
            text[side] = {"path": link.as_posix(), "sha256": sha256_of(file)}
        content[role] = [*content.get(role, []), text] if own or role == "train" else text
    for doubt in doubts:
        print(f"catalog: {doubt}", file=sys.stderr)
    described = {"description": description or f"{name}: local files, {pair}", "pairs": {pair: content}}
    with writing(folder) as temporary:
        temporary.mkdir()
        for link_name, file in links.items():
            (temporary / link_name).symlink_to(file)
    write_text(catalog, yaml.safe_dump(described, sort_keys=False, allow_unicode=True))
    return catalog


def named(tests: Sequence[tuple[Path, Path]]) -> dict[str, tuple[Path, Path]]:
    """Return one test set as `test`, or several by the names of their source files: `test.news`, `test.medical`.

    Raises InputError where two have one name, or a name has other characters than a catalog's.
    """
    names = [files[0].stem for files in tests]
    if not names[1:]:
        return {"test": tests[0]}
    if len({*names}) < len(names) or not all(re.fullmatch(NAME, name) for name in names):
        raise InputError(
            f"several test sets are named by their first files, here {', '.join(names)}: give files whose names differ "
            "before their ending and have letters, digits, `.`, `_` and `-`"
        )
    return {f"test.{name}": files for name, files in zip(names, tests, strict=True)}


def _check(role: str, files: tuple[Path, Path], pair: str) -> None:
    """Raise InputError where a file is missing and, for en-tree, where the two are not one treebank."""
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}, for --{role}, is no file: give two files that exist")
    if sides(pair)[1] != TREE:
        return
    if not files[0].samefile(files[1]) or file.suffix != ".mrg":
        raise InputError(
            f"--{role} is {files[0]} and {files[1]}: for {pair} give one treebank in Penn bracketing twice, with a "
            "name that ends in .mrg; sentences and trees are made of it"
        )
    if not sum(1 for _ in read_trees(read_lines(file), str(file))):
        raise InputError(f"{file}, for --{role}, holds no tree: give a treebank in Penn bracketing")


def _doubts(role: str, files: tuple[Path, Path], training: tuple[Path, Path]) -> Iterator[str]:
    """Yield what is doubtful in a parallel text: pairs without text or translation, training lines held out, too.

    Raises InputError where it is no parallel text, or no text.
    """
    pairs = empty = equal = 0
    for pairs, lines in enumerate(parallel(*files), 1):
        for file, line in zip(files, lines, strict=True):
            if "\0" in line:
                raise InputError(f"{file}, line {pairs:,}, holds a NUL byte, as UTF-16 does: convert it to UTF-8")
            if len(line) > LONGEST:
                raise InputError(f"{file}, line {pairs:,}, has {len(line):,} characters: give one segment per line")
        empty += not all(map(str.strip, lines))
        equal += lines[0] == lines[1] != ""
    for count, what in ((empty, "an empty side"), (equal, "equal sides")):
        if 2 * count > pairs:
            yield f"{count:,} of the {pairs:,} pairs for --{role} have {what}"
    for path, trained in zip(files, training, strict=True) if role != "train" else ():
        known = {line for line in read_lines(path) if line.strip()}
        if shared := len(known.intersection(read_lines(trained))):
            yield f"{shared:,} of {len(known):,} different lines of {path} are also in {trained}"


def identified(data: DataSettings) -> DataSettings:
    """Return the settings with the sha256 of every local file; raise InputError where one is missing or was edited.

    A catalog may give a file's number of lines in place of its sha256. With the sha256 in the configuration, later
    stages run again when the file changes.
    """
    content = data.model_dump()
    content["test"] = [text.model_dump() for text in data.test]
    for text in (*content["train"], content["valid"], *content["test"]):
        for side in (text["source"], text["target"]):
            if side["path"] is not None:
                path = verified(MemberSettings.model_validate(side))
                side["sha256"] = side["sha256"] or sha256_of(path)
    return DataSettings.model_validate(content)


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
