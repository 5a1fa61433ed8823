"""Paths of the pipeline's inputs and outputs, relative to the repository's root, and of its state; reads JSON."""

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

from nmt.errors import InputError

PARAMS = Path("params.yaml")
DVC_YAML = Path("dvc.yaml")
CONFIG = Path("results/config.yaml")

CATALOGS = Path("data/catalog")
LOCAL = Path("data/local")
RAW = Path("data/raw")
TOKENIZED = Path("data/tokenized")
SUBWORDS = Path("data/subwords")
BINNED = Path("data/binned")
BINNED_STATS = BINNED / "stats.json"

CHECKPOINTS = Path("models/checkpoints")
AVERAGE = Path("models/average")
LAST = Path("models/last")

TRAINING = Path("results/training.json")
CURVES = Path("results/training.csv")
VALIDATION = Path("results/validation.csv")
VALIDATION_OUTPUTS = Path("results/validation.jsonl")
CHAIN = Path("results/chain.json")
CERTIFICATE = Path("results/certificate.json")
AVERAGING = Path("results/averaging.json")
TRANSLATIONS = Path("results/translations")
SCORES, METRICS = Path("results/scores.json"), Path("results/metrics.json")
ATTENTION = Path("results/attention")
FIGURES = Path("results/figures")
SENTENCES = Path("results/sentences.jsonl")
REPORT, REPORT_HTML = Path("results/report.md"), Path("results/report.html")


def raw(role: str, name: str, language: str) -> Path:
    """Return a side of a text as `download` writes it; `role` is train, valid or test, `name` the text's."""
    return RAW / f"{role}.{name}.{language}"


def tokenized(role: str, language: str) -> Path:
    """Return a side of the training or validation text, all corpora in one file, as `tokenize` writes it."""
    return TOKENIZED / f"{role}.{language}"


def translation(name: str, model: Path, language: str) -> Path:
    """Return the translations of the set `name` by a model folder, as `decode` writes them."""
    return TRANSLATIONS / f"{name}.{model.name}.{language}"


def state_root() -> Path:
    """Return the folder of training states, downloads and records of runs, outside DVC's outputs.

    It is `$WMT_STATE`, if that is a folder, or else `work/`, both relative to the repository in which DVC runs; in a
    queued experiment, to the original. Raises InputError for the address of a store with one slash, or of a folder.
    """
    root = os.environ.get("WMT_STATE", "")
    if root.startswith(("file:", "local:")):
        raise InputError(f"WMT_STATE is {root}: name a folder by its path alone")
    if re.match("[a-z0-9]+:/(?!/)", root):
        raise InputError(f"WMT_STATE is {root}: write {root.replace(':/', '://', 1)} for a store, or name a folder")
    return Path(os.environ.get("DVC_ROOT", ".")) / (root if root and "://" not in root else "work")


def state_store() -> str | None:
    """Return `$WMT_STATE` if that is the URL of a store: training's states are copied to it."""
    root = os.environ.get("WMT_STATE", "")
    return root if "://" in root else None


def status_file(stage: str) -> Path:
    """Return where the runner writes how a stage stands: exit statuses do not survive torchrun and dvc.

    The JSON object has `stage`, `state` (running, done, interrupted, refused: the user must change something, failed),
    `message`, `pid` and `time`.
    """
    return Path(".dvc/tmp/status") / f"{stage}.json"


def read_json(path: Path, *keys: str, remedy: str = "run `dvc repro` to make it again") -> dict[str, Any]:
    """Return the JSON object in a file; raise InputError with `remedy` if it is missing, is none, or lacks `keys`."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read ({error}): {remedy}") from error
    if not isinstance(content, dict) or not content.keys() >= {*keys}:
        needed = f" with {', '.join(keys)}" if keys else ""
        raise InputError(f"{path} holds no JSON object{needed}: {remedy}")
    return content


def read_table(path: Path) -> list[dict[str, float]]:
    """Return the rows of a table that `train` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file, strict=True)]
