"""Scores of translations: sacreBLEU with its signature, and BLEU as the paper computes it; section 6.1.

The paper's 27.3 and 28.4 are BLEU on Moses tokens with compounds split at hyphens (tensor2tensor's get_ende_bleu.sh),
against a reference with plain quotes; sacreBLEU is about 1.5 points lower on the same translations. Both are reported,
by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.config import InputError
from nmt.text import parallel_text

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric
    from sacrebleu.significance import Result

SAMPLES = 1000
"""Resamples of the bootstrap (Koehn 2004). The seed is sacreBLEU's: 12345, or $SACREBLEU_SEED."""

_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"'})

_SETS = {
    "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e": "newstest2014/full, de (sacreBLEU: wmt14/full)",
    "9ed99a750c7818b7bbc62230ed0b1a1673325989bdcf9f81a7d7e67bde8ca473": "newstest2014/full, fr (sacreBLEU: wmt14/full)",
    "48fad9e043d7e8e89c06fa8203283501166e4f4a059f6cf08d9a4d6674a19fd8": "newstest2014/filtered, de (sacreBLEU: wmt14)",
    "026f4fd1fe147ece7eb201ef46063482990554d342e05db9480b1258d71d3d4f": "newstest2013, de (sacreBLEU: wmt13)",
    "d197faafd03242c13f4589cc4c8391a8d33da7be08feab5b8759593ee04fda2e": "newstest2013, fr (sacreBLEU: wmt13)",
}
"""Names of WMT's news sets, by the sha256 of the references, with every run of white space as one space.

The newstest2014 that papers report has 3,003 lines. sacreBLEU's `wmt14` is a subset of it, 2,737 lines of
English-German in the same order.
"""


@dataclass(frozen=True)
class Step:
    """A step from sacreBLEU to the paper's way of scoring, and the BLEU after it, in percent."""

    name: str
    bleu: float


@dataclass(frozen=True)
class ConfidenceInterval:
    """A 95% confidence interval, in points of BLEU."""

    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """All scores of one system, in percent."""

    bleu: float
    """Cased sacreBLEU (13a) of detokenised text."""
    signature: str
    interval: ConfidenceInterval
    chrf: float
    chrf_signature: str
    paper_way: list[Step]
    lines: int
    set: str | None
    """The name of the references if they are a known set of WMT's."""

    @property
    def bleu_paper_way(self) -> float:
        """BLEU as the paper reports it."""
        return self.paper_way[-1].bleu


@dataclass(frozen=True)
class Comparison:
    """A system compared with a baseline by paired bootstrap resampling."""

    difference: float
    """In points of the score; positive if the system is better."""
    p_value: float
    """The probability of a difference at least as large by chance."""


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; raise InputError if it is missing, empty or not UTF-8."""
    try:
        lines = list(parallel_text.read_lines(path))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    if not lines:
        raise InputError(f"{path} is empty: there is nothing to score")
    return lines


def known_set(references: Sequence[str]) -> str | None:
    """Return the name of a known set of references, such as `newstest2014/full, de (sacreBLEU: wmt14/full)`."""
    # sacreBLEU's copies (`--echo ref`) have spaces where the originals have no-break spaces.
    lines = (re.sub(r"\s+", " ", line.strip()) for line in references)
    return _SETS.get(hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest())


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} translations for {len(references)} references: give one line for each line"
        )
    if not references:
        raise InputError("there is no line to score")


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    _check(hypotheses, references)
    score = float(metric.corpus_score(hypotheses, [references]).score)
    return score, str(metric.get_signature())


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return cased sacreBLEU (13a) of detokenised lines in percent, and its signature."""
    from sacrebleu.metrics.bleu import BLEU

    return _corpus_score(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return chrF2 (Popovic 2015) in percent, and its signature."""
    from sacrebleu.metrics.chrf import CHRF

    return _corpus_score(CHRF(), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return chrF2 of each line in percent."""
    from sacrebleu.metrics.chrf import CHRF

    _check(hypotheses, references)
    metric, pairs = CHRF(), zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def split_compounds(line: str) -> str:
    """Replace `rich-text` by `rich ##AT##-##AT## text`, as the papers on WMT14 English-German score it."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def plain_quotes(line: str) -> str:
    """Replace unicode double quotes by `"`: in German newstest2014 the closing one varies within the reference."""
    return line.translate(_QUOTES)


def paper_way(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> list[Step]:
    """Return the steps from sacreBLEU (first) to the paper's way (last); `lang` is the target language.

    Every step changes both sides. German: Moses tokens, compounds split, quotes made plain. Other languages: Moses
    tokens alone, as the literature reports English-French.
    """
    from sacrebleu.metrics.bleu import BLEU
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(lang)
    # Plain quotes before or after tokenization give the same words.
    changes = [("Moses tokens", lambda line: moses.tokenize(line, return_str=True, escape=False))]
    if lang == "de":
        changes += [("compounds split at hyphens", split_compounds), ("unicode quotes made plain", plain_quotes)]
    steps = [Step("sacreBLEU, 13a", _corpus_score(BLEU(force=True), hypotheses, references)[0])]
    for name, change in changes:
        hypotheses, references = list(map(change, hypotheses)), list(map(change, references))
        steps.append(Step(name, _corpus_score(BLEU(tokenize="none", force=True), hypotheses, references)[0]))
    return steps


def _bootstrap(systems: Sequence[Sequence[str]], references: Sequence[str]) -> list[Result]:
    """Return sacreBLEU's bootstrap of the systems; all but the first are also compared with the first (Koehn 2004)."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    for system in systems:
        _check(system, references)
    metrics: dict[str, Metric] = {"BLEU": BLEU()}
    named = [(str(number), system) for number, system in enumerate(systems)]
    _, results = PairedTest(named, metrics, [references], test_type="bs", n_samples=SAMPLES)()
    return [result for result in results["BLEU"] if not isinstance(result, str)]


def confidence(hypotheses: Sequence[str], references: Sequence[str]) -> ConfidenceInterval:
    """Return the 95% interval of sacreBLEU under resampling of the lines (Koehn 2004)."""
    result: Any = _bootstrap([hypotheses], references)[0]
    return ConfidenceInterval(float(result.mean - result.ci), float(result.mean + result.ci))


def compare(baseline: Sequence[str], system: Sequence[str], references: Sequence[str]) -> Comparison:
    """Compare the sacreBLEU of `system` with that of `baseline` by paired bootstrap resampling (Koehn 2004)."""
    first, second = _bootstrap([baseline, system], references)
    assert second.p_value is not None
    difference = float(second.score - first.score)
    # sacreBLEU reports a significant difference for equal systems and for texts of one line. We return p = 1 there.
    return Comparison(difference, float(second.p_value) if difference and len(references) > 1 else 1.0)


def score(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> Scores:
    """Return all scores of detokenised translations; raise InputError unless there is one for each reference."""
    return Scores(
        *sacrebleu(hypotheses, references),
        confidence(hypotheses, references),
        *chrf(hypotheses, references),
        paper_way(hypotheses, references, lang),
        lines=len(references),
        set=known_set(references),
    )


def score_systems(hypotheses: Sequence[Path], reference: Path, lang: str) -> list[dict[str, Any]]:
    """Return all scores of each system's file; all but the first are also compared with the first.

    Raises InputError if a file cannot be read or does not have one line for each reference.
    """
    references = read_lines(reference)
    systems = [read_lines(path) for path in hypotheses]
    for path, lines in zip(hypotheses, systems, strict=True):
        if len(lines) != len(references):
            raise InputError(
                f"{path} has {len(lines)} lines, {reference} has {len(references)}: "
                "give one translation for each reference"
            )
    found: list[dict[str, Any]] = []
    for path, lines in zip(hypotheses, systems, strict=True):
        scores = score(lines, references, lang)
        report = {
            "hypothesis": str(path),
            "set": scores.set,
            "lines": scores.lines,
            "bleu": scores.bleu,
            "bleu_signature": scores.signature,
            "bleu_low": scores.interval.low,
            "bleu_high": scores.interval.high,
            "bleu_paper_way": scores.bleu_paper_way,
            "paper_way_steps": [{"step": step.name, "bleu": step.bleu} for step in scores.paper_way],
            "chrf": scores.chrf,
            "chrf_signature": scores.chrf_signature,
        }
        if found:
            report |= vars(compare(systems[0], lines, references))
        found.append(report)
    return found


def format_report(report: Mapping[str, Any]) -> str:
    """Format one of the reports of `score_systems` for people."""
    named = f" of {report['set']}" if report["set"] else ""
    lines = [
        f"{report['hypothesis']}: {report['lines']} lines{named}",
        f"  sacreBLEU {report['bleu']:.2f}, 95% interval {report['bleu_low']:.2f} to {report['bleu_high']:.2f}",
        f"    {report['bleu_signature']}",
        f"  the paper's way {report['bleu_paper_way']:.2f}, by steps:",
        *(f"    {step['bleu']:.2f} {step['step']}" for step in report["paper_way_steps"]),
        f"  chrF {report['chrf']:.2f}",
        f"    {report['chrf_signature']}",
    ]
    if "difference" in report:
        difference, p_value = report["difference"], report["p_value"]
        lines.append(f"  against the first: {difference:+.2f} sacreBLEU, p = {p_value:.3f} (paired bootstrap)")
    return "\n".join(lines)
