"""Fetch the corpora's archives, verify them, and write their texts as plain files, one segment per line: data/raw/.

Archives are kept under the state root, complete and verified, or as partial files that the next run resumes.
"""

import hashlib
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import write_json, writing
from nmt.errors import InputError
from nmt.parsing.trees import normalise, read_trees
from nmt.schema import TREE
from nmt.text.parallel_text import decode, read_lines
from pipeline.config.corpora import DataSettings, MemberSettings
from pipeline.config.paths import RAW, raw, state_root
from pipeline.config.sections import load_section
from pipeline.data import user_text
from pipeline.data.archives import BROKEN, members, plain
from pipeline.data.fetch import obtain

CHUNK = 1 << 20  # bytes
Stats = dict[str, Any]


def run() -> None:
    data = load_section("data", DataSettings)
    archives = obtain(data.archives, state_root())
    with writing(RAW, folder=True) as folder:
        write_json(folder / "stats.json", unpack(data, archives, folder))


def unpack(data: DataSettings, archives: Mapping[str, Path], folder: Path) -> Stats:
    """Write every text of `data` into `folder` as `<role>.<name>.<language>`; return the content of stats.json.

    Raises InputError for a broken archive, a missing member, text that is not UTF-8 or has another checksum, an empty
    corpus, and two sides with different numbers of lines.
    """
    sides: dict[str, MemberSettings] = {}
    for role, text in data.texts:
        sides[raw(role, text.name, data.source).name] = text.source
        sides[raw(role, text.name, data.target).name] = text.target
    _extract(sides, archives, folder)
    files = {output: _examine(folder / output, side.place) for output, side in sides.items()}
    for output, side in sides.items():
        for check, expected in (("sha256", side.sha256), ("md5", side.md5)) if side.archive else ():
            if expected not in (None, actual := files[output][check]):
                raise InputError(f"{side.place} has the {check} {actual} as plain text, not the catalog's {expected}")
    if data.target != TREE:
        return {"pairs": _count_pairs(data, files), "files": files}
    removed = {}
    for role, text in data.texts:
        source, target = (folder / raw(role, text.name, language).name for language in (data.source, data.target))
        removed[f"{role}.{text.name}"] = _split(source, target, text.target.place)
    files = {output: _examine(folder / output, side.place) for output, side in sides.items()}
    return {"pairs": _count_pairs(data, files), "files": files, "removed": removed}


def _split(source: Path, target: Path, name: str) -> Counter[str]:
    """Replace `source` by sentences and `target`, a treebank, by its normalised trees; return what was removed.

    Both are one line a tree; trees of traces alone are left out. `name` is the treebank's, for messages. Raises
    InputError with file and line where the bracketing is wrong.
    """
    removed = Counter[str]()
    with (
        writing(target) as normalised,
        source.open("w", encoding="utf-8", newline="\n") as words,
        normalised.open("w", encoding="utf-8", newline="\n") as trees,
    ):
        for tree in read_trees(read_lines(target), name):
            if (bare := normalise(tree, removed)) is not None:
                words.write(" ".join(bare.words()) + "\n")
                trees.write(f"{bare}\n")
    return removed


def _extract(sides: Mapping[str, MemberSettings], archives: Mapping[str, Path], folder: Path) -> None:
    """Write the plain text of each side to `folder`, under its name there."""
    for archive, path in archives.items():
        outputs: dict[str, list[Path]] = {}
        for output, side in sides.items():
            if side.archive == archive:
                outputs.setdefault(str(side.member), []).append(folder / output)
        try:
            for name, stream in members(path, outputs):
                first, *others = outputs[name]
                with first.open("wb") as text:
                    shutil.copyfileobj(plain(stream, name), text)
                for other in others:
                    shutil.copyfile(first, other)
        except BROKEN as error:
            raise InputError(f"{path} is broken ({error}): remove it, and run again to fetch it anew") from error
    for output, side in sides.items():
        if side.path is not None:
            try:
                with user_text.verified(side).open("rb") as file, (folder / output).open("wb") as text:
                    shutil.copyfileobj(plain(file, side.path), text)
            except BROKEN as error:
                raise InputError(f"{side.path} is broken ({error}): make it again") from error


def _examine(path: Path, place: str) -> Stats:
    """Return a text's counts and checksums; raise InputError with its `place` where it is not UTF-8."""
    lines = size = 0
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK) + file.readline():
            lines += len(decode(chunk, place, lines, size))
            size += len(chunk)
            sha256.update(chunk)
            md5.update(chunk)
    return {"lines": lines, "bytes": size, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}


def _count_pairs(data: DataSettings, files: Mapping[str, Stats]) -> dict[str, int]:
    """Return the number of lines of each text; raise InputError where its sides or its catalog have another."""
    pairs: dict[str, int] = {}
    for role, text in data.texts:
        names = (raw(role, text.name, language).name for language in (data.source, data.target))
        source, target = (files[name]["lines"] for name in names)
        where = [text.source.place, text.target.place]
        if source != target:
            counted = f"{where[0]} has {source:,} lines and {where[1]} {target:,}"
            raise InputError(f"{counted}: both must have as many, line n of one translating line n of the other")
        for side in (text.source, text.target):
            if side.lines not in (None, source):
                counted = f"{side.place} has {source:,} segments where the catalog says {side.lines:,}"
                raise InputError(f"{counted}: make it again")
        if not source:
            raise InputError(f"{where[0]} and {where[1]} are empty: {text.name} needs at least one line")
        pairs[f"{role}.{text.name}"] = source
    return pairs
