"""Fetch the corpora's archives, verify them, and lay out their texts as plain files, one segment a line: data/raw/.

Archives are kept under the state root, whole and verified or as partial files that the next run goes on from. When
all are there, nothing is asked of the network.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import Any

from nmt.common.files import writing
from nmt.config import InputError
from pipeline import stage
from pipeline.config.settings import DataSettings, MemberSettings, ParallelSettings, load_section
from pipeline.corpora.archive_cache import obtain
from pipeline.corpora.archives import Reader, members, plain
from pipeline.corpora.disk import explain_full_disk
from pipeline.corpora.fetch import Patience, check_room
from pipeline.corpora.plain_text import Lines, Malformed

RAW = Path("data/raw")
PATIENCE = Patience()

Stats = dict[str, Any]


def run(tracker: stage.Tracker) -> None:
    """Section data -> data/raw/."""
    data = load_section("data", DataSettings)
    with explain_full_disk("what is fetched so far is kept", RAW, stage.state_root()):
        archives = obtain(data.archives, stage.state_root(), PATIENCE)
        with writing(RAW) as folder:
            folder.mkdir()
            stats = lay_out(data, archives, folder)
            stage.write_json(folder / "stats.json", stats)
    tracker.metrics({f"raw_pairs.{name}": float(lines) for name, lines in stats["pairs"].items()})


def lay_out(data: DataSettings, archives: dict[str, Path], folder: Path) -> Stats:
    """Write every text of `data` into `folder` as `<role>.<name>.<language>`; return what stats.json says.

    Raises InputError for a broken or hostile archive, a missing member, text that is not UTF-8 or not what its
    checksum says, an empty corpus, and two sides with different numbers of lines.
    """
    sides: dict[str, MemberSettings] = {}
    for role, text in _texts(data):
        sides[f"{role}.{text.name}.{data.source}"] = text.source
        sides[f"{role}.{text.name}.{data.target}"] = text.target
    files: dict[str, Stats] = {}
    for name, path in archives.items():
        of_archive = {output: side for output, side in sides.items() if side.archive == name}
        files |= _unpack(name, path, of_archive, folder)
    for output, side in sides.items():
        if side.path is not None:
            files[output] = _copy(side.path, side, folder / output)
    pairs = {}
    for role, text in _texts(data):
        stem = f"{role}.{text.name}"
        source, target = (files[f"{stem}.{language}"]["lines"] for language in (data.source, data.target))
        pairs[stem] = _paired(text, source, target)
    return {"pairs": pairs, "files": {output: files[output] for output in sides}}


def _texts(data: DataSettings) -> list[tuple[str, ParallelSettings]]:
    return [*(("train", text) for text in data.train), ("valid", data.valid), ("test", data.test)]


def _paired(text: ParallelSettings, source: int, target: int) -> int:
    """The number of pairs."""
    told = [side.path or f"{side.member} of the archive {side.archive}" for side in (text.source, text.target)]
    if source != target:
        raise InputError(
            f"{told[0]} has {source:,} lines and {told[1]} {target:,}: the two sides of {text.name} must have as many, "
            f"line n of one translating line n of the other"
        )
    if not source:
        raise InputError(f"{told[0]} and {told[1]} are empty: {text.name} needs at least one line")
    return source


def _unpack(name: str, path: Path, sides: dict[str, MemberSettings], folder: Path) -> dict[str, Stats]:
    """The members of one archive that `sides` (output -> member) names, each written to its outputs."""
    outputs: dict[str, list[str]] = {}
    for output, side in sides.items():
        outputs.setdefault(str(side.member), []).append(output)
    files: dict[str, Stats] = {}
    try:
        for member in members(path, outputs):
            check_room(folder, member.size * len(outputs[member.name]))
            for output in outputs[member.name]:
                if first := next((one for one in outputs[member.name] if one in files), None):
                    shutil.copyfile(folder / first, folder / output)
                    files[output] = files[first]
                else:
                    files[output] = _write(member, member.name, folder / output)
                _verify(files[output], sides[output], f"the archive {name} ({path}): {member.name}")
    except Malformed as error:
        raise InputError(f"the archive {name} ({path}) {error}; mend the catalog, or remove the archive") from error
    return files


class _Hashed:
    """A reader that knows the sha256 of what went through it."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.digest = hashlib.sha256()

    def read(self, size: int, /) -> bytes:
        chunk = self._reader.read(size)
        self.digest.update(chunk)
        return chunk


def _copy(name: str, side: MemberSettings, output: Path) -> Stats:
    """A local file, held to the sha256 that it had when it was added."""
    path = Path(name)
    if not path.exists() and not path.is_absolute():
        # DVC's experiments run in a copy of the repository, and what git ignores stays in the original.
        path = Path(os.environ.get("DVC_ROOT", ".")) / name
    if not path.is_file():
        raise InputError(f"{name} is missing: restore it, or add it again with `wmt catalog add`")
    with path.open("rb") as file:
        reader = _Hashed(file)
        try:
            stats = _write(reader, name, output)
        except Malformed as error:
            raise InputError(f"{error}; mend it, then add it again with `wmt catalog add`") from error
    if reader.digest.hexdigest() != side.sha256:
        raise InputError(
            f"{name} has the sha256 {reader.digest.hexdigest()} where the catalog says {side.sha256}: it was edited; "
            f"add it again with `wmt catalog add --force`, or restore it"
        )
    return stats


def _write(reader: Reader, name: str, output: Path) -> Stats:
    """Write the plain text of `reader`, called `name`, to `output`; its lines, bytes and checksums.

    Raises Malformed, naming it, for text that is broken or not UTF-8.
    """
    lines, size = Lines(), 0
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    try:
        with output.open("wb") as file:
            for chunk in plain(reader, name):
                file.write(chunk)
                lines.feed(chunk)
                sha256.update(chunk)
                md5.update(chunk)
                size += len(chunk)
        count = lines.end()
    except Malformed as error:
        raise Malformed(f"{name} {error}") from error
    return {"lines": count, "bytes": size, "sha256": sha256.hexdigest(), "md5": md5.hexdigest()}


def _verify(stats: Stats, side: MemberSettings, where: str) -> None:
    """Raise InputError where a plain text is not the one that the catalog means."""
    for kind, wanted in (("sha256", side.sha256), ("md5", side.md5)):
        if wanted is not None and stats[kind] != wanted:
            raise InputError(f"{where} has the {kind} {stats[kind]} as plain text where the catalog says {wanted}")
