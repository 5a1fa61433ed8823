"""100,000 lines through `wmt translate`: constant memory, order kept, no output after a kill.

With a tiny model, or another one: `WMT_MODEL=models/average WMT_TEXT=test.en pytest -n 0 tests/soak`.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from clones import SHRUNKEN, Clone

LINES = 100_000


def _resident(pid: int) -> int:
    """Kilobytes of memory."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.timeout(7200)
def test_a_long_stream(tmp_path: Path) -> None:
    model, source = os.environ.get("WMT_MODEL"), os.environ.get("WMT_TEXT")
    if model is None or source is None:
        clone = Clone(tmp_path / "clone")
        clone.params(overrides=SHRUNKEN)
        assert clone.run("dvc", "repro", "average").returncode == 0
        model, source = str(clone.folder / "models/average"), str(clone.folder / "data/raw/test.sampletest.en")
    lines = Path(source).read_text(encoding="utf-8").splitlines()
    text, out = tmp_path / "in", tmp_path / "out"
    text.write_text("".join(f"{lines[n % len(lines)]}\n" for n in range(LINES)), encoding="utf-8")
    files = ["--input", str(text), "--output", str(out)]
    command = [sys.executable, "-m", "pipeline.cli", "translate", model, "--beam", "1", *files]
    process = subprocess.Popen(command)
    time.sleep(20)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not out.exists()
    process = subprocess.Popen(command)
    memory: list[tuple[int, int]] = []
    while process.poll() is None:
        try:
            (partial,) = tmp_path.glob(f".out.*.{process.pid}.tmp")
            memory.append((partial.stat().st_size, _resident(process.pid)))
        except (OSError, IndexError, ValueError):
            continue
        finally:
            time.sleep(0.2)
    assert process.wait() == 0
    half = out.stat().st_size / 2
    # After the first half nothing grows any more but what the allocator rounds.
    early, late = max(size for done, size in memory if done <= half), max(size for _, size in memory)
    print(f"{early:,} kB in the first half, {late:,} kB at most")
    assert late < early * 1.15
    translated = out.read_text(encoding="utf-8").splitlines()
    assert len(translated) == LINES
    differing = sum(translated[n] != translated[n % len(lines)] for n in range(LINES))
    assert differing <= LINES // 1000
