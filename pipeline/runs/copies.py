"""Working copies of the repository: what a run sees stays as it was when the run began, whatever is edited meanwhile.

<state root>/runs/<run>/
    repository/   HEAD and the changes of tracked files, with the original's DVC cache; `origin` is the original
    status/       the status files of the run's stages
    log           what DVC and the stages print
    lock          held while something works here
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from nmt.config import InputError
from pipeline.config.paths import CATALOGS, LOCAL, PARAMS
from pipeline.config.resolution import read_params
from pipeline.config.rows import merge

KEPT = 3
"""Copies of runs that failed or were cancelled, to look into; older ones go when the next run begins."""


def repository(folder: Path) -> Path:
    """Where the copy of a run stands."""
    return folder / "repository"


def make(original: Path, folder: Path, changes: Mapping[str, Any]) -> Path:
    """Copy `original` into a run's folder, with `changes` of params.yaml's values; returns the copy.

    `overrides` are laid over those in params.yaml. A copy that is there is taken as it is: the run goes on in it.
    Raises InputError where `original` is no git repository with a commit, or where the corpus needs a file that git
    does not track, which would not travel.
    """
    target = repository(folder)
    if target.exists():
        return target
    told = git(original, "rev-parse", "HEAD", check=False)
    if told.returncode != 0:
        raise InputError(f"{original} is no git repository with a commit: runs work in copies of one; commit first")
    head = told.stdout.decode().strip()
    making = folder / f"making-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    git(original, "clone", "--quiet", "--no-checkout", "--no-tags", str(original), str(making))
    git(making, "checkout", "--quiet", "--detach", head)
    difference = git(original, "diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", head).stdout
    if difference:
        # Added to the index too: what is new there would not be part of the experiment otherwise.
        git(making, "apply", "--index", "--whitespace=nowarn", "-", content=difference)
    _change(making / PARAMS, changes)
    _check_tracked(original, making)
    _bring_local(original, making)
    _use_cache_of(original, making)
    for key in ("user.name", "user.email"):
        identity = git(original, "config", key, check=False).stdout.decode().strip()
        git(making, "config", key, identity or "wmt-transformer")
    making.rename(target)
    return target


def git(
    folder: Path, *words: str, content: bytes | None = None, check: bool = True
) -> subprocess.CompletedProcess[bytes]:
    """Git in `folder`; raises OSError with what it said where it fails."""
    # Hooks and such set these for the repository they run in.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", *words], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    if check and result.returncode != 0:
        raise ChildProcessError(f"git {words[0]} in {folder}: {result.stderr.decode(errors='replace').strip()}")
    return result


def _change(params: Path, changes: Mapping[str, Any]) -> None:
    """Set values of params.yaml, leaving its comments, which `dvc exp apply` brings back to the user's."""
    from ruamel.yaml import YAML

    # It raises InputError for what is no mapping.
    read_params(params)
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
        if not (original / path).is_file():
            # `resolve` says what is wrong with it.
            return
        try:
            content = yaml.safe_load((original / path).read_bytes())
        except yaml.YAMLError:
            return
        if not isinstance(content, dict):
            return
        checksums = content.get("checksums")
        for needed in (path, *([CATALOGS / checksums] if isinstance(checksums, str) else [])):
            if (original / needed).is_file() and not (copy / needed).exists():
                raise InputError(
                    f"{needed} is not tracked by git, and what is not tracked does not travel into a run's copy of the "
                    f"repository: `git add {needed}`"
                )
        name = content.get("extends")


def _bring_local(original: Path, copy: Path) -> None:
    """Link the user's own files, which git ignores."""
    for path in (original / LOCAL).rglob("*"):
        link = copy / path.relative_to(original)
        if path.is_file() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())


def _use_cache_of(original: Path, copy: Path) -> None:
    """Share DVC's cache, and what this machine alone configures of DVC."""
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
def held(folder: Path) -> Iterator[None]:
    """Hold a run's folder. The system lets go of it when this process ends, however it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def clean(runs: Path) -> None:
    """Remove the folders of runs that are over, but for the newest few."""
    over = [path.parent for path in runs.glob("*/lock") if not _is_held(path)]
    for folder in sorted(over, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_held(path: Path) -> bool:
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def remove(folder: Path) -> None:
    """Remove the folder of a run that is over."""
    shutil.rmtree(folder, ignore_errors=True)
