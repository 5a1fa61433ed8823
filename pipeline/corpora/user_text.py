"""A user's own plain text files as a corpus: linked into data/local/, checked, and written down as a catalog."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.common.files import sha256_of, writing
from nmt.config import InputError
from pipeline.corpora.plain_text import Malformed, count_lines

LOCAL = Path("data/local")
ROLES = ("train", "valid", "test")
_PACKED = (".gz", ".tgz", ".zip", ".bz2", ".xz", ".zst", ".tar", ".sgm", ".sgml")


def add(
    name: str,
    pair: str,
    texts: Mapping[str, tuple[Path, Path]],
    description: str,
    force: bool,
    catalogs: Path,
) -> Path:
    """Write the catalog `name` of the source and target files of every role; return its path.

    The files stay where they are: data/local/<name>/ links to them, and their sha256 is kept, so that an edit is
    noticed. Raises InputError, having written nothing, for a name that is taken (without `force`) or no name, for a
    file that is missing, empty, packed or not UTF-8, and for two sides with different numbers of lines.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"`{name}` cannot name a catalog: take letters, digits, `.`, `_` and `-`")
    catalog, folder = catalogs / f"{name}.yaml", LOCAL / name
    for taken in (catalog, folder):
        if taken.exists() and not force:
            raise InputError(f"{taken} exists: choose another name, or replace it with --force")
    languages = pair.split("-")
    files: dict[str, Path] = {}
    content: dict[str, Any] = {}
    for role in ROLES:
        _check(role, texts[role])
        sides = {}
        for side, language, file in zip(("source", "target"), languages, texts[role], strict=True):
            link = folder / f"{role}.{language}"
            files[link.name] = file.resolve()
            sides[side] = {"path": link.as_posix(), "sha256": sha256_of(file)}
        text = {"name": f"{name}-{role}", **sides}
        content[role] = [text] if role == "train" else text
    described = {"description": description or f"{name}: local files, {pair}", "pairs": {pair: content}}
    with writing(folder) as temporary:
        temporary.mkdir()
        for link_name, file in files.items():
            (temporary / link_name).symlink_to(file)
    with writing(catalog) as temporary:
        temporary.write_text(yaml.safe_dump(described, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return catalog


def _check(role: str, sides: tuple[Path, Path]) -> None:
    """Raise InputError where the two files are not a parallel text."""
    counts = []
    for file in sides:
        if not file.is_file():
            raise InputError(f"{file}, for --{role}, is no file: give two plain text files")
        if file.suffix in _PACKED:
            raise InputError(f"{file}, for --{role}, is packed or marked up: give plain text, one segment a line")
        try:
            counts.append(count_lines(file))
        except Malformed as error:
            raise InputError(f"{file} {error}; save it as UTF-8") from error
    if counts[0] != counts[1]:
        raise InputError(
            f"{sides[0]} has {counts[0]:,} lines and {sides[1]} {counts[1]:,}: line n of one must translate "
            f"line n of the other"
        )
    if not counts[0]:
        raise InputError(f"{sides[0]} and {sides[1]} are empty: --{role} needs at least one line")
