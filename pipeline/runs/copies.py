"""Working copies of the repository: a run works on the files as they were when it began, whatever is edited meanwhile.

<state root>/runs/<run>/, which is also the folder of the run's record (pipeline/tracking/record.py):
    repository/   HEAD and the changes of tracked files, with the original's DVC cache; `origin` is the original
    status/       the status files of the run's stages
    log           what DVC and the stages print
    lock          held by the process that works here
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nmt.config import InputError
from pipeline.config.catalogs import CATALOGS
from pipeline.config.resolution import PARAMS, read_params
from pipeline.config.rows import merge
from pipeline.corpora.user_text import LOCAL
from pipeline.tracking.record import is_locked

KEPT = 3
"""Copies of failed or cancelled runs that are kept; older ones are removed when the next run begins."""


def repository(folder: Path) -> Path:
    """Return the path of a run's copy."""
    return folder / "repository"


def make(original: Path, folder: Path, changes: Mapping[str, Any]) -> Path:
    """Copy `original` into a run's folder, with `changes` of params.yaml's values; returns the copy.

    `overrides` are merged into those of params.yaml. An existing copy is used as it is: the run continues in it.
    Raises InputError if `original` is no git repository with a commit, or if the corpus needs a file that git does not
    track and that would therefore be missing in the copy.
    """
    target = repository(folder)
    if target.exists():
        return target
    found = git(original, "rev-parse", "HEAD", check=False)
    if found.returncode != 0:
        raise InputError(f"{original} is no git repository with a commit: runs work in copies of one; commit first")
    head = found.stdout.decode().strip()
    making = folder / f"making-{os.getpid()}"
    shutil.rmtree(making, ignore_errors=True)
    git(original, "clone", "--quiet", "--no-checkout", "--no-tags", str(original), str(making))
    git(making, "checkout", "--quiet", "--detach", head)
    difference = git(original, "diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", head).stdout
    if difference:
        # To the index too: DVC's experiment would not contain new files otherwise.
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
    """Run git in `folder`; raises OSError with its message if it fails and `check` is set."""
    # Git hooks set GIT_* for the repository that they run in.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", *words], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    if check and result.returncode != 0:
        raise ChildProcessError(f"git {words[0]} in {folder}: {result.stderr.decode(errors='replace').strip()}")
    return result


def _change(params: Path, changes: Mapping[str, Any]) -> None:
    """Set values of params.yaml. Its comments stay: `dvc exp apply` brings the file back to the user."""
    from ruamel.yaml import YAML

    read_params(params)  # Raises InputError if the file is no mapping.
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
            return  # `resolve` reports what is wrong with it.
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
                    f"{needed} is not tracked by git, and a run's copy of the repository holds tracked files alone: "
                    f"`git add {needed}`"
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
    """Share DVC's cache and its configuration for this machine."""
    from dvc.repo import Repo

    with Repo(str(original)) as repo:
        cache = repo.cache.local_cache_dir
    local = original / ".dvc/config.local"
    if local.exists():
        shutil.copyfile(local, copy / ".dvc/config.local")
    with Repo(str(copy)) as repo, repo.config.edit("local") as settings:
        settings["cache"]["dir"] = cache
        settings["core"]["autostage"] = True


def clean(runs: Path) -> None:
    """Remove the copies of runs that are over, but for the newest few. Records stay."""
    over = [path.parent for path in runs.glob("*/lock") if repository(path.parent).exists() and not is_locked(path)]
    for folder in sorted(over, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        remove(folder)


def remove(folder: Path) -> None:
    """Remove the copy of a run that is over; and its whole folder, if the run has no record."""
    recorded = (folder / "run.json").exists()
    for path in (repository(folder), folder / "status", *folder.glob("making-*")) if recorded else (folder,):
        shutil.rmtree(path, ignore_errors=True)
