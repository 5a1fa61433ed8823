"""The view of what a training wrote for a few validation lines at every validation, beside its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from nmt.text.parallel_text import parallel
from pipeline.config.tasks import task_of
from pipeline.report.figures import Points
from pipeline.report.page import Table, View


def view(
    records: Iterable[Mapping[str, Any]],
    losses: Points,
    sides: tuple[Path, Path],
    languages: Sequence[str],
    text: Callable[[Sequence[int], str], str],
) -> View:
    """Return the view of the records of results/validation.jsonl; without JavaScript, a table of one line's outputs.

    `sides`: the validation set; `text` returns the raw output of a source line's ids.
    """
    loss_at = dict(losses)
    validations = [each for each in records if each["update"] in loss_at]
    numbers = sorted({int(number) for each in validations for number in each["outputs"]})
    pairs = dict(enumerate(islice(parallel(*sides), max(numbers, default=-1) + 1)))
    lines = [{"line": number + 1, "source": pairs[number][0], "reference": pairs[number][1]} for number in numbers]
    steps = [
        {
            "update": each["update"],
            "loss": loss_at[each["update"]],
            "outputs": [text(each["outputs"].get(str(number), []), pairs[number][0]) for number in numbers],
        }
        for each in validations
    ]
    middle = len(numbers) // 2
    rows = [(f"{step['update']:,}", f"{step['loss']:.3f}", step["outputs"][middle]) for step in steps if numbers]
    of_line = f"output for: {lines[middle]['source']}" if lines else "output"
    title = f"Cross-entropy of the validation set, nats per {task_of(languages[1]).unit}"
    content = {"title": title, "languages": languages, "lines": lines, "steps": steps}
    return View("learning", "learning", content, fallback=[Table(("update", "validation loss", of_line), rows)])
