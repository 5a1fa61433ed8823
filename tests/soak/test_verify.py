"""`wmt verify` on a run of the embedded sample at its full size, as a process of its own: its time and its exit status.

tests/pipeline/verify has the tamperings, on a run of a second.
"""

import json
import re
import shutil
import sys
import time
from pathlib import Path

import pytest
from clones import Clone

from nmt.inference.translator import Translator

README = Path(__file__).resolve().parents[2] / "nmt/README.md"
pytestmark = pytest.mark.timeout(3600)


def test_a_run_of_the_sample_is_verified_and_its_certificate_alone_is_not(tmp_path: Path) -> None:
    clone = Clone(tmp_path / "clone")
    clone.repro()
    [(sentence, german)] = re.findall(
        r'^echo "(.*)" \| wmt translate .* # (.*)$', README.read_text(), flags=re.MULTILINE
    )
    assert list(Translator(clone.folder / "models/average").translate([sentence])) == [german], "the README's example"
    wmt = sys.executable, "-m", "pipeline.cli", "verify"
    begin = time.monotonic()
    honest = clone.run(*wmt)
    seconds = time.monotonic() - begin
    assert (honest.returncode, honest.stdout.splitlines()[-1]) == (0, "verified"), honest.stdout + honest.stderr
    spent = json.loads((clone.folder / "results/metrics.json").read_text())["train_seconds"]
    print(f"training {spent:.0f} s; wmt verify {seconds:.0f} s\n{honest.stdout}")
    scores = clone.folder / "results/scores.json"
    kept = scores.read_bytes()
    scores.write_text(json.dumps({**json.loads(kept), "bleu": 99.0}))
    changed = clone.run(*wmt)
    assert changed.returncode == 1, changed.stdout + changed.stderr
    assert changed.stdout.splitlines()[-1] == "not verified, these differ: score"
    shutil.move(clone.folder / "results/certificate.json", tmp_path / "theirs.json")
    for folder in ("models", "results", "work"):
        shutil.rmtree(clone.folder / folder)
    alone = clone.run(*wmt, "--certificate", str(tmp_path / "theirs.json"))
    assert alone.returncode == 2, alone.stdout + alone.stderr
    print(alone.stdout)
