"""What an orchestrator shows of a run: how far training is, and its BLEU beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline import stage
from pipeline.config.settings import CONFIG, DataSettings, RunSettings
from pipeline.reporting import page
from pipeline.stages import report
from pipeline.tracking.record import Record, read

_FORMS: dict[str, Callable[[float], str]] = {
    "ppl": "perplexity {:.2f}".format,
    "valid_ppl": "validation perplexity {:.2f}".format,
    "tokens_per_second": "{:,.0f} tokens/s".format,
    "learning_rate": "learning rate {:.2e}".format,
}


@dataclass(frozen=True)
class Standing:
    """How far training is."""

    percent: float
    text: str


class Training:
    """Reads the history in a run's record, and the configuration in its copy of the repository."""

    def __init__(self, folder: Path, copy: Path) -> None:
        self.history, self.copy = Record(folder).history, copy
        self.offset = 0
        self.update = 0
        self.values: dict[str, float] = {}

    def standing(self) -> Standing | None:
        """Return what was recorded last; None before the first record."""
        lines, self.offset = read(self.history, self.offset)
        for line in lines:
            self.update = int(line["update"])
            self.values.update(line["values"])
        if not self.update:
            return None
        updates = yaml.safe_load((self.copy / CONFIG).read_text(encoding="utf-8"))["training"]["updates"]
        parts = [f"update {self.update:,} of {updates:,}"]
        parts += [form(self.values[name]) for name, form in _FORMS.items() if name in self.values]
        return Standing(100 * min(1.0, self.update / updates), ", ".join(parts))


def beside_the_paper(copy: Path) -> str | None:
    """The report's table of results, in Markdown; None where nothing was scored in this copy."""
    metrics, config = copy / report.METRICS, copy / CONFIG
    if not metrics.exists():
        return None
    content = yaml.safe_load(config.read_text(encoding="utf-8"))
    run, data = RunSettings.model_validate(content["run"]), DataSettings.model_validate(content["data"])
    return page.markdown(report.results(run, data, stage.read_json(metrics)), report.FIGURES.name)
