"""The tasks, translation and parsing: their settings, scores and wording."""

from collections.abc import Container, Mapping
from typing import Any, NamedTuple

from nmt.schema import TREE


class Task(NamedTuple):
    """What a model is trained for, by which score runs are compared, and the words for it."""

    key: str  # of its score in results/scores.json
    title: str
    program: str
    tokenizers: tuple[str, ...]  # those that can prepare its text
    targets: tuple[str, ...]  # the target vocabularies that it can have
    papers_sets: tuple[str, str]  # the known sets by which the paper validates, and which it reports
    papers_key: str  # of the paper's way to score
    numbers: tuple[str, ...]  # keys of the numbers that a registered model has
    measures: tuple[tuple[str, str, str], ...]  # what the report lists: name, key, format
    verb: str  # what the model does, by the command `wmt <verb>`
    output: str  # what it makes of a line
    unit: str  # what a token of the target is
    of_line: str  # the name of a single line's score
    counted: tuple[str, str]  # what the report groups lines by, and what it counts


_TREE_MEASURES = (
    ("F1 (95% interval)", "", ".2f"),
    ("F1, at most 40 words", "_at_most_40_words", ".2f"),
    ("recall", "_recall", ".2f"),
    ("precision", "_precision", ".2f"),
    ("complete match", "_complete_match", ".2f"),
    ("crossing brackets a sentence", "_average_crossing", ".2f"),
    ("outputs that had to be repaired", "_malformed", ".2%"),
    ("sentences not scored", "_not_scored", ","),
)
TRANSLATION = Task(
    key="bleu",
    title="BLEU",
    program="sacreBLEU",
    tokenizers=("moses", "none"),
    targets=("joint",),
    papers_sets=("newstest2013", "newstest2014"),
    papers_key="bleu_paper_way",
    numbers=("bleu", "bleu_paper_way", "valid_bleu", "valid_bleu_paper_way", "valid_ppl"),
    measures=(
        ("BLEU, sacreBLEU (95% interval)", "bleu", ".2f"),
        ("BLEU, the paper's way", "bleu_paper_way", ".2f"),
        ("BLEU, lower-cased Moses tokens", "bleu_lowercased_moses", ".2f"),
        ("chrF", "chrf", ".2f"),
        ("BLEU, sacreBLEU", "valid_bleu", ".2f"),
        ("BLEU, the paper's way", "valid_bleu_paper_way", ".2f"),
        ("perplexity per subword", "valid_ppl", ".2f"),
    ),
    verb="translate",
    output="translation",
    unit="subword",
    of_line="chrF",
    counted=("words of the source", "lines"),
)
PARSING = Task(
    key="f1",
    title="F1",
    program="EVALB",
    tokenizers=("vinyals", "tensor2tensor"),
    targets=("closed", "joint"),
    papers_sets=("wsj22", "wsj23"),
    papers_key="f1",
    numbers=("f1", "valid_f1", "f1_malformed", "valid_ppl"),
    measures=(
        *((what, f"{key}{end}", form) for key in ("f1", "valid_f1") for what, end, form in _TREE_MEASURES),
        ("perplexity a symbol", "valid_ppl", ".4f"),
    ),
    verb="parse",
    output="parse",
    unit="symbol",
    of_line="F1",
    counted=("words", "sentences"),
)
CHRF = TRANSLATION._replace(
    key="chrf",
    title="chrF",
    numbers=("chrf", "valid_chrf", "valid_ppl"),
    measures=(("chrF (95% interval)", "chrf", ".2f"), ("chrF", "valid_chrf", ".2f"), TRANSLATION.measures[-1]),
)
"""Translation into a language that sacreBLEU cannot split into words, at least where its segmenter is missing."""
TASKS = (TRANSLATION, CHRF, PARSING)


def task_of(target: str) -> Task:
    """Return the task of a target language, or of a pair such as `en-de`: parsing for the target `tree`."""
    return PARSING if target.rpartition("-")[2] == TREE else TRANSLATION


def task_in(metrics: Container[str]) -> Task:
    """Return the task whose score a run's metrics hold: parsing by F1, translation by BLEU or by chrF."""
    return PARSING if PARSING.key in metrics else CHRF if "chrf_low" in metrics else TRANSLATION


def further_scores(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores of the further test sets by the names that DVC and MLflow show, as `bleu.medical`."""
    return {
        f"{task_in(scores).key}.{name}": scores[task_in(scores).key] for name, scores in metrics.get("sets", {}).items()
    }
