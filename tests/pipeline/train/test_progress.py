"""What training shows: a bar on a terminal of any width, and a line a minute in a log."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from pipeline.train import progress

ROOT = Path(__file__).resolve().parents[3]
RECORD = {"loss": 7.2424, "ppl": 1206.99, "tokens_per_second": 14_680.0, "learning_rate": 9.49e-4}
PROGRAM = f"""
from pipeline.train.progress import TrainingProgress
with TrainingProgress(1450) as shown:
    shown.show(1400, {{"valid_ppl": 1.63}})
    shown.show(1450, {RECORD})
"""


def drawn(width: int, **variables: str) -> str:
    """What a terminal of that many columns gets."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, width, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment = {**inherited, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **variables}
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=theirs, stderr=theirs, env=environment):
        os.close(theirs)
        output = b""
        while True:
            try:
                output += os.read(ours, 65536)
            except OSError:  # The other side has closed the terminal.
                break
    os.close(ours)
    return output.decode()


def test_a_narrow_terminal_has_the_bar_the_time_and_what_fits_of_the_values() -> None:
    line = drawn(80, NO_COLOR="1").split("\r")[-2]
    assert "1450/1450" in line
    assert "0:00:00 loss 7.242, ppl 1206.99, 14,680 tokens/s" in line


def test_a_wide_terminal_has_all_values_and_no_color_has_no_colour() -> None:
    plain = drawn(160, NO_COLOR="1")
    assert "validation ppl 1.63, lr 9.49e-04" in plain
    assert "\x1b[3" not in plain
    assert "\x1b[3" in drawn(160, NO_COLOR="", COLORTERM="truecolor")


def test_a_log_has_a_line_a_minute_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    with progress.TrainingProgress(100) as shown:
        monkeypatch.setattr(shown.bar, "get_time", lambda: now)
        for update in (10, 20):  # A resumed training begins at any update.
            now += 100
            shown.show(update, RECORD)
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
        for update in (30, 100):
            now += 100
            shown.show(update, RECORD)
    said = "loss 7.242, ppl 1206.99, 14,680 tokens/s, lr 9.49e-04"
    assert capsys.readouterr().out == f"update 30 of 100: {said}, 12 minutes left\nupdate 100 of 100: {said}\n"
