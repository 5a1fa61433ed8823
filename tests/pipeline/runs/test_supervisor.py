"""What DVC says about a stage, without its English; tests/end_to_end/test_flow.py has whole runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nmt.config import InputError
from pipeline.runs import supervisor


@pytest.mark.filterwarnings("ignore")  # DVC's own.
def test_a_stage_has_changed_or_not_or_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    subprocess.run(["dvc", "init", "--quiet", "--no-scm"], check=True)
    stages = "{good: {cmd: cp in out, deps: [in], outs: [out]}, bad: {cmd: exit 3, deps: [in]}}"
    Path("dvc.yaml").write_text(f"stages: {stages}")
    Path("in").write_text("a")
    assert [supervisor.reproduce("good", force=False) for _ in range(2)] == [True, False]
    assert supervisor.reproduce("good", force=True) is True
    # Restored from the run cache: it has changed, but does not run.
    Path("in").write_text("b")
    assert supervisor.reproduce("good", force=False) is True
    Path("in").write_text("a")
    assert supervisor.reproduce("good", force=False) is True
    assert Path("out").read_text() == "a"
    assert supervisor.reproduce("bad", force=False) is None


def test_stages_come_in_order_with_their_direct_predecessors() -> None:
    found = supervisor.stages(None)
    assert list(found)[:2] == ["resolve", "download"]
    assert (found["decode"], found["report"]) == (["average"], ["score", "attention"])
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
