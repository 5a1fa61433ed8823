"""What starting from another corpus's model gains: BLEU of trainings on few pairs, with and without it.

`python -m tests.bench.fine_tuning --parent EN DE --train EN DE --valid EN DE --test EN DE [--folder DIR]` trains a
parent on the first corpus (.gz too), then for every seed two models on the first half of the second: alone, with
subwords of its own, and from the parent. All have half of row small's widths and the same settings; nothing is chosen
by the test set. Models in DIR are kept and used, and an interrupted training resumes.
"""

import argparse
import gzip
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmt import Translator, bootstrap, fit
from nmt.evaluation.bleu import line_statistics, metric, sacrebleu, score_of
from tests.bench.conditions import announce

MODEL = {"N": 3, "d_model": 128, "d_ff": 512, "h": 4, "P_drop": 0.2}
TRAINING = {
    "updates": 1500, "tokens": 1500, "warmup_steps": 500, "learning_rate_scale": 0.7, "precision": "bfloat16",
    "validate_every": 250, "checkpoint_every": 100, "keep_checkpoints": 8, "resume_minutes": 1.0,
}  # fmt: skip
"""Row small's, shortened."""
PARENT = TRAINING | {"updates": 4000, "warmup_steps": 800}  # longer sentences need more updates
MERGES = 8000
SEEDS = (1, 2, 3)
Pairs = tuple[list[str], list[str]]


def read(paths: list[Path]) -> Pairs:
    """The lines of both sides."""
    contents = [(path.suffix, path.read_bytes()) for path in paths]
    sides = [gzip.decompress(content) if suffix == ".gz" else content for suffix, content in contents]
    source, target = (side.decode().removesuffix("\n").split("\n") for side in sides)
    return source, target


def trained(
    folder: Path, pairs: Pairs, valid: Pairs, seed: int, training: dict[str, Any] = TRAINING, **given: Any
) -> Translator:
    """The model in `folder`, trained unless it is there."""
    if folder.exists():
        return Translator(folder)
    return fit(pairs, valid, folder, merges=MERGES, training=training | {"seed": seed}, **given)


def report(models: Mapping[str, Translator], test: Pairs, changed: str, seeds: Sequence[int] = SEEDS) -> None:
    """Print each model's BLEU, and the mean gain of those named `changed` over those named `alone`, seed by seed."""
    statistics = {}
    for name, model in models.items():
        lines = list(model.translate(test[0]))
        statistics[name] = line_statistics(metric(), lines, test[1])
        low, high = bootstrap.interval(statistics[name], score_of(metric()))
        print(f"{name:8} {sacrebleu(lines, test[1])[0]:.1f} ({low:.1f} to {high:.1f})", flush=True)
    drawn = {name: bootstrap.resampled(of_system, score_of(metric())) for name, of_system in statistics.items()}
    gains = np.mean([drawn[f"{changed} {seed}"] - drawn[f"alone {seed}"] for seed in seeds], axis=0)
    low, high = np.quantile(gains, (0.025, 0.975))
    print(f"gain, mean of {len(seeds)} seeds: {gains.mean():+.1f} ({low:+.1f} to {high:+.1f})")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("parent", "train", "valid", "test"):
        parser.add_argument(f"--{name}", nargs=2, type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("work/fine_tuning"))
    given = parser.parse_args()
    torch.set_num_threads(1)  # Other numbers of threads give other bits, and spin beside other programs.
    announce("fine_tuning")
    whole, valid, test = (read(getattr(given, name)) for name in ("train", "valid", "test"))
    half = (whole[0][: len(whole[0]) // 2], whole[1][: len(whole[1]) // 2])
    source, target = read(given.parent)
    parent = given.folder / "parent"
    sides = (source[:-500], target[:-500]), (source[-500:], target[-500:])
    models = {"parent": trained(parent, *sides, 1, PARENT, model=MODEL)}
    for seed in SEEDS:
        models[f"alone {seed}"] = trained(given.folder / f"alone-{seed}", half, valid, seed, model=MODEL)
        models[f"tuned {seed}"] = trained(given.folder / f"tuned-{seed}", half, valid, seed, start_from=parent)
    report(models, test, "tuned")


if __name__ == "__main__":
    main()
