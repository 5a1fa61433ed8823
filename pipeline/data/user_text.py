"""The user's own text files or treebanks as a corpus: checked, linked or made plain in data/local/, in a catalog."""

import os
import re
import shutil
import sqlite3
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from nmt.common.files import output_file, sha256_of, write_text, writing
from nmt.errors import InputError, tell
from nmt.parsing.trees import read_trees
from nmt.schema import TREE
from nmt.text.parallel_text import is_blank, parallel, read_lines
from nmt.text.scripts import tokens
from pipeline.config.corpora import NAME, DataSettings, MemberSettings, sides, valid_pair
from pipeline.config.paths import CATALOGS, LOCAL, RAW, TOKENIZED, TRANSLATIONS
from pipeline.data import text_files
from pipeline.data.text_files import Bad, Files, Pair
from pipeline.data.warnings import HELD_OUT, Placed, warnings

MADE = "made"  # the folder, inside a catalog's, of plain copies; all else there is a link
MOST_WORDS = 256  # of a side of a pair that is held out: training drops documents, and they are slow to decode
NAMED = 3  # bad lines that a refusal names
INSERT = "INSERT OR IGNORE INTO pairs VALUES (?)"


class Changes(NamedTuple):
    """What is done to a text that is added."""

    holdout: int | None = None  # pairs to take from the training text for each missing set, validation or test
    skip_bad: bool = False
    dedup: bool = False


def add(
    name: str,
    pair: str,
    paths: Mapping[str, Sequence[Path]],
    description: str,
    changes: Changes,
    *,
    force: bool,
    copy: bool = False,
) -> Path:
    """Write the catalog `name` of files by role (train, valid, test); return its path.

    data/local/<name>/ links to plain files that do not change, and has copies of all else, and of these with
    `copy`. Their sha256 is in the catalog, so that later stages notice an edit. Raises InputError, having written
    nothing, where the name is invalid or exists (without `force`), a file is missing, empty or broken, lines are
    bad, two sides differ in their number, or a treebank holds no tree or a wrong bracket. Text that makes a score
    worthless gets a warning. For the pair en-tree the two files of a role are one treebank: sentences and trees are
    made of it.
    """
    catalog, folder = _free(name, pair, force)
    output_file(catalog, *chain(*paths.values()))
    texts = {role: _texts(role, given, pair) for role, given in paths.items() if given}
    lacking = [role for role in HELD_OUT if role not in texts]
    trees = sides(pair)[1] == TREE
    if bool(lacking) != bool(changes.holdout):
        raise InputError("give --valid and --test, or --holdout in place of one or both")
    if trees and any(changes):
        raise InputError("--holdout, --skip-bad and --dedup are for pairs of languages: divide the treebank")
    with writing(folder, folder=True) as temporary:
        try:
            placed = _place(temporary, texts, pair, changes, copy)
        except sqlite3.Error as error:
            raise InputError(f"--dedup keeps its notes in {tempfile.gettempdir()}, and {error}: free space") from error
        if lacking:
            _hold_out(placed, temporary / MADE, pair, changes.holdout or 0, _held_out_before(folder, pair, lacking))
        for warning in () if trees else warnings(placed, sides(pair)):
            tell(f"catalog: {warning}")
        described = {role: [_described(name, both, temporary, folder) for both in placed[role]] for role in placed}
        content = {role: items if role == "train" or items[1:] else items[0] for role, items in described.items()}
    entry = {"description": description or f"{name}: local files, {pair}", "pairs": {pair: content}}
    write_text(catalog, yaml.safe_dump(entry, sort_keys=False, allow_unicode=True))
    return catalog


def _described(name: str, both: Sequence[Path], temporary: Path, folder: Path) -> dict[str, Any]:
    """Return a catalog's entry for a text in `temporary`, which becomes `folder`."""
    files = [{"path": (folder / path.relative_to(temporary)).as_posix(), "sha256": sha256_of(path)} for path in both]
    role, _, rest = both[0].stem.partition(".")
    return {"name": rest or f"{name}-{role}", "source": files[0], "target": files[1]}


def _free(name: str, pair: str, force: bool) -> tuple[Path, Path]:
    """Return the paths of a new catalog and of its folder; raise InputError where they may not be written."""
    try:
        valid_pair(pair)
    except ValueError as error:
        raise InputError(f"--pair is `{pair}`: {error}") from error
    # Not what YAML reads as something else, such as `null`, `yes` or a date.
    if not re.fullmatch(NAME, name) or yaml.safe_dump(name).startswith("'"):
        rule = "take a word of letters, digits, `.`, `_` and `-` that YAML reads as text, not as a number or `null`"
        raise InputError(f"`{name}` cannot name a catalog: {rule}")
    catalog, folder = CATALOGS / f"{name}.yaml", LOCAL / name
    for path in (catalog, folder):
        if path.exists() and not force:
            raise InputError(f"{path} exists: choose another name, or replace it with --force")
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    added = catalog.read_text(encoding="utf-8") if catalog.exists() else ""  # has the sha256 of what was made
    edited = (path for path in files if path.parent != folder / MADE or (added and sha256_of(path) not in added))
    if owned := sorted(map(str, edited)):
        raise InputError(f"{owned[0]} is not as its catalog says, and --force would delete it: move it elsewhere")
    return catalog, folder


def _texts(role: str, paths: Sequence[Path], pair: str) -> dict[str, Files]:
    """Return the texts of a role by name: `train`, or `train-1` and on, or `test.news` and on by their first files.

    Raises InputError where a file is missing or alone, or no treebank given twice, where two test sets have one name,
    and where a name has characters that a catalog's may not have.
    """
    rest, texts = list(paths), list[Files]()
    while rest:
        texts.append(tuple(rest[: 1 if text_files.holds_both(rest[0]) else 2]))
        del rest[: len(texts[-1])]
    for files in texts:
        if missing := [file for file in files if not file.is_file()]:
            raise InputError(f"{missing[0]}, for --{role}, is no file: give files that exist")
        if text_files.holds_both(files[-1]) != (len(files) == 1):
            raise InputError(
                f"{files[0]}, for --{role}, is one side: give two files (a treebank twice), a .tsv or a .tmx"
            )
        _check_sides(role, files, pair)
    if len(texts) == 1:
        return {role: texts[0]}
    if role == "valid":
        raise InputError(f"--{role} is given {len(texts)} times: give it once")
    if role == "train":
        return {f"{role}-{number}": files for number, files in enumerate(texts, start=1)}
    names = [text_files.unpacked(files[0]).stem for files in texts]
    if len({*names}) < len(names) or not all(re.fullmatch(NAME, name) for name in names):
        rule = "give files whose names differ before their ending and have letters, digits, `.`, `_` and `-`"
        raise InputError(f"several test sets are named by their first files, here {', '.join(names)}: {rule}")
    return {f"{role}.{name}": files for name, files in zip(names, texts, strict=True)}


def _check_sides(role: str, files: Files, pair: str) -> None:
    """Raise InputError where two files are named as the other direction's or, for trees, are not one treebank."""
    if [text_files.unpacked(file).suffix for file in files] == [f".{language}" for language in sides(pair)[::-1]]:
        raise InputError(f"--{role} is {files[0]} and {files[1]}: for {pair} give the {sides(pair)[0]} file first")
    if sides(pair)[1] != TREE:
        return
    if not files[0].samefile(files[-1]) or files[0].suffix != ".mrg":
        rule = f"for {pair} give one treebank in Penn bracketing twice, with a name that ends in .mrg"
        raise InputError(f"--{role} is {files[0]} and {files[-1]}: {rule}; sentences and trees are made of it")
    if not sum(1 for _ in read_trees(read_lines(files[0]), str(files[0]))):
        raise InputError(f"{files[0]}, for --{role}, holds no tree: give a treebank in Penn bracketing")


def _place(folder: Path, texts: Mapping[str, Mapping[str, Files]], pair: str, changes: Changes, copy: bool) -> Placed:
    """Check all texts; link plain files that do not change into `folder`, write all else into its folder `MADE`."""
    trees, languages = sides(pair)[1] == TREE, sides(pair)
    placed: Placed = {role: [] for role in ("train", *HELD_OUT)}
    # A database in a file that ends with the connection: memory does not grow with the text.
    with closing(sqlite3.connect("")) as seen:
        seen.executescript("PRAGMA journal_mode=OFF; CREATE TABLE pairs (digest INTEGER PRIMARY KEY)")
        named = ((role, *text) for role, given in texts.items() for text in given.items())
        for role, stem, files in named:
            repeats = seen if role == "train" and changes.dedup else None
            lines = iter(()) if trees else _good(files, languages, changes.skip_bad, repeats)
            changed = changes.skip_bad or (role == "train" and any(changes))
            # A catalog's own copies do not outlive it, nor do outputs the next run: links to them would dangle. DVC may
            # have made an output a link into its cache.
            above = {folder for file in files for path in (file.absolute(), file.resolve()) for folder in path.parents}
            ours = any(made.resolve() in above for made in (LOCAL, RAW, TOKENIZED, TRANSLATIONS))
            changed |= ours and not trees
            changed |= len(files) == 1 or any(
                text_files.is_packed(file) or file.name.startswith("train.tags.") for file in files
            )
            if changed or (not trees and any(map(text_files.has_crlf, files))):
                both = [folder / MADE / f"{stem}.{language}" for language in languages]
                _write(both, lines)
            else:
                deque(lines, maxlen=0)
                copied = copy or ours
                inside = folder / MADE if copied else folder
                inside.mkdir(exist_ok=True)
                both = [inside / f"{stem}.{'mrg' if trees else language}" for language in languages]
                for placed_file, file in dict(zip(both, files, strict=True)).items():
                    if copied:
                        shutil.copyfile(file, placed_file)
                    else:
                        placed_file.symlink_to(file.resolve())
            placed[role].append(both)
    return placed


def _good(files: Files, languages: tuple[str, str], skip_bad: bool, seen: sqlite3.Connection | None) -> Iterator[Pair]:
    """Yield the pairs of a text that are not `seen`, and say what was left out.

    Without `skip_bad`, raises InputError that names the first bad lines. A line without text on a side is bad only
    with it: later stages drop it.
    """
    counts, first, named = Counter[str](), dict[str, str](), list[str]()
    unit = "unit" if text_files.is_tmx(files[0]) else "line"
    for number, pair in enumerate(text_files.pairs(files, languages), 1):
        if isinstance(pair, Bad):
            bad = pair
        elif skip_bad and any(map(is_blank, pair)):
            bad = Bad("one-sided", "has no text", is_blank(pair[1]))
        elif seen is not None and not seen.execute(INSERT, (_number("\n".join(pair)),)).rowcount:
            bad = Bad("repeated", "has a pair that was there before")
        else:
            yield pair
            continue
        where = f"{files[bad.side % len(files)]}, {unit} {number:,}, {bad.what}"
        counts[bad.reason] += 1
        first.setdefault(bad.reason, where)
        if not skip_bad and bad.reason != "repeated":
            named.append(where)
            if len(named) == NAMED:
                break
    if named:
        raise InputError(f"{'; '.join(named)}: correct such lines, or leave them out with --skip-bad")
    for reason, count in counts.items():
        tell(f"catalog: {count:,} left out, {reason}; the first: {first[reason]}")


def _hold_out(placed: Placed, folder: Path, pair: str, count: int, kept: Mapping[str, tuple[str, Pair]]) -> None:
    """Move `count` pairs of the training text into each missing set, and leave out others that share a side with one.

    A hash of its source assigns a pair to validation or test, of which each gets the pairs with the smallest hashes.
    Sources that a set had before (`kept`: role and pair by source) come first, with the same translation where the text
    still has it: text that is added later moves nothing.
    """
    best: dict[str, dict[tuple[bool, int], Pair]] = {role: {} for role in HELD_OUT if not placed[role]}
    total = 0
    for source, target in chain.from_iterable(parallel(*both) for both in placed["train"]):
        total += 1
        key = _key(source)
        role, before = kept.get(key) or (HELD_OUT[_number(key) % 2], None)
        longest = max(len(tokens(*side)) for side in zip((source, target), sides(pair), strict=True))
        if role in best and not is_blank(source) and not is_blank(target) and (key in kept or longest <= MOST_WORDS):
            rank = key not in kept, _number(key)
            if (source, target) == before:
                best[role][rank] = before
            best[role].setdefault(rank, (source, target))
            if len(best[role]) > 2 * count:
                best[role] = dict(sorted(best[role].items())[:count])
    for role, found in best.items():
        if len(found) < count:
            raise InputError(
                f"--holdout is {count:,}, but the text has {len(found):,} sentences of at most {MOST_WORDS} words "
                f"(without spaces: characters) for --{role}: lower it"
            )
        placed[role].append([folder / f"{role}.{language}" for language in sides(pair)])
        _write(placed[role][0], (chosen for _, chosen in sorted(found.items())[:count]))
        total -= count
    sets = [both for role in HELD_OUT for both in placed[role]]
    held = [{_key(line) for both in sets for line in read_lines(both[side])} for side in (0, 1)]
    for both in placed["train"]:
        rest = [path.with_name(f"{path.name}.rest") for path in both]
        left = (pair for pair in parallel(*both) if not {_key(pair[0])} & held[0] | {_key(pair[1])} & held[1])
        total -= _write(rest, left)
        for path, new in zip(both, rest, strict=True):
            new.replace(path)
    held_out = f"{count:,} pairs held out for {'each of ' if len(best) > 1 else ''}{' and '.join(best)}"
    tell(f"catalog: {held_out}, {total:,} left out that share a side with a set")


def _held_out_before(folder: Path, pair: str, roles: Iterable[str]) -> dict[str, tuple[str, Pair]]:
    """Return the pairs of a catalog's sets, by source, with their role."""
    files = {role: [folder / MADE / f"{role}.{language}" for language in sides(pair)] for role in roles}
    there = {role: both for role, both in files.items() if all(path.exists() for path in both)}
    return {_key(lines[0]): (role, lines) for role, both in there.items() for lines in parallel(*both)}


def _write(both: Sequence[Path], lines: Iterable[Pair]) -> int:
    """Write both sides of a text; return the number of pairs. Raises InputError where there is none."""
    count = 0
    both[0].parent.mkdir(exist_ok=True)
    with both[0].open("wb") as source, both[1].open("wb") as target:
        for pair in lines:
            count += 1
            source.write(f"{pair[0]}\n".encode())
            target.write(f"{pair[1]}\n".encode())
    if not count:
        raise InputError(f"no pair is left for {both[0].stem}: give a text with more")
    return count


def _key(line: str) -> str:
    return " ".join(line.split())


def _number(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), signed=True)


def with_checksums(data: DataSettings) -> DataSettings:
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
        raise InputError(f"{side.path} is missing: restore it, or make it as its catalog or `wmt catalog add` says")
    if side.sha256 is not None and (sha256 := sha256_of(path)) != side.sha256:
        remedy = (
            "run again" if side.lines else "restore it, or correct it in its catalog or by `wmt catalog add --force`"
        )
        raise InputError(f"{side.path} has the sha256 {sha256}, not {side.sha256}: it was edited; {remedy}")
    return path
