"""What a run's numbers rest on: commit and differences, the hash of every dependency, libraries, hardware."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from nmt.common.files import read_yaml
from pipeline import machine
from pipeline.config import graph
from pipeline.runs.credentials import masked

NOT_CODE = (":(exclude)dvc.lock", ":(exclude)params.yaml")
"""Tracked files that every run may change, and whose content is recorded elsewhere."""
PLAIN_DIFF = [
    "--binary",
    "--full-index",
    "--no-color",
    "--src-prefix=a/",
    "--dst-prefix=b/",
    "--no-ext-diff",
    "--no-textconv",
]
"""Options of `git diff` that make a complete patch, equal whatever the user's own configuration of git is."""

LIBRARIES = (
    "torch",
    "numpy",
    "pyarrow",
    "safetensors",
    "sacremoses",
    "subword-nmt",
    "sentencepiece",
    "sacrebleu",
    "dvc",
    "mlflow",
    "prefect",
)


LIMIT = 10.0
"""Seconds that git and nvidia-smi may take: a faulty driver makes nvidia-smi hang."""


def _output(*command: str, limit: float = LIMIT) -> str | None:
    """Return what a command prints; None if it is missing, fails or takes more than `limit` seconds."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=limit, check=False)
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        problem = f"{command[0]} did not answer within {limit:g} s: the run goes on without it"
        print(f"tracking: {problem}", file=sys.stderr, flush=True)
        return None
    return result.stdout if result.returncode == 0 else None


def code(limit: float = LIMIT) -> dict[str, str]:
    """Return the commit, and the files that differ from it or are new (not dvc.lock and params.yaml), as tags."""
    commit = _output("git", "rev-parse", "HEAD", limit=limit)
    changed = _output("git", "diff", "--name-only", "HEAD", "--", ".", *NOT_CODE, limit=limit)
    new = _output("git", "ls-files", "--others", "--exclude-standard", limit=limit)
    if commit is None or changed is None or new is None:
        return {"commit": "unknown", "differing_files": "unknown: git names no commit here"}
    return {"commit": commit.strip(), "differing_files": ", ".join((changed + new).splitlines()) or "none"}


def remote() -> str:
    """Return the address of git's remote `origin`, empty if there is none."""
    return (_output("git", "remote", "get-url", "origin") or "").strip()


def source() -> dict[str, str]:
    """Return the repository's address, or its folder's name without one, as MLflow's tags of a run's source."""
    address = masked(remote())
    is_remote = "://" in address or "@" in address
    name = address if is_remote else Path(address or Path.cwd()).name
    return {"mlflow.source.name": name, "mlflow.source.type": "PROJECT" if is_remote else "LOCAL"}


def difference() -> str:
    """Return the diff of those files, empty if there is none."""
    return _output("git", "diff", *PLAIN_DIFF, "HEAD", "--", ".", *NOT_CODE) or ""


def training_code() -> str:
    """Return a hash of the modules that decide a training's weights, as its fingerprint has them."""
    digest = hashlib.sha256()
    training = graph.training_stage()
    for path in graph.stages()[training].computing_code if training else ():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def dependencies(stage: str, ran: bool = True) -> dict[str, str]:
    """Return path -> md5 of the dependencies of `stage`, which runs now, or which DVC has restored.

    While it runs, dvc.lock is final only for the stages before it: files are hashed here, folders that other stages
    made have their hashes in dvc.lock.
    """
    stages, path = graph.stages(), Path("dvc.lock")
    lock = ((read_yaml(path) if path.exists() else None) or {}).get("stages") or {}
    if stage not in stages or not ran:
        return {entry["path"]: entry.get("md5", "") for entry in lock.get(stage, {}).get("deps", ())}
    made = {entry["path"]: entry.get("md5", "") for each in lock.values() for entry in each.get("outs", ())}
    return {
        path: made.get(path, "") if graph.made_by(path, stages) and Path(path).is_dir() else _md5(Path(path))
        for path in stages[stage].deps
    }


def _md5(path: Path) -> str:
    """Return the md5 of a file, as DVC has it; of a folder's names and md5s; empty if there is nothing."""
    if path.is_dir():
        names = sorted(child for child in path.rglob("*") if child.is_file() and "__pycache__" not in child.parts)
        lines = "".join(f"{child.relative_to(path)} {_md5(child)}\n" for child in names)
        return hashlib.md5(lines.encode(), usedforsecurity=False).hexdigest()
    if not path.exists():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that are installed."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def _gpus(limit: float) -> str:
    if shutil.which("nvidia-smi") is None:
        return "none"
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader", limit=limit)
    return "unknown" if listed is None else "; ".join(listed.splitlines()) or "none"


def hardware(with_gpus: bool = True, limit: float = LIMIT) -> dict[str, str]:
    """Return the machine's CPU, cores, memory and system, and its GPUs where `with_gpus` asks for them."""
    found = {
        "cpu": machine.processor(),
        "cores": str(os.cpu_count()),
        "memory_gib": f"{machine.memory() / 2**30:.1f}",
        "system": platform.platform(),
    }
    return found | {"gpus": _gpus(limit)} if with_gpus else found


def of(stage: str) -> dict[str, Any]:
    """Return what the numbers of `stage` rest on: tags of the run, and the hashes of its dependencies.

    GPUs are listed for stages that use them: a slow driver delays no other stage.
    """
    declared = graph.stages().get(stage)
    tags = code()
    tags |= {"mlflow.source.git.commit": tags["commit"], **source()}
    tags |= {f"version.{name}": version for name, version in versions().items()}
    tags |= {f"hardware.{name}": value for name, value in hardware(bool(declared and declared.uses_gpu)).items()}
    return {"tags": tags, "deps": dependencies(stage)}
