"""`wmt verify` on a run of the embedded sample at its full size: its time, and what it finds in changed copies."""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clones import Clone

from nmt.common.tensors import WEIGHTS
from nmt.training import checkpoint
from pipeline.common.paths import AVERAGE, CHECKPOINTS, SCORES
from tests.pipeline.verification.test_verify import (
    edit_bleu,
    edit_loss,
    edit_translation,
    one_weight,
    other_seed,
    replaced,
    swap_pairs,
)

pytestmark = pytest.mark.timeout(3600)


def change_state() -> None:
    replaced(min(Path("work/train").glob("*/states/update-*")) / WEIGHTS, one_weight)


def average_another() -> None:
    replaced(checkpoint.checkpoints(CHECKPOINTS)[-1], other_seed)


TAMPERING: list[tuple[Callable[[], None], tuple[str, ...], str]] = [
    (swap_pairs, (), "corpus"),
    (change_state, (), "kept states"),
    (average_another, ("average", "decode", "score", "certify"), "checkpoints"),
    (lambda: replaced(AVERAGE / WEIGHTS, one_weight), (), "average"),
    (edit_translation, ("score", "certify"), "translations"),
    (edit_bleu, (), "score"),
    (lambda: edit_bleu(SCORES), (), "score"),
    (edit_loss, (), "losses"),
]
"""What is changed, the stages that are made again after that, and the step that says it."""


def test_every_tampering_of_a_run_of_the_sample_is_found(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    clone.repro()
    wmt = sys.executable, "-m", "pipeline.cli", "verify"
    begin = time.monotonic()
    honest = clone.run(*wmt)
    seconds = time.monotonic() - begin
    assert (honest.returncode, honest.stdout.splitlines()[-1]) == (0, "verified"), honest.stdout + honest.stderr
    begin = time.monotonic()
    assert clone.run(*wmt, "--no-translate").returncode == 0
    (trained,) = [line for line in honest.stdout.splitlines() if line.startswith("training ")]
    spent = json.loads((clone.folder / "results/metrics.json").read_text())["train_seconds"]
    print(
        f"training {spent:.0f} s; wmt verify {seconds:.0f} s, with --no-translate {time.monotonic() - begin:.0f} s\n"
        f"{trained}"
    )
    for number, (tamper, again, step) in enumerate(TAMPERING):
        changed = copy.copy(clone)
        changed.folder = shutil.copytree(clone.folder, tmp_path / f"copy{number}", symlinks=True)
        with contextlib.chdir(changed.folder):
            tamper()
        for stage in again:
            made = changed.run(sys.executable, "-m", "pipeline", stage)
            assert made.returncode == 0, made.stdout + made.stderr
        found = changed.run(*wmt, *([] if step == "translations" else ["--no-translate"]))
        print(f"{step}: {found.stdout.splitlines()[-1]}")
        assert (found.returncode, step in found.stdout.splitlines()[-1]) == (1, True), found.stdout + found.stderr
        shutil.rmtree(changed.folder)
