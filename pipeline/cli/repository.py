"""The repository of a command: that it is run in its root, which stage is at work there, whose results are there."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import sha256_of
from nmt.errors import InputError
from pipeline.config.paths import CATALOGS, CERTIFICATE, DVC_YAML, read_json, status_file


def check_folder() -> None:
    """Raise InputError outside the repository's root, where a command finds nothing."""
    for path in (DVC_YAML, CATALOGS):
        if not path.exists():
            raise InputError(f"{path} is not in {Path.cwd()}: run this in the repository's root")


def check_lock() -> None:
    """Raise InputError where git left conflict markers in dvc.lock, of which DVC says that it is no YAML."""
    if Path("dvc.lock").exists() and "<<<<<<< " in Path("dvc.lock").read_text(encoding="utf-8"):
        raise InputError("dvc.lock has conflict markers: `git checkout --ours dvc.lock`, then `dvc repro`")


def running_stage() -> str | None:
    """Return the stage that a process of this machine runs in this folder, by the stages' status files. Linux only."""
    for path in status_file("*").parent.glob("*.json"):
        status = read_json(path)
        # A killed stage leaves `running`, and its number may be another process's now.
        command = Path(f"/proc/{status['pid']}/cmdline")
        if status["state"] == "running" and command.exists() and path.stem.encode() in command.read_bytes():
            return path.stem
    return None


def certificate_of(root: Path, files: Mapping[Path, Path]) -> dict[str, Any] | None:
    """Return the certificate of the run in `root` if it is of these files, by their paths in the run; else None."""
    if not (root / CERTIFICATE).exists():
        return None
    certificate = read_json(root / CERTIFICATE, "files", "settings", "seal")
    hashes = certificate["files"]
    fits = all(file.exists() and hashes.get(str(name)) == sha256_of(file) for name, file in files.items())
    return certificate if fits else None
