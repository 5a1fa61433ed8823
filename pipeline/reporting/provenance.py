"""What a report says of the run that made it beside its results: the time of its stages, and where else it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from humanize import precisedelta

from pipeline.reporting.page import Bars, Block, Heading, Links


@dataclass(frozen=True)
class Provenance:
    """Facts that the stage `report` is given, because no stage knows who runs it."""

    stages: Sequence[tuple[str, float | None, bool]] = ()
    """Stages before the report in order, the seconds that they took (None: not known), and whether they ran now."""
    links: Sequence[tuple[str, str, str]] = ()
    """Label, text, and an address or an empty string: the commit, MLflow's run, Prefect's run, DVC's experiment."""

    def header(self) -> list[Block]:
        """Return the links for the top of the page."""
        return [Links(self.links)] if self.links else []

    def times(self) -> list[Block]:
        """Return a bar for the time of each stage."""
        if not self.stages:
            return []
        rows = [(name, seconds or 0.0, _spent(seconds, ran)) for name, seconds, ran in self.stages]
        return [Heading("Time of the stages", 3), Bars(("stage", "time"), rows)]


def _spent(seconds: float | None, ran: bool) -> str:
    if seconds is None:
        return "not run again: DVC had its result"
    spent = f"{seconds:.1f} seconds" if seconds < 60 else precisedelta(round(seconds))
    return spent if ran else f"{spent} in an earlier run, whose result DVC had"
