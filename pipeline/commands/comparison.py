"""Compare two runs by their records; `wmt compare`."""

from __future__ import annotations

from pathlib import Path

from nmt.common.files import output_file, read_yaml, writing
from nmt.config import InputError
from pipeline.commands.runs import named
from pipeline.common.paths import SENTENCES, VALIDATION
from pipeline.config.rows import flat
from pipeline.reporting import comparison, page, sentences
from pipeline.runs.record import Record, records, runs_folder


def compare(first: str, second: str, output: Path) -> str:
    """Write the page that compares two runs, named by the beginnings of their ids; return a sentence on the difference.

    Raises InputError if `output` is no file to write, a name fits no run or several, a run has no results, or the runs
    have different test sets.
    """
    target = output_file(output)
    found = records(runs_folder())
    one, other = (_compared(named(name, found)) for name in (first, second))
    comparison.check(one, other)
    difference = comparison.difference(one, other)
    with writing(target) as temporary:
        content = page.html(comparison.blocks(one, other, difference))
        temporary.write_text(content, encoding="utf-8", newline="\n")
    return f"{other.name} against {one.name}: {difference}\npage    {output}"


def _compared(record: Record) -> comparison.Compared:
    if not (scores := record.scores()):
        raise InputError(f"the run {record.folder.name} has no scores: finish it with `dvc repro`, or choose another")
    return comparison.Compared(
        record.folder.name,
        dict(flat(read_yaml(record.config))),
        scores,
        sentences.read(record.results / SENTENCES.name),
        record.results / VALIDATION.name,
    )
