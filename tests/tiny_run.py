"""A tiny run, made by the pipeline's own stages in this process."""

import contextlib
import importlib
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from clones import ROOT, commit, write_tiny_corpus
from shared import shared
from trainings import train_here

from pipeline.config.paths import PARAMS
from pipeline.stages import train

OVERRIDES: dict[str, Any] = {
    "model": {"N": 1, "d_model": 16, "d_ff": 32, "h": 2, "d_k": 8, "d_v": 8, "P_drop": 0.1},
    "subwords": {"merges": 60},
    "training": {
        "updates": 24, "tokens": 120, "warmup_steps": 20, "validate_every": 6, "checkpoint_every": 4,
        "verify_every": 2, "keep_states": 2, "keep_checkpoints": 4,
    },
    "averaging": {"last": 3},
    "search": {"beam": 2, "max_extra": 2},
}  # fmt: skip


def training() -> None:
    silent = SimpleNamespace(show=lambda update, record: None)
    train.run(train_here, lambda updates: contextlib.nullcontext(silent), contextlib.nullcontext)


def run_stages(*names: str) -> None:
    for name in names:
        training() if name == "train" else importlib.import_module(f"pipeline.stages.{name}").run()


def after_training() -> None:
    """The stages after training in the present folder, up to the certificate."""
    run_stages("average", "decode", "score", "certify")


def prepare(pair: str = "en-de", row: str = "sample", *, further: bool = False, **overrides: Any) -> None:
    """A repository with a corpus of its own in the present folder, which is empty, and the stages up to training."""
    for path in ("nmt", "pipeline", "dvc.yaml"):
        Path(path).symlink_to(ROOT / path)
    shutil.copyfile(ROOT / ".gitignore", ".gitignore")
    write_tiny_corpus(Path(), further=further)
    params = {"row": row, "pair": pair, "corpus": "tiny", "seed": 1, "overrides": OVERRIDES | overrides}
    PARAMS.write_text(yaml.safe_dump(params))
    commit()
    run_stages("resolve", "download", "tokenize", "learn_subwords", "binarize")


def copied(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Path:
    """A copy of a run up to its certificate, which is made once for all tests."""

    def make(path: Path) -> None:
        path.mkdir()
        with contextlib.chdir(path):
            prepare()
            training()
            after_training()

    return shutil.copytree(shared(tmp_path_factory, "tiny_run", make), folder, symlinks=True)
