"""Progress of long work: live on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

QUIET_SECONDS = 60.0
"""Between two lines of a log."""


class TrainingProgress:
    """Update, loss, perplexity, rate, learning rate, time left."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.console = Console(file=sys.stderr)
        self.live = self.console.is_terminal
        self.bar = Progress(
            TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(), console=self.console, disable=not self.live,
        )  # fmt: skip
        self.task = self.bar.add_task("training", total=updates, values="")
        self.told = time.monotonic()
        self.valid = ""

    def __enter__(self) -> TrainingProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def show(self, update: int, record: Mapping[str, float]) -> None:
        """Tell a record of the training's history."""
        if "valid_ppl" in record:
            self.valid = f", validation ppl {record['valid_ppl']:.2f}"
            return
        values = (
            f"loss {record['loss']:.3f}, ppl {record['ppl']:.2f}{self.valid}, "
            f"{record['tokens_per_second']:,.0f} tokens/s, lr {record['learning_rate']:.2e}"
        )
        self.bar.update(self.task, completed=update, values=values)
        if not self.live and (time.monotonic() - self.told > QUIET_SECONDS or update == self.updates):
            self.told = time.monotonic()
            print(f"update {update:,} of {self.updates:,}: {values}", flush=True)
