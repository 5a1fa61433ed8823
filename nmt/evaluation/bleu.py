"""Scores of translations: sacreBLEU with its signature, and BLEU as the paper computes it; section 6.1.

The paper's 27.3 and 28.4 are BLEU on Moses tokens with compounds split at hyphens (tensor2tensor's get_ende_bleu.sh),
against a reference with plain quotes; sacreBLEU is about 1.5 points lower on the same translations. Both are reported,
by name.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacremoses import MosesTokenizer
from sacremoses.corpus import NonbreakingPrefixes

from nmt import bootstrap
from nmt.errors import InputError, tell
from nmt.evaluation import known_sets
from nmt.schema import LANGUAGE
from nmt.text import parallel_text
from nmt.text.moses import Moses
from nmt.text.scripts import code, has_spaces
from nmt.text.settings import TokenizerSettings

Lines = Sequence[str]
LOWERCASED = "bleu_lowercased_moses"  # key of BLEU on lower-cased Moses tokens, by which others report Multi30k
_MOSES_LANGUAGES = {*NonbreakingPrefixes().available_langs.values()} - {"zh", "yue", "ta"}
"""Those that Moses has rules for, and whose text it makes words of."""
_COMPOUND = re.compile(r"(\S)-(\S)")
_QUOTES = str.maketrans({"\u201c": '"', "\u201d": '"', "\u201e": '"', "\u201f": '"'})


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text; raise InputError if it is empty or not UTF-8."""
    if not (lines := list(parallel_text.composed(parallel_text.read_lines(path), path))):
        raise InputError(f"{path} is empty: there is nothing to score")
    return lines


def _check(hypotheses: Lines, references: Lines, names: Sequence[object] = ("output", "set")) -> None:
    if isinstance(hypotheses, str) or isinstance(references, str):
        raise InputError("two lists of lines are needed, not strings: give [line]")
    if len(hypotheses) != len(references):
        raise InputError(
            f"{names[0]} has {len(hypotheses)} lines, {names[1]} has {len(references)}: "
            "give one translation for each reference"
        )
    if not references:
        raise InputError("there is no line to score")


def _check_language(lang: str) -> None:
    if not re.fullmatch(LANGUAGE, lang):
        raise InputError(f"the language is `{lang}`: give the target's ISO 639 code, as `de` or `zh_Hans`")


def corpus_score(metric: Metric, hypotheses: Lines, references: Lines) -> tuple[float, str]:
    """Return a metric's score of all lines in percent, and its signature."""
    _check(hypotheses, references)
    score = float(metric.corpus_score(hypotheses, [references]).score)
    return score, str(metric.get_signature())


def metric(lang: str = "", tokenize: str | None = None, *, lowercase: bool = False) -> BLEU:
    """Return sacreBLEU's BLEU with its tokenizer of a target language, or with the one that `tokenize` names.

    Raises InputError for another name, for a language without spaces that sacreBLEU cannot split, and if a tokenizer
    needs a library or a file that is missing.
    """
    if tokenize not in (None, *BLEU.TOKENIZERS):
        raise InputError(f"sacreBLEU has no tokenizer `{tokenize}`; it has {', '.join(BLEU.TOKENIZERS)}")
    if not (tokenize or has_spaces(lang) or code(lang) in BLEU._TOKENIZER_MAP):
        raise InputError(f"sacreBLEU cannot split `{lang}` into words: set its tokenizer to char or flores200")
    try:
        return BLEU(tokenize=tokenize, trg_lang="" if tokenize else code(lang), lowercase=lowercase)
    except OSError as error:
        raise InputError(f"the tokenizer `{tokenize}` fetches a file ({error}): go online, or name another") from error
    except RuntimeError as error:
        extra = (tokenize or code(lang))[:2]
        raise InputError(
            f"BLEU of `{tokenize or lang}` needs a segmenter: pip install 'wmt-transformer[{extra}]'"
        ) from error


def headline(lang: str, tokenize: str | None = None, *, lowercase: bool = False) -> BLEU | CHRF:
    """Return the metric by which systems of a target language are compared: chrF where its segmenter is missing."""
    if tokenize:
        return metric(lang, tokenize, lowercase=lowercase)
    try:
        return metric(lang, lowercase=lowercase)
    except InputError as error:
        tell(f"warning: {error}; until then chrF is the score")
        return CHRF(lowercase=lowercase)


def sacrebleu(
    hypotheses: Iterable[str], references: Iterable[str], lang: str = "", tokenize: str | None = None
) -> tuple[float, str]:
    """Return cased sacreBLEU of detokenised lines in percent, and its signature.

    `lang`, the target's code, or `tokenize` chooses sacreBLEU's tokenizer; without, it is 13a. Raises InputError as
    `metric` does, where `lang` is no code, and unless there is one translation for each reference.
    """
    if lang:
        _check_language(lang)
    # A string would be a list of letters.
    lists = (lines if isinstance(lines, str) else list(lines) for lines in (hypotheses, references))
    return corpus_score(metric(lang, tokenize), *lists)


def chrf(hypotheses: Lines, references: Lines, *, lowercase: bool = False) -> tuple[float, str]:
    """Return chrF2 (Popovic 2015) in percent, and its signature."""
    return corpus_score(CHRF(lowercase=lowercase), hypotheses, references)


def split_compounds(line: str) -> str:
    """Replace `rich-text` by `rich ##AT##-##AT## text`, as the papers on WMT14 English-German score it."""
    return _COMPOUND.sub(r"\1 ##AT##-##AT## \2", line)


def plain_quotes(line: str) -> str:
    """Replace unicode double quotes by `"`: in German newstest2014 the closing one varies within the reference."""
    return line.translate(_QUOTES)


def paper_way(
    hypotheses: Lines, references: Lines, lang: str, tokenize: str | None = None, *, lowercase: bool = False
) -> list[tuple[str, float]]:
    """Return the steps from sacreBLEU (first) to the paper's way (last) and the BLEU after each.

    `lang` is the target's; `tokenize` names sacreBLEU's tokenizer of the first step.

    Every step changes both sides. German: Moses tokens, compounds split, quotes made plain. Other languages: Moses
    tokens alone, as the literature reports English-French; none where Moses has no rules for the language, or makes no
    words. With `lowercase`, all are of lower-cased text.
    """
    if (lang := code(lang)) not in _MOSES_LANGUAGES:
        return []
    moses = MosesTokenizer(lang)
    # Plain quotes before or after tokenization give the same words.
    changes = [("Moses tokens", lambda line: moses.tokenize(line, return_str=True, escape=False))]
    if lang == "de":
        changes += [("compounds split at hyphens", split_compounds), ("unicode quotes made plain", plain_quotes)]
    case = "lower-cased " if lowercase else ""
    sacre = BLEU(tokenize=tokenize or "13a", force=True, lowercase=lowercase)
    steps = [(f"{case}sacreBLEU, {tokenize or '13a'}", corpus_score(sacre, hypotheses, references)[0])]
    bare = BLEU(tokenize="none", force=True, lowercase=lowercase)
    for name, change in changes:
        hypotheses, references = list(map(change, hypotheses)), list(map(change, references))
        steps.append((case + name, corpus_score(bare, hypotheses, references)[0]))
    return steps


def lowercased_tokens(lines: Lines, lang: str) -> list[str]:
    """Return lines in lower case, their punctuation normalised, as Moses tokens: how Multi30k's makers prepare it."""
    moses = Moses(lang, TokenizerSettings(tokenizer="moses", normalize_punctuation=True, aggressive_hyphens=False))
    return [moses.tokenize(line.lower()) for line in lines]


def line_statistics(metric: Metric, hypotheses: Lines, references: Lines) -> NDArray[np.int64]:
    """Return what the corpus score of a metric sums over lines, [lines, k]: lengths, matches and totals."""
    _check(hypotheses, references)
    return np.array(metric._extract_corpus_statistics(hypotheses, [references]))


def score_of(metric: Metric) -> Callable[[NDArray[np.int64]], float]:
    """Return the function from summed line statistics, [k], to a metric's corpus score in percent."""
    return lambda sums: float(metric._compute_score_from_stats(sums.tolist()).score)


def compare(baseline: Lines, system: Lines, references: Lines, metric: Metric) -> bootstrap.Comparison:
    """Compare the corpus score of `system` with that of `baseline` by paired bootstrap resampling."""
    of_baseline, of_system = (line_statistics(metric, lines, references) for lines in (baseline, system))
    return bootstrap.compare(of_baseline, of_system, score_of(metric))


def score(
    hypotheses: Lines, references: Lines, lang: str, tokenize: str | None = None, *, lowercase: bool = False
) -> dict[str, Any]:
    """Return all scores of detokenised translations, in percent, by the keys of `wmt bleu --json`.

    `set` is the name of the references if they are a known set. The paper's way is left out for languages that Moses
    does not know, and so is `LOWERCASED`; that is there with `lowercase`, and for a known set that others report by
    it. Where the language's segmenter is missing, BLEU is, and chrF has the interval. Raises InputError as `metric`
    does where `tokenize` is given, and unless there is one translation for each reference.
    """
    known = known_sets.find(references, lang)
    headline_metric = headline(lang, tokenize, lowercase=lowercase)
    key = "bleu" if isinstance(headline_metric, BLEU) else "chrf"
    scores: dict[str, Any] = {"set": known and known.title, "lines": len(references)}
    scores[key], scores[f"{key}_signature"] = corpus_score(headline_metric, hypotheses, references)
    of_lines = line_statistics(headline_metric, hypotheses, references)
    scores[f"{key}_low"], scores[f"{key}_high"] = bootstrap.interval(of_lines, score_of(headline_metric))
    if steps := paper_way(hypotheses, references, lang, tokenize, lowercase=lowercase):
        scores["bleu_paper_way"] = steps[-1][1]
        scores["paper_way_steps"] = [{"step": name, "bleu": value} for name, value in steps]
    if steps and (lowercase or (known and any(LOWERCASED in listing.columns for listing in known.listings))):
        sides = (lowercased_tokens(lines, lang) for lines in (hypotheses, references))
        scores[LOWERCASED] = corpus_score(BLEU(tokenize="none", force=True), *sides)[0]
    if key != "chrf":
        scores["chrf"], scores["chrf_signature"] = chrf(hypotheses, references, lowercase=lowercase)
    return scores


def score_systems(
    hypotheses: Sequence[Path],
    reference: Path,
    lang: str,
    tokenize: str | None = None,
    *,
    lowercase: bool = False,
    with_ter: bool = False,
) -> list[dict[str, Any]]:
    """Return all scores of each system's file; all but the first are also compared with the first.

    Raises InputError as `score` does, and where `lang` is no code.
    """
    _check_language(lang)
    references = read_lines(reference)
    systems = [read_lines(path) for path in hypotheses]
    for path, lines in zip(hypotheses, systems, strict=True):
        _check(lines, references, (path, reference))
    reports: list[dict[str, Any]] = []
    for path, lines in zip(hypotheses, systems, strict=True):
        report = {"hypothesis": str(path), **score(lines, references, lang, tokenize, lowercase=lowercase)}
        if with_ter:  # Snover et al. 2006; lower is better
            asian = not has_spaces(lang)
            ter = TER(normalized=asian, asian_support=asian)
            report["ter"], report["ter_signature"] = corpus_score(ter, lines, references)
        if reports:
            report |= vars(compare(systems[0], lines, references, headline(lang, tokenize, lowercase=lowercase)))
        reports.append(report)
    return reports


def format_report(report: Mapping[str, Any]) -> str:
    steps = report.get("paper_way_steps", ())
    key, title = ("bleu", "sacreBLEU") if "bleu" in report else ("chrf", "chrF")
    lines = [
        f"{report['hypothesis']}: {report['lines']} lines" + (f" of {report['set']}" if report["set"] else ""),
        f"  {title} {report[key]:.2f}, 95% interval {report[f'{key}_low']:.2f} to {report[f'{key}_high']:.2f}",
        f"    {report[f'{key}_signature']}",
        *([f"  the paper's way {report['bleu_paper_way']:.2f}, by steps:"] if steps else []),
        *(f"    {step['bleu']:.2f} {step['step']}" for step in steps),
    ]
    if LOWERCASED in report:
        lines.append(f"  lower-cased Moses tokens, punctuation normalised {report[LOWERCASED]:.2f}")
    if key != "chrf":
        lines += [f"  chrF {report['chrf']:.2f}", f"    {report['chrf_signature']}"]
    if "ter" in report:
        lines += [f"  TER {report['ter']:.2f}", f"    {report['ter_signature']}"]
    if "difference" in report:
        difference, p_value = report["difference"], report["p_value"]
        lines.append(f"  against the first: {difference:+.2f} {title}, p = {p_value:.3f} (paired bootstrap)")
    return "\n".join(lines)
