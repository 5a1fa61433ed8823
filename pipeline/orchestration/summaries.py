"""What an orchestrator shows of a run: how far training is, and its BLEU beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from pipeline import stage
from pipeline.config.paths import CONFIG
from pipeline.config.settings import DataSettings, RunSettings
from pipeline.reporting import page
from pipeline.stages import report
from pipeline.tracking.spool import Spool

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
    """Reads what a run's training tells its tracker, from a copy of the repository."""

    def __init__(self, spool: Spool, copy: Path) -> None:
        self.spool, self.copy = spool, copy
        self.offset = 0
        self.update = 0
        self.values: dict[str, float] = {}

    def standing(self) -> Standing | None:
        """What was told last; None before anything was."""
        events, self.offset = self.spool.read(self.offset)
        for event in events:
            if event["stage"] != "train" or event["kind"] != "metrics" or event["update"] is None:
                continue
            # Not the machine's load, whose steps are no updates.
            if event["values"].keys() & _FORMS.keys():
                self.update = int(event["update"])
                self.values.update(event["values"])
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
