"""A tiny run, made by the pipeline's own stages in this process."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import yaml

from nmt.config import Job
from nmt.training import trainer
from nmt.training.distributed import World
from pipeline.common.paths import CONFIG
from pipeline.config import resolution
from pipeline.stages import average, binarize, certify, decode, learn_subwords, score, tokenize, train

ROOT = Path(__file__).resolve().parents[1]
WORDS = [
    "the",
    "old",
    "man",
    "sees",
    "a",
    "dog",
    ".",
    "He",
    "did",
    "not",
    "see",
    "it",
    "She",
    "sleeps",
    "well",
    ",",
    "and",
    "we",
    "do",
    "!",
]
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
DVC = """
stages:
  train: {cmd: x, meta: {trains: true}, deps: [data/binned, nmt/code.py]}
  certify: {cmd: x, outs: [results/certificate.json]}
"""


class Silent:
    """A tracker and a display of progress that do nothing."""

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def show(self, update: int, record: Mapping[str, float]) -> None: ...


def train_here(folder: Path, watch: Callable[[], None]) -> int:
    """Train in this process, as the launcher's processes do."""
    job = Job.model_validate(yaml.safe_load((folder / "job.yaml").read_text()))
    trainer.train(job, folder, World(0, 1, torch.device("cpu")))
    return 0


def training() -> None:
    """The stage `train` in the present folder."""
    train.run(Silent(), train_here, lambda updates: contextlib.nullcontext(Silent()))


def after_training() -> None:
    """The stages after training in the present folder, up to the certificate."""
    for stage in (average, decode, score, certify):
        stage.run(Silent())


def prepare(seed: int = 1) -> None:
    """Configuration, text, subwords and binned corpus in the present folder."""
    here = Path.cwd()
    with contextlib.chdir(ROOT):
        params = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": seed, "overrides": OVERRIDES}
        configuration = resolution.resolve(params)
    (here / "results").mkdir()
    CONFIG.write_text(resolution.text(configuration))
    Path("nmt").mkdir()
    Path("nmt/code.py").write_text("1")
    Path("dvc.yaml").write_text(DVC)
    chance = random.Random(5)
    raw = here / "data/raw"
    raw.mkdir(parents=True)
    for name, lines in (("train.sample", 60), ("valid.sampledev", 4), ("test.sampletest", 4)):
        text = [" ".join(chance.choices(WORDS, k=chance.randrange(3, 9))) for _ in range(lines)]
        for language in ("en", "de"):
            (raw / f"{name}.{language}").write_text("".join(f"{line}\n" for line in text))
    for stage in (tokenize, learn_subwords, binarize):
        stage.run(Silent())
