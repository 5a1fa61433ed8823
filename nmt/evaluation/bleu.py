"""Scores of translations: sacreBLEU with its signature, and the paper's own way of scoring; section 6.1.

The paper's 27.3 and 28.4 are BLEU on Moses tokens with compounds split at hyphens (tensor2tensor's get_ende_bleu.sh),
against a reference whose quotes were plain; sacreBLEU gives about 1.5 less on the same translations. The two are always
named.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.config import InputError
from nmt.evaluation.testsets import name_of

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

SAMPLES = 1000
"""Resamples of the bootstrap (Koehn 2004); the seed is sacreBLEU's, 12345 unless SACREBLEU_SEED says otherwise."""

_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"'})


@dataclass(frozen=True)
class Step:
    """One step of a way of scoring and the BLEU after it, in percent."""

    name: str
    bleu: float


@dataclass(frozen=True)
class Interval:
    """A 95% confidence interval, in points of BLEU."""

    low: float
    high: float


@dataclass(frozen=True)
class Scores:
    """Everything about one system's translations."""

    bleu: float
    """sacreBLEU: cased, 13a, of detokenised text; in percent."""
    signature: str
    interval: Interval
    chrf: float
    chrf_signature: str
    paper_way: list[Step]
    """The last step's score is the paper's way; the first is sacreBLEU's."""
    lines: int
    set: str | None
    """The name of the references, where they are a set of WMT's that is known."""

    @property
    def bleu_paper_way(self) -> float:
        """BLEU as the paper reports it."""
        return self.paper_way[-1].bleu


@dataclass(frozen=True)
class Comparison:
    """A system against the first one given, by paired bootstrap resampling."""

    difference: float
    """In points of BLEU; positive where the system is better."""
    p_value: float
    """How likely a difference at least as large would be by chance."""


def read_lines(path: Path) -> list[str]:
    """The lines of a text, ended by \\n alone; raises InputError where it is empty or not UTF-8."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    lines = content.removesuffix(b"\n").split(b"\n") if content else []
    if not lines:
        raise InputError(f"{path} is empty: there is nothing to score")
    decoded = []
    for number, line in enumerate(lines, start=1):
        try:
            decoded.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise InputError(f"{path}, line {number}, byte {error.start + 1}: not UTF-8; convert the file") from error
    return decoded


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise InputError(
            f"there are {len(hypotheses)} translations for {len(references)} references: give one line for each line"
        )
    if not references:
        raise InputError("there is no line to score")


def _percent(hypotheses: Sequence[str], references: Sequence[str], tokenize: str) -> float:
    from sacrebleu.metrics.bleu import BLEU

    return float(BLEU(tokenize=tokenize, force=True).corpus_score(hypotheses, [references]).score)


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Cased sacreBLEU (13a) in percent of detokenised lines, and its signature; one reference a line."""
    from sacrebleu.metrics.bleu import BLEU

    _check(hypotheses, references)
    metric = BLEU()
    score = float(metric.corpus_score(hypotheses, [references]).score)
    return score, str(metric.get_signature())


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """chrF2 (Popovic 2015) in percent, and its signature."""
    from sacrebleu.metrics.chrf import CHRF

    _check(hypotheses, references)
    metric = CHRF()
    score = float(metric.corpus_score(hypotheses, [references]).score)
    return score, str(metric.get_signature())


def split_compounds(line: str) -> str:
    """`rich-text format` -> `rich ##AT##-##AT## text format`, as the papers on WMT14 English-German score it."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def plain_quotes(line: str) -> str:
    """The unicode double quotes made `"`: in German newstest2014 the closing one varies within the reference."""
    return line.translate(_QUOTES)


def paper_way(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> list[Step]:
    """The steps from sacreBLEU to the paper's way, each with the score after it; `lang` is the target's code.

    Every step acts on both sides. German: Moses tokens, compounds split, quotes made plain. Other languages: Moses
    tokens alone, which is how English-French is reported in the literature.
    """
    from sacremoses import MosesTokenizer

    _check(hypotheses, references)
    steps = [Step("sacreBLEU, 13a", _percent(hypotheses, references, "13a"))]
    moses = MosesTokenizer(lang)

    def tokens(lines: Sequence[str]) -> list[str]:
        return [moses.tokenize(line, return_str=True, escape=False) for line in lines]

    # Quotes before tokens and after them give the same words, so the steps can follow the order of their effect.
    ours, theirs = tokens(hypotheses), tokens(references)
    steps.append(Step("Moses tokens", _percent(ours, theirs, "none")))
    if lang == "de":
        ours, theirs = [split_compounds(line) for line in ours], [split_compounds(line) for line in theirs]
        steps.append(Step("compounds split at hyphens", _percent(ours, theirs, "none")))
        ours, theirs = [plain_quotes(line) for line in ours], [plain_quotes(line) for line in theirs]
        steps.append(Step("unicode quotes made plain", _percent(ours, theirs, "none")))
    return steps


def confidence(hypotheses: Sequence[str], references: Sequence[str]) -> Interval:
    """The 95% interval of sacreBLEU under resampling of the lines (Koehn 2004)."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    _check(hypotheses, references)
    metrics: dict[str, Metric] = {"BLEU": BLEU()}
    test = PairedTest([("", hypotheses)], metrics, [references], test_type="bs", n_samples=SAMPLES)
    _, results = test()
    result: Any = results["BLEU"][0]
    return Interval(float(result.mean - result.ci), float(result.mean + result.ci))


def score(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> Scores:
    """All scores of detokenised translations; raises InputError where there is not one for each reference."""
    bleu, signature = sacrebleu(hypotheses, references)
    chrf_score, chrf_signature = chrf(hypotheses, references)
    return Scores(
        bleu=bleu,
        signature=signature,
        interval=confidence(hypotheses, references),
        chrf=chrf_score,
        chrf_signature=chrf_signature,
        paper_way=paper_way(hypotheses, references, lang),
        lines=len(references),
        set=name_of(references),
    )


def compare(baseline: Sequence[str], system: Sequence[str], references: Sequence[str]) -> Comparison:
    """`system` against `baseline` in sacreBLEU by paired bootstrap resampling (Koehn 2004)."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.significance import PairedTest

    _check(baseline, references)
    _check(system, references)
    metrics: dict[str, Metric] = {"BLEU": BLEU()}
    named = [("baseline", baseline), ("system", system)]
    _, results = PairedTest(named, metrics, [references], test_type="bs", n_samples=SAMPLES)()
    first, second = results["BLEU"]
    assert not isinstance(first, str)
    assert not isinstance(second, str)
    assert second.p_value is not None
    difference = float(second.score - first.score)
    # sacreBLEU takes no difference at all for a significant one: no resample differs more than that.
    return Comparison(difference, float(second.p_value) if difference else 1.0)


def _report(path: Path, scores: Scores) -> dict[str, Any]:
    return {
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


def text(report: Mapping[str, Any]) -> str:
    """One of `reports` for people."""
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


def _read(reference: Path, hypotheses: Sequence[Path]) -> tuple[list[str], list[list[str]]]:
    references = read_lines(reference)
    texts = [read_lines(path) for path in hypotheses]
    for path, lines in zip(hypotheses, texts, strict=True):
        if len(lines) != len(references):
            raise InputError(
                f"{path} has {len(lines)} lines, {reference} has {len(references)}: "
                "give one translation for each reference"
            )
    return references, texts


def reports(hypotheses: Sequence[Path], reference: Path, lang: str) -> list[dict[str, Any]]:
    """All scores of each system's file; from the second on, compared with the first.

    Raises InputError where a file cannot be read or does not have a line for each reference.
    """
    references, texts = _read(reference, hypotheses)
    found: list[dict[str, Any]] = []
    for path, lines in zip(hypotheses, texts, strict=True):
        report = _report(path, score(lines, references, lang))
        if found:
            compared = compare(texts[0], lines, references)
            report |= {"difference": compared.difference, "p_value": compared.p_value}
        found.append(report)
    return found
