"""Copies of the repository: a run does not see what is edited in the original after the run began.

<state root>/runs/<run>/, which is also the folder of the run's record (pipeline/runs/record.py):
    repository/   HEAD and the changes of tracked files, with the original's DVC cache; `origin` is the original
    status/       the status files of the run's stages
    log           output of DVC and the stages
    lock          held by the process that runs DVC in the copy
    owner         held by the process that started the run, which may start several such processes one after the other
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nmt.common.files import read_yaml
from nmt.config import InputError
from pipeline.common.paths import CATALOGS, LOCAL, PARAMS
from pipeline.config.errors import validated
from pipeline.config.resolution import Params, read_params
from pipeline.config.rows import merge
from pipeline.runs.evidence import PLAIN_DIFF

KEPT = 3
"""Number of copies of failed or cancelled runs to keep; `clean` removes older ones."""


def repository(folder: Path) -> Path:
    """Return the path of the copy in a run's folder."""
    return folder / "repository"


def make(original: Path, folder: Path, changes: Mapping[str, Any]) -> Path:
    """Copy `original` into a run's folder, set values of params.yaml to `changes`, and return the copy's path.

    `overrides` are merged into those of params.yaml. An existing copy is returned unchanged: the run resumes in it.
    Raises InputError where `original` is no git repository with a commit, or where the run needs a catalog that git
    does not track: such a file is not copied.
    """
    target = repository(folder)
    if target.exists():
        return target
    revision = git(original, "rev-parse", "HEAD", check=False)
    if revision.returncode != 0:
        said = " ".join(revision.stderr.decode(errors="replace").split())
        raise InputError(
            f"{original} is no git repository with a commit, and runs work in copies of one: commit first, or do what "
            f"git says: {said}"
        )
    head = revision.stdout.decode().strip()
    making = folder / f"making-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    git(original, "clone", "--quiet", "--no-checkout", "--no-tags", str(original), str(making))
    git(making, "checkout", "--quiet", "--detach", head)
    difference = git(original, "diff", *PLAIN_DIFF, head).stdout
    if difference:
        # Also applied to the index: `dvc exp save` leaves out new files that are not in it.
        git(making, "apply", "--index", "--whitespace=nowarn", "-", content=difference)
    _set_params(making / PARAMS, changes)
    _check_tracked(original, making)
    for path in (original / LOCAL).rglob("*"):
        # The user's own text, which git ignores.
        link = making / path.relative_to(original)
        if path.is_file() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
    _share_cache(original, making)
    for key in ("user.name", "user.email"):
        identity = git(original, "config", key, check=False).stdout.decode().strip()
        git(making, "config", key, identity or "wmt-transformer")
    making.rename(target)
    return target


def git(
    folder: Path, *words: str, content: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Run git in `folder`; raises ChildProcessError with git's message if it fails."""
    # Git hooks set these variables for their own repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", *words], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    if check and result.returncode != 0:
        raise ChildProcessError(f"git {words[0]} in {folder}: {result.stderr.decode(errors='replace').strip()}")
    return result


def _set_params(params: Path, changes: Mapping[str, Any]) -> None:
    """Set values of params.yaml and keep its comments: `dvc exp apply` copies the file to the original.

    Raises InputError where the file is invalid.
    """
    from ruamel.yaml import YAML

    validated(Params, read_params(params), PARAMS)
    editor = YAML()
    editor.width = 4096
    content = editor.load(params)
    for key, value in changes.items():
        content[key] = merge(content.get(key) or {}, value) if key == "overrides" else value
    if changes:
        with params.open("w", encoding="utf-8") as file:
            editor.dump(content, file)


def _check_tracked(original: Path, copy: Path) -> None:
    """Raise InputError for a catalog that the run needs and that git does not track."""
    name = read_params(copy / PARAMS).get("corpus")
    while isinstance(name, str):
        path = CATALOGS / f"{name}.yaml"
        try:
            content = read_yaml(original / path)
        except (OSError, InputError):
            content = None
        if not isinstance(content, dict):
            # The stage `resolve` reports what is wrong with it.
            return
        checksums = content.get("checksums")
        for needed in (path, *([CATALOGS / checksums] if isinstance(checksums, str) else [])):
            if (original / needed).is_file() and not (copy / needed).exists():
                raise InputError(
                    f"{needed} is not tracked by git, and files that git does not track are not copied into a run's "
                    f"copy of the repository: `git add {needed}`"
                )
        name = content.get("extends")


def _share_cache(original: Path, copy: Path) -> None:
    """Set the copy's DVC cache to the original's; copy DVC's settings for this machine."""
    from dvc.repo import Repo

    with Repo(str(original)) as repo:
        cache = repo.cache.local_cache_dir
    local = original / ".dvc/config.local"
    if local.exists():
        shutil.copyfile(local, copy / ".dvc/config.local")
    with Repo(str(copy)) as repo, repo.config.edit("local") as settings:
        settings["cache"]["dir"] = cache
        settings["core"]["autostage"] = True


@contextmanager
def held(folder: Path, name: str = "lock") -> Iterator[None]:
    """Hold a run's folder; waits for another process that does. The kernel releases it when this process ends."""
    lock = FileLock(folder / name, fallback_to_soft=False)
    while not lock.is_locked:
        folder.mkdir(parents=True, exist_ok=True)
        # `clean` may remove the folder at any time before it is locked.
        with suppress(FileNotFoundError):
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def clean(runs: Path) -> None:
    """Remove the copies of runs that are over, except the newest few. Nobody can take one while it is removed."""
    times: dict[Path, float] = {}
    for path in runs.glob("*/lock"):
        with suppress(FileNotFoundError):
            if repository(path.parent).exists() or not is_recorded(path.parent):
                times[path.parent] = path.parent.stat().st_mtime
    over = 0
    for folder in sorted(times, key=lambda path: times[path], reverse=True):
        with suppress(Timeout, FileNotFoundError), ExitStack() as locks:
            for name in ("lock", "owner"):
                locks.enter_context(FileLock(folder / name, blocking=False, fallback_to_soft=False))
            over += 1
            if over > KEPT:
                remove(folder)


def is_recorded(folder: Path) -> bool:
    """Return whether the folder holds the record of a run (pipeline/runs/record.py)."""
    return (folder / "run.json").exists()


def remove(folder: Path) -> None:
    """Remove the copy of a run that is over, and its whole folder if the run has no record.

    A path is renamed before it is removed: a process that takes the folder meanwhile sees no part of it.
    """
    copy = (repository(folder), folder / "status", *folder.glob("making-*"))
    for path in copy if is_recorded(folder) else (folder,):
        removed = path.with_name(f"{path.name}.removed")
        shutil.rmtree(removed, ignore_errors=True)
        with suppress(FileNotFoundError):
            path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)
