"""Show the progress of training: live on a terminal, a line per minute in a log."""

import sys
import time
from collections.abc import Mapping

from humanize import naturaldelta
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

LOG_SECONDS = 60.0  # between two lines of a log
VALUES_WIDTH = 120  # characters of a line beside the bar


class TrainingProgress(Progress):
    """Update, perplexity in training and validation, loss, tokens per second, learning rate, remaining time."""

    def __init__(self, updates: int) -> None:
        console = Console(file=sys.stderr)
        bar = BarColumn(min(40, max(10, console.width - VALUES_WIDTH)))
        # On a narrow terminal the last values are cut off, and nothing else.
        values = TextColumn("{task.fields[values]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        columns = TextColumn("training"), bar, MofNCompleteColumn(), TimeRemainingColumn(), values
        # The speed is that of the last minutes: on CPUs a minute may lie between two records.
        period = 10 * LOG_SECONDS
        super().__init__(
            *columns, console=console, disable=not console.is_terminal, expand=True, speed_estimate_period=period
        )
        self.updates = updates
        self.training = self.add_task("training", total=updates, values="")
        self.logged = time.monotonic()
        self.valid = ""

    def show(self, update: int, record: Mapping[str, float]) -> None:
        if "valid_ppl" in record:
            self.valid = f", validation ppl {record['valid_ppl']:.2f}"
        if "loss" not in record:
            return
        values = (
            f"ppl {record['ppl']:.2f}{self.valid}, loss {record['loss']:.3f}, "
            f"{record['tokens_per_second']:,.0f} tokens/s, lr {record['learning_rate']:.2e}"
        )
        self.update(self.training, completed=update, values=values)
        if self.disable and (time.monotonic() - self.logged > LOG_SECONDS or update == self.updates):
            self.logged = time.monotonic()
            seconds = self.tasks[self.training].time_remaining
            left = f", {naturaldelta(seconds)} left" if seconds else ""
            print(f"update {update:,} of {self.updates:,}: {values}{left}", flush=True)
