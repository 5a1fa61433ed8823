"""Scores of translations: sacreBLEU with its signature, and BLEU as the paper computes it; section 6.1.

The paper's 27.3 and 28.4 are BLEU on Moses tokens with compounds split at hyphens (tensor2tensor's get_ende_bleu.sh),
against a reference with plain quotes; sacreBLEU is about 1.5 points lower on the same translations. Both are reported,
by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacremoses import MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from nmt import bootstrap
from nmt.errors import InputError
from nmt.evaluation import known_sets
from nmt.text import parallel_text

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from sacrebleu.metrics.base import Metric

_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"'})


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; raise InputError if it is empty or not UTF-8."""
    if not (lines := list(parallel_text.composed(parallel_text.read_lines(path), path))):
        raise InputError(f"{path} is empty: there is nothing to score")
    return lines


def _check(hypotheses: Sequence[str], references: Sequence[str], names: Sequence[object] = ("output", "set")) -> None:
    if len(hypotheses) != len(references):
        raise InputError(
            f"{names[0]} has {len(hypotheses)} lines, {names[1]} has {len(references)}: "
            "give one translation for each reference"
        )
    if not references:
        raise InputError("there is no line to score")


def _corpus_score(metric: Metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    _check(hypotheses, references)
    score = float(metric.corpus_score(hypotheses, [references]).score)
    return score, str(metric.get_signature())


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return cased sacreBLEU (13a) of detokenised lines in percent, and its signature."""
    return _corpus_score(BLEU(), hypotheses, references)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return chrF2 (Popovic 2015) in percent, and its signature."""
    return _corpus_score(CHRF(), hypotheses, references)


def ter(hypotheses: Sequence[str], references: Sequence[str]) -> tuple[float, str]:
    """Return TER (Snover et al. 2006) in percent, lower is better, and its signature: seconds for 1,000 lines."""
    return _corpus_score(TER(), hypotheses, references)


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    metric, pairs = CHRF(), zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def split_compounds(line: str) -> str:
    """Replace `rich-text` by `rich ##AT##-##AT## text`, as the papers on WMT14 English-German score it."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def plain_quotes(line: str) -> str:
    """Replace unicode double quotes by `"`: in German newstest2014 the closing one varies within the reference."""
    return line.translate(_QUOTES)


def paper_way(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> list[tuple[str, float]]:
    """Return the steps from sacreBLEU (first) to the paper's way (last) and the BLEU after each; `lang`: the target's.

    Every step changes both sides. German: Moses tokens, compounds split, quotes made plain. Other languages: Moses
    tokens alone, as the literature reports English-French.
    """
    moses = MosesTokenizer(lang)
    # Plain quotes before or after tokenization give the same words.
    changes = [("Moses tokens", lambda line: moses.tokenize(line, return_str=True, escape=False))]
    if lang == "de":
        changes += [("compounds split at hyphens", split_compounds), ("unicode quotes made plain", plain_quotes)]
    steps = [("sacreBLEU, 13a", _corpus_score(BLEU(force=True), hypotheses, references)[0])]
    for name, change in changes:
        hypotheses, references = list(map(change, hypotheses)), list(map(change, references))
        steps.append((name, _corpus_score(BLEU(tokenize="none", force=True), hypotheses, references)[0]))
    return steps


def line_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> NDArray[np.int64]:
    """Return what corpus BLEU (sacreBLEU, 13a) sums over lines, [lines, 10]: 4 matches, 4 totals, both lengths."""
    _check(hypotheses, references)
    metric, pairs = BLEU(effective_order=True), zip(hypotheses, references, strict=True)
    scores = [metric.sentence_score(hypothesis, [reference]) for hypothesis, reference in pairs]
    return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])


def bleu_of(sums: NDArray[np.int64]) -> float:
    """Return the corpus BLEU of summed line statistics, [10], in percent."""
    values = sums.tolist()
    return float(BLEU.compute_bleu(values[:4], values[4:8], values[8], values[9], smooth_method="exp").score)


def compare(baseline: Sequence[str], system: Sequence[str], references: Sequence[str]) -> bootstrap.Comparison:
    """Compare the sacreBLEU of `system` with that of `baseline` by paired bootstrap resampling."""
    return bootstrap.compare(line_statistics(baseline, references), line_statistics(system, references), bleu_of)


def score(hypotheses: Sequence[str], references: Sequence[str], lang: str) -> dict[str, Any]:
    """Return all scores of detokenised translations, in percent, by the keys of `wmt bleu --json`.

    `set` is the name of the references if they are a known set of WMT's. Raises InputError unless there is one
    translation for each reference.
    """
    known = known_sets.find(references, lang)
    scores: dict[str, Any] = {"set": known and known.title, "lines": len(references)}
    scores["bleu"], scores["bleu_signature"] = sacrebleu(hypotheses, references)
    scores["bleu_low"], scores["bleu_high"] = bootstrap.interval(line_statistics(hypotheses, references), bleu_of)
    steps = paper_way(hypotheses, references, lang)
    scores["bleu_paper_way"] = steps[-1][1]
    scores["paper_way_steps"] = [{"step": name, "bleu": value} for name, value in steps]
    scores["chrf"], scores["chrf_signature"] = chrf(hypotheses, references)
    return scores


def score_systems(
    hypotheses: Sequence[Path], reference: Path, lang: str, *, with_ter: bool = False
) -> list[dict[str, Any]]:
    """Return all scores of each system's file; all but the first are also compared with the first.

    Raises InputError if a file does not have one line for each reference, or `lang` is no language of Moses'.
    """
    languages = sorted(set(NonbreakingPrefixes().available_langs.values()))
    if lang not in languages:
        raise InputError(f"--lang is `{lang}`: give the target's code, one of {', '.join(languages)}")
    references = read_lines(reference)
    systems = [read_lines(path) for path in hypotheses]
    for path, lines in zip(hypotheses, systems, strict=True):
        _check(lines, references, (path, reference))
    reports: list[dict[str, Any]] = []
    for path, lines in zip(hypotheses, systems, strict=True):
        report = {"hypothesis": str(path), **score(lines, references, lang)}
        if with_ter:
            report["ter"], report["ter_signature"] = ter(lines, references)
        if reports:
            report |= vars(compare(systems[0], lines, references))
        reports.append(report)
    return reports


def format_report(report: Mapping[str, Any]) -> str:
    lines = [
        f"{report['hypothesis']}: {report['lines']} lines" + (f" of {report['set']}" if report["set"] else ""),
        f"  sacreBLEU {report['bleu']:.2f}, 95% interval {report['bleu_low']:.2f} to {report['bleu_high']:.2f}",
        f"    {report['bleu_signature']}",
        f"  the paper's way {report['bleu_paper_way']:.2f}, by steps:",
        *(f"    {step['bleu']:.2f} {step['step']}" for step in report["paper_way_steps"]),
        f"  chrF {report['chrf']:.2f}",
        f"    {report['chrf_signature']}",
    ]
    if "ter" in report:
        lines += [f"  TER {report['ter']:.2f}", f"    {report['ter_signature']}"]
    if "difference" in report:
        difference, p_value = report["difference"], report["p_value"]
        lines.append(f"  against the first: {difference:+.2f} sacreBLEU, p = {p_value:.3f} (paired bootstrap)")
    return "\n".join(lines)
