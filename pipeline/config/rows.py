"""Tables 2 to 4 of the paper as data: each row's differences from base, and the paper's results."""

from collections.abc import Iterator, Mapping
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nmt.common.files import read_yaml
from nmt.errors import InputError
from nmt.model_settings import ModelSettings
from nmt.schema import TREE, Settings
from nmt.task import PARSING, task_of
from nmt.text.settings import one_size
from pipeline.config.corpora import Pair
from pipeline.config.errors import nearest, validated
from pipeline.config.machine import fastest_precision

ROWS = Path(__file__).with_name("rows.yaml")
PAPER_VOCABULARY = 40960
"""Rows of the embedding that reproduce the paper's printed parameter counts; the paper gives no number."""

Differences = dict[str, dict[str, Any]]


class Table2Result(Settings):
    """newstest2014 BLEU, and training cost in FLOPs where it is given, in Table 2."""

    bleu: float
    flops: float | None = None


class PaperResults(Settings):
    ppl: float | None = None  # newstest2013, per subword
    bleu: float | None = None  # newstest2013, from the last checkpoint (Table 3)
    params_m: int | None = None  # millions of parameters, as printed
    f1: float | None = None  # section 23 of the WSJ (Table 4)
    table2: dict[Pair, Table2Result] = Field(default_factory=dict)


class Row(Settings):
    """A row: its differences from base, for every pair and for single pairs, and the paper's results."""

    about: str
    pair: Pair = "en-de"  # of the paper's results and of the listed parameter count
    vocabulary: int = PAPER_VOCABULARY  # rows of the embedding in that count, where the settings give merges alone
    settings: Differences = Field(default_factory=dict)
    pairs: dict[Pair | Literal["text", "tree"], Differences] = Field(default_factory=dict)
    paper: PaperResults = PaperResults()


class RowsFile(Settings):
    base: Differences
    pairs: dict[Pair | Literal["text", "tree"], Differences]
    rows: dict[str, Row]


@cache
def table() -> RowsFile:
    """Return the content of rows.yaml, read once, with the precision of the device that trains for `auto`."""
    content = validated(RowsFile, read_yaml(ROWS), ROWS)
    for entry in content.rows.values():
        training = entry.settings.get("training", {})
        if training.get("precision") == "auto":
            training["precision"] = fastest_precision()
    return content


def row(name: str) -> Row:
    """Return the row `name`; raise InputError with the nearest valid name where there is none."""
    rows = table().rows
    if name not in rows:
        raise InputError(f"`{name}` is not a row of {ROWS.name}; {nearest(name, rows)}")
    return rows[name]


def printed(name: str, pair: Pair) -> dict[str, str]:
    """Return the paper's results of a row on a pair as they are printed, by keys of results/scores.json."""
    chosen = row(name)
    paper, table2 = chosen.paper, chosen.paper.table2.get(pair)
    results = {
        "bleu_paper_way": (table2 and table2.bleu, ".1f"),
        "train_flops_paper": (table2 and table2.flops, ".1e"),
        "f1": (paper.f1, ".1f"),
        "params": (paper.params_m, ",d"),
    }
    if pair == chosen.pair:  # Table 3 is English-German only.
        results |= {"valid_bleu_paper_way": (paper.bleu, ".1f"), "valid_ppl": (paper.ppl, ".2f")}
    return {key: format(value, form) for key, (value, form) in results.items() if value is not None}


def flat(content: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested mappings, with dotted keys."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, content


def merge(base: Mapping[str, Any], differences: Mapping[str, Any], depth: int = 9) -> dict[str, Any]:
    """Return `base` updated with `differences`, mapping by mapping down to `depth`; neither argument is changed."""
    merged = dict(base)
    for key, value in differences.items():
        if depth > 1 and isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value, depth - 1)
        else:
            merged[key] = value
    return merged


def merge_sections(base: Mapping[str, Any], differences: Mapping[str, Any]) -> dict[str, Any]:
    """Return sections of settings updated with differences; the subwords keep one size."""
    ours, theirs = (sections.get("subwords") for sections in (base, differences))
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        differences = {**differences, "subwords": one_size(ours, theirs)}
    return merge(base, differences)


def _for_pair(pairs: Mapping[str, Differences], pair: Pair) -> Differences:
    """Return the differences of a pair: its own or, without own ones, those of all pairs of text or of trees."""
    return pairs.get(pair, pairs.get(TREE if task_of(pair) is PARSING else "text", {}))


def differences(name: str, pair: Pair) -> list[tuple[str, Differences]]:
    """Return base, what the pair changes in it, and what row `name` does (two layers), each with its origin.

    In the order of merging; a catalog comes before the row.
    """
    content, chosen = table(), row(name)
    return [
        (f"{ROWS.name}, base", content.base),
        (f"{ROWS.name}, pair {pair}", _for_pair(content.pairs, pair)),
        (f"{ROWS.name}, row {name}", chosen.settings),
        (f"{ROWS.name}, row {name} for {pair}", _for_pair(chosen.pairs, pair)),
    ]


def settings(name: str, pair: Pair) -> dict[str, Any]:
    """Return row `name` in full, as in the paper: without a catalog's preparation and without overrides."""
    return reduce(merge_sections, (content for _, content in differences(name, pair)), {})


def model(name: str, pair: Pair = "en-de") -> ModelSettings:
    return ModelSettings.model_validate(settings(name, pair)["model"])
