"""infra/kubernetes/node, the command of every pod, as two processes on this machine that share a folder."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from agents import until
from clones import SHRUNKEN, Clone
from ports import free_port

pytestmark = pytest.mark.timeout(3600)
UPDATES = 200
LONG: dict[str, Any] = {
    **SHRUNKEN,
    "training": {**SHRUNKEN["training"], "updates": UPDATES, "checkpoint_every": 50, "shards": 2},
}
LASTING = 900.0  # seconds that a step may take on a busy machine


def test_two_pods_train_together_and_again_after_the_first_is_evicted(tmp_path: Path) -> None:
    image, shared = Clone(tmp_path / "image"), tmp_path / "shared/wmt"
    image.params(overrides=LONG)
    committed = image.run("git", "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--all", "-m", "row")
    assert committed.returncode == 0, committed.stderr
    shared.parent.mkdir()
    logs = [tmp_path / f"{index}.log" for index in (0, 1)]
    port = free_port()

    def pod(index: int) -> subprocess.Popen[bytes]:
        environment = {
            **image.environment(),
            # Like the image, it has `wmt` and `python -m pipeline` of the folder in which it starts.
            "PYTHONPATH": "." if index == 0 else str(image.folder),
            "JOB_COMPLETION_INDEX": str(index),
            "WMT_NODES": "2",
            "WMT_RENDEZVOUS": f"127.0.0.1:{port}",
            "WMT_STATE": str(shared / "work"),
            "WMT_PROCESSES": "1",
        }
        with logs[index].open("ab") as log:
            return subprocess.Popen(
                ["infra/kubernetes/node"],
                cwd=image.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def update() -> int:
        histories = list((shared / "work/train").glob("*/history.jsonl"))
        lines = [line for history in histories for line in history.read_bytes().split(b"\n")[:-1]]
        return int(json.loads(lines[-1])["update"]) if lines else 0

    pods = [pod(0), pod(1)]
    try:
        until(lambda: update() > UPDATES // 5 or pods[0].poll() is not None, "training", LASTING)
        assert pods[0].poll() is None, logs[0].read_text()
        # The signal by which the image is stopped.
        pods[0].send_signal(signal.SIGINT)
        assert pods[0].wait(timeout=LASTING) != 0
        assert pods[1].wait(timeout=LASTING) != 0

        assert update() < UPDATES
        pods += [pod(0), pod(1)]
        assert [process.wait(timeout=LASTING) for process in pods[2:]] == [0, 0], [
            log.read_text()[-3000:] for log in logs
        ]
    finally:
        for process in pods:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    (done,) = (shared / "work/train").glob("*/done.json")
    assert json.loads(done.read_text())["resumes"] == 1
    assert (shared / "results/metrics.json").exists()
