"""What git says of the repository: its commit, and what differs from it."""

import os
import subprocess
from pathlib import Path

CODE = (".", ":(exclude)dvc.lock", ":(exclude)params.yaml")
"""All tracked files but those that every run may change, and whose content is recorded elsewhere."""


def git(*words: str, folder: Path | None = None, content: bytes | None = None) -> bytes:
    """Return what git prints in `folder`; raises ChildProcessError with git's message if it fails."""
    # Git hooks set these variables for their own repository.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    result = subprocess.run(
        ["git", *words], cwd=folder, env=environment, input=content, capture_output=True, check=False
    )
    if result.returncode != 0:
        said, *_ = result.stderr.decode(errors="replace").strip().split("\n")
        raise ChildProcessError(f"git {words[0]} in {folder or Path.cwd()}: {said}")
    return result.stdout


def difference(*paths: str, folder: Path | None = None) -> bytes:
    """Return the patch from HEAD to the tracked files, equal whatever the user's own configuration of git is."""
    plain = ("--binary", "--full-index", "--no-color", "--no-ext-diff", "--no-textconv")
    return git("diff", *plain, "--src-prefix=a/", "--dst-prefix=b/", "HEAD", "--", *paths, folder=folder)


def head(folder: Path | None = None) -> str:
    """Return the id of HEAD; raises ChildProcessError with git's message if there is none."""
    return git("rev-parse", "HEAD", folder=folder).decode().strip()


def code() -> dict[str, str]:
    """Return the commit, and the files and folders that differ from it or are new (not dvc.lock and params.yaml)."""
    names = ("-c", "core.quotePath=false")
    try:
        commit, changed = head(), git(*names, "diff", "--name-only", "HEAD", "--", *CODE)
        new = git(
            *names, "ls-files", "--others", "--directory", "--no-empty-directory", "--exclude-standard", "--", *CODE
        )
    except OSError:
        return {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    files = (changed + new).decode(errors="replace").splitlines()
    return {"commit": commit, "differing_files": ", ".join(files) or "none"}
