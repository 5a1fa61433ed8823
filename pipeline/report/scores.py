"""The report's blocks on scores: the run beside the paper's row, and beside the systems of the paper's tables."""

from collections.abc import Mapping
from typing import Any

from nmt.evaluation.known_sets import identity, named
from nmt.schema import TREE
from nmt.task import task_in, task_of
from nmt.text.parallel_text import read_lines
from nmt.text.scripts import NAMES, code
from pipeline.config import rows
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.paths import raw
from pipeline.config.wording import duration, score_and_interval
from pipeline.report.page import Block, Heading, Paragraph, Table, Tiles


def reference_row(name: str) -> str:
    """Return the paper's row that `name` is compared with: itself, or for rows not in the paper its task's first."""
    row = rows.row(name)
    is_papers = row.paper.bleu is not None or row.paper.f1 is not None
    of_task = (other for other, candidate in rows.table().rows.items() if task_of(candidate.pair) is task_of(row.pair))
    return name if is_papers else next(of_task)


def identities(data: Mapping[str, Any], scores: Mapping[str, Any]) -> dict[str, str]:
    """Return what each set here is, by `<key>_references`: a known set's name, or the sha256 of its references.

    `data`: the section of the resolved configuration; `scores`: the content of results/scores.json.
    """
    target, valid, tests, key = data["target"], data["valid"], data["test"], task_in(scores).key
    test = tests[0] if isinstance(tests, list) else tests
    paths = {f"valid_{key}": raw("valid", valid["name"], target), key: raw("test", test["name"], target)}
    return {
        f"{name}_references": identity(list(read_lines(path)), target, data["source"])
        for name, path in paths.items()
        if path.exists()
    }


def comparable(metrics: Mapping[str, Any]) -> bool:
    """Return whether the scored sets are the paper's, whole: newstest2013 and newstest2014, or WSJ's 22 and 23."""
    task = task_in(metrics)
    return tuple(metrics.get(f"{key}_references") for key in (f"valid_{task.key}", task.key)) == task.papers_sets


PAPERS_TEXT = {"wmt14", "wmt16-t2t", "wsj"}  # the corpora that the paper trained on


def title(run: RunSettings) -> str:
    """Return the page's title: the paper, the pair and the corpus in words."""
    names = NAMES | {TREE: "constituency trees"}
    source, target = (names.get(code(language), language) for language in run.pair.split("-"))
    return f"Attention Is All You Need, reproduced: {source} to {target}, corpus {run.corpus}"


def papers_name(run: RunSettings, unlike: bool) -> str:
    """Return the name of the paper's row beside this run, with what makes it another one: settings, text or both."""
    other = [*(["settings"] if unlike else []), *([] if run.corpus in PAPERS_TEXT else ["text"])]
    return f"the paper's {reference_row(run.row)}" + (f" (other {' and '.join(other)})" if other else "")


def conditions(metrics: Mapping[str, Any]) -> str:
    """Return what decides the last digits on a CPU, in brackets; nothing for a GPU."""
    known = metrics["conditions"]
    threads = "1 thread" if known["threads"] == 1 else f"{known['threads']} threads"
    return f" ({known['processor']}, {threads}, torch {known['torch']})" if known["processor"] else ""


def hardware(metrics: Mapping[str, Any]) -> str:
    device = "a CPU" if metrics["device"] == "cpu" else f"{metrics['devices']} x {metrics['device']}"
    return f"{device}{conditions(metrics)}"


def lead(name: str, run: RunSettings, metrics: Mapping[str, Any], text: str, parent: str | None) -> str:
    """Return the report in one sentence, and what the text is; `parent` is the model that a fine-tuned one is from."""
    task = task_in(metrics)
    score, _ = score_and_interval(metrics, task.key)
    other = "" if comparable(metrics) else ", not the paper's test set"
    return (
        f"Run {name}: a Transformer with {metrics['params'] / 1e6:.1f} million parameters, "
        f"{f'fine-tuned from {parent}' if parent else 'trained from raw text'} in "
        f"{duration(metrics['train_seconds'])} on {hardware(metrics)}: {task.title} {score} on "
        f"{metrics[f'{task.key}_set']}, {run.pair}{other}. Text: {text}."
    )


def tile(title: str, metrics: Mapping[str, Any]) -> tuple[str, str, str]:
    key = task_in(metrics).key
    score, interval = score_and_interval(metrics, key)
    return title, score, f"{interval} (95%); {metrics[f'{key}_set']}"


def headline(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any], papers: str) -> Tiles:
    """Return the numbers for the top of the page. The paper's are beside them only where the sets are the same."""
    task, name = task_in(metrics), reference_row(run.row)
    printed = rows.printed(name, run.pair) if comparable(metrics) else {}
    title, score, note = tile(task.title, metrics)
    if task.papers_key in printed:
        ours = "" if task.papers_key == task.key else f"; the paper's way {metrics[task.papers_key]:.1f}"
        note += f"{ours}; {papers}: {printed[task.papers_key]}"
    ppl = f"; {papers}: {printed['valid_ppl']}" if "valid_ppl" in printed else ""
    return Tiles(
        [
            (title, score, note),
            ("perplexity", f"{metrics['valid_ppl']:.2f}", f"per {task.unit}; {data.valid.name}{ppl}"),
            ("training time", duration(metrics["train_seconds"]), f"{hardware(metrics)}, {metrics['precision']}"),
            ("parameters", f"{metrics['params'] / 1e6:.1f} million", f"{metrics['updates']:,} updates"),
        ]
    )


def results(run: RunSettings, metrics: Mapping[str, Any], papers: str) -> list[Block]:
    """Return all scores, beside those of the paper's row and of its tables where the sets are the same."""
    task, name = task_in(metrics), reference_row(run.row)
    paper, lines = rows.printed(name, run.pair), []
    for what, key, form in (measure for measure in task.measures if measure[1] in metrics):
        prefix, model = ("valid_", "last checkpoint") if key.startswith("valid_") else ("", "average")
        where = f"{metrics[f'{prefix}{task.key}_set']}; {model}"
        lines.append((what, where, paper.get(key, ""), _cell(metrics, key, form)))
    size, flops = f"{paper['params']} million" if "params" in paper else "", paper.get("train_flops_paper", "")
    lines += [
        ("parameters", "", size, f"{metrics['params']:,}"),
        ("training FLOPs, the paper's way", "", flops, f"{metrics['train_flops_paper']:.2e}"),
        ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
    ]
    blocks: list[Block] = [Heading("Result")]
    if comparable(metrics):
        blocks.append(Table(("measure", "set and model", papers, "this run"), lines))
    else:
        ours = f"{metrics[f'valid_{task.key}_set']}, and {metrics[f'{task.key}_set']}"
        sets_of = ", and ".join(f"{known.name}, {known.lines} lines" for known in map(named, task.papers_sets) if known)
        sets = f"The paper's numbers are of {sets_of}; this run's are of {ours}"
        blocks.append(Paragraph(f"{sets}. That is other text: the paper's are not listed."))
        cells = [(what, where, ours) for what, where, _, ours in lines]
        blocks.append(Table(("measure", "set and model", "this run"), cells))
    chrf = f" chrF's: {metrics['chrf_signature']}." if "bleu" in metrics else ""
    blocks.append(Paragraph(f"{task.program}'s signature: {metrics[f'{task.key}_signature']}.{chrf}"))
    return [*blocks, *(_steps(metrics) if "bleu_paper_way_steps" in metrics else []), *_beside(run, metrics)]


def sets(metrics: Mapping[str, Any]) -> list[Block]:
    """Return the scores of all test sets side by side, where there are several."""
    measures = [measure for measure in task_in(metrics).measures if measure[1] in metrics and "valid" not in measure[1]]
    rows = [
        (
            of_set[f"{task_in(of_set).key}_set"],
            *(_cell(of_set, key, form) if key in of_set else "" for _, key, form in measures),
        )
        for of_set in (metrics, *metrics.get("sets", {}).values())
    ]
    table = Table(("test set", *(name for name, *_ in measures)), rows)
    return [Heading("Test sets"), table] if rows[1:] else []


def _cell(metrics: Mapping[str, Any], key: str, form: str) -> str:
    """Return a score, with its interval where it has one."""
    if f"{key}_low" not in metrics:
        return format(metrics[key], form)
    score, interval = score_and_interval(metrics, key, 2)
    return f"{score} ({interval})"


def _steps(metrics: Mapping[str, Any]) -> list[Block]:
    names = metrics["bleu_paper_way_steps"].split("; ")
    keys = ["bleu", *(f"bleu_paper_way_step_{number}" for number in range(2, len(names))), "bleu_paper_way"]
    steps = [(step, f"{metrics[key]:.2f}") for step, key in zip(names, keys, strict=True)]
    heading = Heading("From sacreBLEU to the paper's way of scoring")
    return [heading, Table(("step, on both sides", f"BLEU, {metrics['bleu_set']}"), steps)]


def _beside(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return the tables of what others report on the run's test set, where it is a known one, by scores of this run."""
    task = task_in(metrics)
    this = f"this run ({run.row}, {run.corpus}), {metrics[f'{task.key}_set']}"
    known, blocks = named(metrics[f"{task.key}_references"], run.pair), list[Block]()
    scored = {key for _, key, _ in task.measures} & metrics.keys()
    for listing in (entry for entry in known.listings if scored & entry.columns.keys()) if known else ():
        papers = ((name, rows.printed(name, run.pair)) for name in rows.table().rows if listing.paper)
        listed = [*listing.rows]
        listed += [
            {"name": f"Transformer ({row}), the paper", **numbers}
            for row, numbers in papers
            if task.papers_key in numbers
        ]
        measured = ((key, ".2e" if "flops" in key else ".2f") for key in listing.columns if key in metrics)
        listed.append({"name": this, **{key: format(metrics[key], form) for key, form in measured}})
        cells = [[entry.get(key, "") for key in listing.columns] for entry in listed]
        blocks += [Heading(listing.title)] if listing.title else []
        blocks += [Paragraph(listing.about)] if listing.about else []
        blocks.append(Table(list(listing.columns.values()), cells, frozenset([len(cells) - 1])))
    return blocks
