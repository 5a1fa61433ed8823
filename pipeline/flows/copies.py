"""Isolated copies of the repository: a run does not see what is edited in the original after it began.

A copy is a git clone of HEAD with the changes of tracked files, in `<state root>/copies/<name>`. It has the original's
DVC cache, state root, catalogs and data/local (hard links: a file that is edited in place is refused by its checksum).
It is removed at the end, however the run ended: what can be resumed is in the state root. A killed process leaves its
copy, and the next run removes it. Prefect is not imported.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nmt.common.files import link_or_copy
from nmt.common.processes import end, is_held, start
from nmt.errors import InputError
from pipeline.config.errors import validated
from pipeline.config.git import difference, git, head
from pipeline.config.locks import mend_locks
from pipeline.config.paths import CATALOGS, LOCAL, PARAMS, REPORT, state_root
from pipeline.config.resolution import Params, read_params
from pipeline.config.rows import merge_sections

DVC = (sys.executable, "-m", "dvc")
WAIT = 30.0  # seconds to wait for another process' lock of a copy: it may just remove what a killed one left
GRACE = 90.0  # seconds between SIGTERM and SIGKILL: more than a training stage gives its processes to save their state
PRINTED = Path(".dvc/tmp/printed")
"""File of a copy with what its command prints. The command's processes hold a lock on it until the last one ends."""


@contextmanager
def made(original: Path, name: str, changes: Mapping[str, Any]) -> Iterator[Path]:
    """Copy `original`, set values of params.yaml to `changes`, yield the copy's path, and remove the copy at the end.

    `overrides` are merged into those of params.yaml. `name` is also that of the DVC experiment. Raises InputError if
    params.yaml is invalid, or another process works by this name; ChildProcessError if `original` has no commit.
    """
    folder = (original / state_root()).absolute() / "copies"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob("[!.]*.lock"):
        with suppress(Timeout), FileLock(left, blocking=False, fallback_to_soft=False):
            _remove(left.with_suffix(""))
    copy = folder / name
    try:
        lock = FileLock(f"{copy}.lock", fallback_to_soft=False).acquire(timeout=WAIT)
    except Timeout as error:
        raise InputError(f"{name} is at work already: wait for its end") from error
    with lock:
        try:
            while is_held(copy / PRINTED):  # Processes of a killed run save their state.
                time.sleep(0.5)
            shutil.rmtree(copy, ignore_errors=True)
            _make(original, copy, changes)
            yield copy
        finally:
            _remove(copy)  # not where this run was interrupted while it waited for a killed one's processes


def _remove(copy: Path) -> None:
    """Remove a copy and its lock, which the caller holds, unless processes still work in the copy."""
    if not is_held(copy / PRINTED):
        shutil.rmtree(copy, ignore_errors=True)
    if not copy.exists():
        Path(f"{copy}.lock").unlink(missing_ok=True)


def _make(original: Path, copy: Path, changes: Mapping[str, Any]) -> None:
    from dvc.utils.serialize import modify_yaml

    commit = head(original)
    # The user's settings may name the remote otherwise, and forbid folders as remotes.
    options = ("--origin=origin", "--config=protocol.file.allow=always", "--quiet", "--no-checkout", "--no-tags")
    git("clone", *options, str(original), str(copy))
    git("checkout", "--quiet", "--detach", commit, folder=copy)
    if changed := difference(folder=original):
        # Also applied to the index: `dvc exp save` leaves out new files that are not in it.
        git("apply", "--index", "--whitespace=nowarn", "-", folder=copy, content=changed)
    validated(Params, read_params(copy / PARAMS), PARAMS)
    # Its comments are kept: `dvc exp apply` copies the file to the original.
    with modify_yaml(copy / PARAMS) as content:
        for key, value in changes.items():
            content[key] = merge_sections(content.get(key) or {}, value) if key == "overrides" else value
    # Git does not track new catalogs and the user's own text, which may be large.
    for folder, copier in ((CATALOGS, shutil.copyfile), (LOCAL, link_or_copy)):
        if (original / folder).exists():
            shutil.copytree(original / folder, copy / folder, symlinks=True, copy_function=copier, dirs_exist_ok=True)
    _share_cache(original, copy)
    for key in ("user.name", "user.email"):
        identity = git("config", "--default", "wmt-transformer", "--get", key, folder=original).decode().strip()
        git("config", key, identity, folder=copy)


def _share_cache(original: Path, copy: Path) -> None:
    """Give the copy the original's DVC cache and settings for this machine."""
    from dvc.repo import Repo

    with Repo(str(original)) as repo:
        cache = repo.cache.local_cache_dir
    if (original / ".dvc/config.local").exists():
        shutil.copyfile(original / ".dvc/config.local", copy / ".dvc/config.local")
    with Repo(str(copy)) as repo, repo.config.edit("local") as settings:
        settings["cache"]["dir"] = cache
        settings["core"]["autostage"] = True


def run(
    copy: Path,
    command: Sequence[str],
    log: Callable[[str], None],
    tick: Callable[[], None] = lambda: None,
    **variables: str,
) -> int:
    """Run a command in the copy and return its exit status; `log` gets every line that it prints.

    `variables` are added to the environment. `tick` is called a few times a second. Whatever it or a signal raises
    first ends all processes of the command.
    """
    environment = {
        **os.environ,
        "DVC_EXP_NAME": copy.name,
        # Relative paths of stores, states, catalogs and parents are the original's, as in DVC's own copies.
        "DVC_ROOT": git("remote", "get-url", "origin", folder=copy).decode().strip(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONUNBUFFERED": "1",
        **variables,
    }
    mend_locks(copy)
    printed = copy / PRINTED
    printed.parent.mkdir(parents=True, exist_ok=True)
    rest = b""

    def pass_on(last: bytes = b"") -> None:
        nonlocal rest
        *whole, rest = (rest + output.read() + last).split(b"\n")
        for line in whole:
            if line.strip():
                log(line.decode(errors="replace"))

    # A file: if this process were killed, a pipe would break and end a stage that is saving its state.
    with printed.open("w+b") as file, printed.open("rb") as output:
        # The command's processes inherit it, and the system releases it when the last one ends, killed or not. Network
        # file systems want a file that can be read for it.
        fcntl.flock(file, fcntl.LOCK_SH)
        process = start(command, cwd=copy, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            while process.poll() is None:
                time.sleep(0.2)
                pass_on()
                tick()
        finally:
            status = end(process, GRACE)
            pass_on(b"\n")
    return status


def save(copy: Path, stages: Iterable[str], log: Callable[[str], None]) -> None:
    """Complete a finished run in MLflow, and bring its results to the original as a DVC experiment named like the copy.

    `stages`: those of the run; none: all. Without their names DVC requires the outputs of all stages. Raises
    ChildProcessError if DVC fails. If MLflow cannot be reached, that is logged.
    """
    if (copy / REPORT).exists():  # Else the last stages were not asked for.
        run(copy, [sys.executable, "-m", "pipeline.cli", "publish"], log)
    experiment = ("save", "--force", "--name", copy.name, *stages)
    for words in (experiment, ("push", "--no-cache", "--force", "origin", copy.name)):
        if run(copy, [*DVC, "exp", *words], log) != 0:
            raise ChildProcessError(f"`dvc exp {words[0]}` failed; its message is in the log")
