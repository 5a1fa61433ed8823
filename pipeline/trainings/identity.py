"""What a training is: its job, and the fingerprint that names its folder, `<state root>/train/<fingerprint>`.

The fingerprint has what decides weights and checkpoints: settings, data, and code without comments and docstrings.
Settings that leave those of a given update as they are do not count. The number of updates is one of them: so a
finished training can be extended.
"""

import ast
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import sha256_of
from nmt.model_settings import ModelSettings
from nmt.training import checkpoint
from nmt.training.loop import Job  # from the program that trains, so that the import graph has it
from nmt.training.settings import TrainingSettings
from pipeline.config import graph, paths
from pipeline.config.paths import read_json, state_root

NOT_IN_FINGERPRINT = (
    *("updates", "resume_minutes", "validate_every", "validation_sample", "patience", "verify_every", "keep_states"),
)
"""Training settings that change neither the weights after a given update nor which checkpoints are kept until it."""
START_MODULE = Path("pipeline/trainings/start.py")
PORTABLE = Path("nmt/portable.py")
OTHERS = ("common/cpu.py", "common/files.py", "common/processes.py", "errors.py", "hardware.py")
NO_ARITHMETIC = {Path("nmt", name) for name in OTHERS}
"""Modules that training imports and that compute no weight: files, processes, errors, facts about the machine."""


def job_of(model: ModelSettings, training: TrainingSettings, root: Path) -> dict[str, Any]:
    """Return the job of a training on the corpus of the repository in `root`; defaults are left out."""
    # A setting that is added later leaves the fingerprint of others as it is.
    stats = read_json(root / paths.BINNED_STATS)
    vocabularies: dict[str, int] = {key: stats[key] for key in ("vocabulary", "target_vocabulary") if key in stats}
    job = Job(model=model, training=training, corpus=str((root / paths.BINNED).resolve()), **vocabularies)
    return job.model_dump(exclude_defaults=True)


def folder_of(job: Mapping[str, Any]) -> Path:
    """Return the folder of this job, named by the hash of its settings and data, then by that of the code."""
    # With patience, the validations decide where a training ends.
    decisive = {"patience", "validate_every"} if job["training"].get("patience") is not None else set()
    others = set(NOT_IN_FINGERPRINT) - decisive
    training = {key: value for key, value in job["training"].items() if key not in others}
    if start := training.get("start_from"):
        training["start_from"] = start["weights"]
    # The corpus is named by the hashes of its files.
    sizes = {key: value for key, value in job.items() if key != "corpus" and value is not None}
    inputs = _digest({**sizes, "training": training, "data": data_hashes(Path(job["corpus"]))})
    code, updates = code_digest(job), job["training"]["updates"]
    root = state_root() / "train"
    chosen = root / f"{inputs}-{code}"
    if os.environ.get("WMT_RESUME_ACROSS_CODE") == "1" and not checkpoint.last_saved_update(chosen):
        of_any_code = root.glob(f"{inputs}-{'?' * len(code)}")
        older = [path for path in of_any_code if 0 < checkpoint.last_saved_update(path) <= updates]
        if older:
            chosen = max(older, key=checkpoint.last_saved_update)
            mixed = "its weights will differ from an undisturbed training's"
            print(f"train: resuming {chosen.name} of other code (WMT_RESUME_ACROSS_CODE=1): {mixed}")
    if (trained := checkpoint.last_saved_update(chosen)) > updates:
        # Updates cannot be undone, and the user may still need the longer training.
        print(f"train: {chosen.name} is at update {trained:,} already: a training of {updates:,} starts beside it")
        chosen = chosen.with_name(f"{chosen.name}-{updates}")
    return chosen


def data_hashes(corpus: Path) -> dict[str, str]:
    """Return the sha256 of every file of a binned corpus by its name."""
    return {path.name: sha256_of(path) for path in sorted(corpus.glob("*.arrow"))}


def code_digest(job: Mapping[str, Any]) -> str:
    """Return the hash of the code that decides the weights of a job, whatever its comments and docstrings say."""
    return _digest({str(path): syntax(path.read_bytes()) for path in computing_code(job)})


def computing_code(job: Mapping[str, Any]) -> set[Path]:
    """Return the modules that decide a job's weights: those of nmt among the deps of `train`, and START_MODULE."""
    deps = (path for path in map(Path, graph.stages()["train"].deps) if path.parts[0] == "nmt")
    modules = {module for path in deps for module in ([path] if path.suffix == ".py" else path.rglob("*.py"))}
    unused = set() if job["training"].get("arithmetic") == "portable" else {PORTABLE}
    return {*modules, START_MODULE} - NO_ARITHMETIC - unused


def syntax(source: bytes) -> object:
    """Return the syntax tree of a module as nested lists, without docstrings; it is equal in all versions of Python."""
    return _plain(ast.parse(source))


def _plain(node: object) -> object:
    if isinstance(node, ast.AST):
        fields = [[name, _plain(value)] for name, value in ast.iter_fields(node) if value not in (None, [])]
        return [type(node).__name__, *fields]
    return [_plain(part) for part in node if not _is_docstring(part)] if isinstance(node, list) else repr(node)


def _is_docstring(node: object) -> bool:
    """Return whether a node is a string that stands alone, as that of a module, class, function or variable does."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]
