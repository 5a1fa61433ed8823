"""Every step of a run, from the corpus to the score, compared with its certificate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.common import paths
from pipeline.verification import certificate, outputs, weights
from pipeline.verification.certificate import Files, Finding, Subject


def findings(path: Path, files: Files, named: Sequence[str], share: float, translate: bool) -> Iterator[Finding]:
    """Yield the finding of every step, in the order of the pipeline.

    `named`: the intervals of updates to train again; none: random ones that cover `share` of the updates. Raises
    InputError where the certificate is none, or of another run, or where an interval cannot be trained again.
    """
    subject = Subject(path, files)
    recorded = subject.certificate
    yield certificate.seal(subject)
    corpus = certificate.data(subject, "corpus", recorded["training"]["data"], paths.BINNED, "*.arrow")
    yield corpus
    yield certificate.data(subject, "subwords", recorded["subwords"], paths.SUBWORDS, "*")
    yield certificate.settings(subject)
    yield certificate.code(subject)
    yield weights.curves(subject)
    yield weights.states(subject)
    yield weights.retrained(subject, corpus, named, share)
    yield weights.checkpoints(subject)
    yield weights.averaged(subject)
    yield weights.last(subject)
    yield outputs.translations(subject, translate)
    yield outputs.score(subject)


def text(finding: Finding) -> str:
    """Return a finding as a line."""
    return f"{finding.step:13} {finding.status:11} {finding.detail}"


def verdict(found: Sequence[Finding]) -> str:
    """Return a sentence on all findings."""
    if changed := [finding.step for finding in found if finding.status == "differs"]:
        return f"not verified: {', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
    if absent := [finding.step for finding in found if finding.status == "not here"]:
        return f"verified, but for what is not here: {', '.join(absent)}"
    return "verified"
