"""Show the progress of training: live on a terminal, a line per minute in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

LOG_SECONDS = 60.0  # between two lines of a log


class TrainingProgress:
    """Update, loss, perplexity, tokens per second, learning rate and remaining time."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        console = Console(file=sys.stderr)
        self.live = console.is_terminal
        columns = TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[values]}")
        self.bar = Progress(*columns, TimeRemainingColumn(), console=console, disable=not self.live)
        self.task = self.bar.add_task("training", total=updates, values="")
        self.logged = time.monotonic()
        self.valid = ""

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self, update: int, record: Mapping[str, float]) -> None:
        """Show a record of the training's history."""
        if "valid_ppl" in record:
            self.valid = f", validation ppl {record['valid_ppl']:.2f}"
            return
        values = (
            f"loss {record['loss']:.3f}, ppl {record['ppl']:.2f}{self.valid}, "
            f"{record['tokens_per_second']:,.0f} tokens/s, lr {record['learning_rate']:.2e}"
        )
        self.bar.update(self.task, completed=update, values=values)
        if not self.live and (time.monotonic() - self.logged > LOG_SECONDS or update == self.updates):
            self.logged = time.monotonic()
            print(f"update {update:,} of {self.updates:,}: {values}", flush=True)
