"""Fetch the corpora's archives, verify them, and write their texts as plain files, one segment per line: data/raw/.

Archives are kept under the state root, complete and verified, or as partial files that the next run resumes.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import sha256_of, writing
from nmt.config import InputError
from pipeline.common import stage
from pipeline.common.paths import RAW
from pipeline.common.settings import DataSettings, MemberSettings, load_section
from pipeline.corpora import treebanks, user_text
from pipeline.corpora.archive_cache import obtain
from pipeline.corpora.archives import Reader, members, plain_chunks
from pipeline.corpora.disk import explain_full_disk
from pipeline.corpora.fetch import Patience, check_room
from pipeline.corpora.plain_text import LineCounter, Malformed

PATIENCE = Patience()

Stats = dict[str, Any]


def run(tracker: stage.Tracker) -> None:
    """Write data/raw."""
    data = load_section("data", DataSettings)
    with explain_full_disk("what is fetched so far is kept", RAW, stage.state_root()):
        archives = obtain(data.archives, stage.state_root(), PATIENCE)
        with writing(RAW) as folder:
            folder.mkdir()
            stats = unpack(data, archives, folder)
            stage.write_json(folder / "stats.json", stats)
    tracker.metrics({f"raw_pairs.{name}": float(lines) for name, lines in stats["pairs"].items()})


def unpack(data: DataSettings, archives: dict[str, Path], folder: Path) -> Stats:
    """Write every text of `data` into `folder` as `<role>.<name>.<language>`; return the content of stats.json.

    Raises InputError for a broken or hostile archive, a missing member, text that is not UTF-8 or has another
    checksum, an empty corpus, and two sides with different numbers of lines.
    """
    sides: dict[str, MemberSettings] = {}
    for role, text in data.texts:
        sides[f"{role}.{text.name}.{data.source}"] = text.source
        sides[f"{role}.{text.name}.{data.target}"] = text.target
    files: dict[str, Stats] = {}
    for name, path in archives.items():
        of_archive = {output: side for output, side in sides.items() if side.archive == name}
        files |= _unpack_archive(name, path, of_archive, folder)
    for output, side in sides.items():
        if side.path is not None:
            try:
                with user_text.verified(side).open("rb") as file:
                    files[output] = _write(file, side.path, folder / output)
            except Malformed as error:
                raise InputError(f"{error}; fix it, then add it again with `wmt catalog add`") from error
    removed = _split_treebanks(data, folder, files)
    pairs = _count_pairs(data, files)
    found = {"pairs": pairs, "files": {output: files[output] for output in sides}}
    return {**found, "removed": removed} if removed else found


def _count_pairs(data: DataSettings, files: Mapping[str, Stats]) -> dict[str, int]:
    """Return the number of lines of each text; raise InputError where its sides or its catalog have another."""
    pairs: dict[str, int] = {}
    for role, text in data.texts:
        stem = f"{role}.{text.name}"
        source, target = (files[f"{stem}.{language}"]["lines"] for language in (data.source, data.target))
        where = [text.source.place, text.target.place]
        if source != target:
            raise InputError(
                f"{where[0]} has {source:,} lines and {where[1]} {target:,}: the two sides of {text.name} must have "
                f"as many, line n of one translating line n of the other"
            )
        for side in (text.source, text.target):
            if side.lines not in (None, source):
                raise InputError(
                    f"{side.place} has {source:,} segments where the catalog says {side.lines:,}: make it again"
                )
        if not source:
            raise InputError(f"{where[0]} and {where[1]} are empty: {text.name} needs at least one line")
        pairs[stem] = source
    return pairs


def _split_treebanks(data: DataSettings, folder: Path, files: dict[str, Stats]) -> dict[str, dict[str, int]]:
    """Make sentences and trees of treebanks; update `files` and return what was removed by text."""
    removed: dict[str, dict[str, int]] = {}
    for role, text in data.texts if data.target == "tree" else ():
        treebank = text.target.path or str(text.target.member)
        paths = [folder / f"{role}.{text.name}.{language}" for language in (data.source, data.target)]
        trees, counts = treebanks.split(paths[0], paths[1], treebank)
        removed[f"{role}.{text.name}"] = dict(counts)
        for path in paths:
            with path.open("rb") as file:
                stats: Stats = {"lines": trees, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
                files[path.name] = {**stats, "md5": hashlib.file_digest(file, "md5").hexdigest()}
    return removed


def _unpack_archive(name: str, path: Path, sides: dict[str, MemberSettings], folder: Path) -> dict[str, Stats]:
    """Write the members of one archive that `sides` (output -> member) names to their outputs."""
    outputs: dict[str, list[str]] = {}
    for output, side in sides.items():
        outputs.setdefault(str(side.member), []).append(output)
    files: dict[str, Stats] = {}
    try:
        for member in members(path, outputs):
            first, *others = outputs[member.name]
            check_room(folder, member.size * len(outputs[member.name]))
            stats = _write(member, member.name, folder / first)
            for output in (first, *others):
                if output != first:
                    shutil.copyfile(folder / first, folder / output)
                files[output] = stats
                for algorithm, expected in (("sha256", sides[output].sha256), ("md5", sides[output].md5)):
                    if expected not in (None, stats[algorithm]):
                        raise InputError(
                            f"the archive {name} ({path}): {member.name} has the {algorithm} {stats[algorithm]} as "
                            f"plain text where the catalog says {expected}"
                        )
    except Malformed as error:
        raise InputError(f"the archive {name} ({path}) {error}; fix the catalog, or remove the archive") from error
    return files


def _write(reader: Reader, name: str, output: Path) -> Stats:
    """Write the plain text of `reader` to `output`; return its counts and checksums. Raise Malformed with `name`."""
    lines, size = LineCounter(), 0
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        with output.open("wb") as file:
            for chunk in plain_chunks(reader, name):
                file.write(chunk)
                lines.feed(chunk)
                sha256.update(chunk)
                md5.update(chunk)
                size += len(chunk)
        count = lines.end()
    except Malformed as error:
        raise Malformed(f"{name} {error}") from error
    return {"lines": count, "bytes": size, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}
