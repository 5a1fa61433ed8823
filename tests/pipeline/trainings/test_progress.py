"""What training shows: a bar on a terminal, and a line a minute in a log."""

import io
import sys

import pytest

from pipeline.trainings import progress

RECORD = {"loss": 7.2424, "ppl": 1206.99, "tokens_per_second": 14_680.0, "learning_rate": 9.49e-4}


def test_a_narrow_terminal_has_the_bar_the_time_and_what_fits_of_the_values(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    with progress.TrainingProgress(1450) as shown:
        shown.show(1400, {"valid_ppl": 1.63})
        shown.show(1450, RECORD)
    line = terminal.getvalue().split("\r")[-1]
    assert "1450/1450" in line
    assert "0:00:00 ppl 1206.99, validation ppl 1.63, " in line


def test_logs_have_the_time_left_by_minute(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    now = 1000.0
    with progress.TrainingProgress(100) as shown:
        monkeypatch.setattr(shown, "get_time", lambda: now)
        for update in (10, 20):  # A resumed training begins at any update.
            now += 100
            shown.show(update, RECORD)
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
        for update in (30, 100):
            now += 100
            shown.show(update, RECORD)
    said = "ppl 1206.99, loss 7.242, 14,680 tokens/s, lr 9.49e-04"
    assert capsys.readouterr().out == f"update 30 of 100: {said}, 12 minutes left\nupdate 100 of 100: {said}\n"
