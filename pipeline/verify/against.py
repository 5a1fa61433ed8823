"""Say where two certified runs part first, and why: `wmt verify --against`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

from pipeline.config import graph, paths
from pipeline.config.rows import flat
from pipeline.stages import train
from pipeline.verify import certificate as certificates
from pipeline.verify.certificate import Finding, difference, differences
from pipeline.verify.replay import Training

OTHER = "the other run"


class Run:
    """A certified run, with its states and its corpus if its folder or this one has them."""

    def __init__(self, path: Path) -> None:
        self.certificate, root = certificates.load(path), path.resolve().parent.parent
        self.recorded = self.certificate.training
        # Both trainings may be kept here, under one state root.
        here, there = Training(self.recorded), Training(self.recorded, root / "work")
        self.training = here if here.kept else there
        self.corpus: Path | None = None
        for folder in (Path.cwd(), root):
            with chdir(folder):
                self.corpus = paths.BINNED.resolve() if train.data_hashes() == self.recorded.data else self.corpus

    def made(self, stage: graph.Stage) -> dict[str, Any]:
        """Return what the certificate has of a stage; of the training its links, since its files hold times."""
        if stage.name == graph.training_stage():
            return {f"link {link.update}": link.link for link in self.recorded.links}
        return self.certificate.made(stage)

    def conditions(self, update: int) -> dict[str, Any]:
        """Return all that decides the weights after an update."""
        decided_by = {"settings": self.recorded.job, "data": self.recorded.data, "code": self.recorded.code}
        return dict(flat({**decided_by, "conditions": self.training.by_update[update].conditions}))


def parting(path: Path, other: Path) -> Iterator[Finding]:
    """Yield the first stage in which two runs differ; of their trainings the first link and update, and the reasons.

    Yields nothing where they have the same translations. Raises InputError for a file that is no certificate.
    """
    one, two = Run(path), Run(other)
    stages, before = graph.stages(), 0
    for name in graph.upstream("decode", stages):
        if told := difference(one.made(stages[name]), two.made(stages[name]), OTHER):
            yield Finding(name, "differs", told)
            break
    for update in sorted(one.training.by_update.keys() & two.training.by_update.keys()):
        links = (run.training.by_update[update] for run in (one, two))
        if len({(link.weights, link.moments) for link in links}) == 2:
            yield Finding("link", "differs", f"the trainings part between updates {before:,} and {update:,}")
            yield first_update(one, two, before, update)
            reasons = differences(one.conditions(update), two.conditions(update), OTHER)
            yield Finding("conditions", "differs", "; ".join(reasons) or "none that was recorded")
            return
        before = update


def first_update(one: Run, two: Run, before: int, last: int) -> Finding:
    """Train both again up to a link that differs; return the first update after which they differ."""
    start = max((at for at in one.training.starts() if at <= before and at in two.training.starts()), default=None)
    if start is None or one.corpus is None or two.corpus is None:
        return Finding("update", "inconclusive", "a state before it, or the corpus, is not here of both")
    found = []
    for run in (one, two):
        again, _ = run.training.retrain(start, last, run.corpus or paths.BINNED, verify_every=1)
        found.append({link.update: (link.weights, link.moments) for link in again})
    told = f"trained again here after update {start:,}"
    for update in range(start + 1, last + 1):
        if found[0][update] != found[1][update]:
            return Finding("update", "differs", f"{told}, both part at update {update:,}")
    recorded = (run.training.by_update[last] for run in (one, two))
    same = [(link.weights, link.moments) == found[0][last] for link in recorded]
    whose = "both runs" if all(same) else "this run" if same[0] else "the other run" if same[1] else "neither run"
    return Finding("update", "equal", f"{told}, both have the same weights up to update {last:,}: those of {whose}")
