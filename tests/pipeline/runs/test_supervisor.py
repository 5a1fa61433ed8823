"""What DVC says about a stage, without its English; tests/end_to_end/test_flow.py has whole runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nmt.config import InputError
from pipeline.runs import supervisor

ROOT = Path(__file__).resolve().parents[3]


PROGRAM = """
from pathlib import Path
from pipeline.runs.supervisor import reproduce
results = [reproduce("good", False), reproduce("good", False), reproduce("good", True)]
for content in "ba":  # The second is restored from the run cache: it has changed, but does not run.
    Path("in").write_text(content)
    results.append(reproduce("good", False))
results.append(reproduce("bad", False))
Path("results").write_text(repr(results))
"""


def test_a_stage_has_changed_or_not_or_fails(tmp_path: Path) -> None:
    """In a process of its own: DVC logs to the standard output that it finds when it is imported."""
    subprocess.run(["dvc", "init", "--quiet", "--no-scm"], cwd=tmp_path, check=True)
    stages = "{good: {cmd: cp in out, deps: [in], outs: [out]}, bad: {cmd: exit 3, deps: [in]}}"
    (tmp_path / "dvc.yaml").write_text(f"stages: {stages}")
    (tmp_path / "in").write_text("a")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (tmp_path / "results").read_text() == "[True, False, True, True, True, None]"
    assert (tmp_path / "out").read_text() == "a"
    assert "ERROR: failed to reproduce 'bad'" in result.stderr


def test_stages_come_in_order_with_their_direct_predecessors() -> None:
    found = supervisor.stages(None)
    assert list(found)[:2] == ["resolve", "download"]
    assert (found["decode"], found["report"]) == (["average"], ["certify", "attention"])
    assert list(supervisor.stages("train")) == [
        "resolve",
        "download",
        "tokenize",
        "learn_subwords",
        "binarize",
        "train",
    ]
    with pytest.raises(InputError, match=r"`decod` is no stage of dvc\.yaml; there is `resolve`, .*`report`"):
        supervisor.stages("decod")
