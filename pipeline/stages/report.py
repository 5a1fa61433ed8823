"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from humanize import precisedelta

from nmt.common.files import writing
from nmt.config import (
    AveragingSettings,
    BinningSettings,
    ModelSettings,
    SearchSettings,
    Settings,
    SubwordSettings,
    TrainingSettings,
)
from nmt.flops import parameters
from pipeline.common import stage
from pipeline.common.paths import (
    ATTENTION,
    BINNED_STATS,
    CERTIFICATE,
    CURVES,
    FIGURES,
    RAW,
    REPORT,
    REPORT_HTML,
    SCORES,
    TRAINING,
    TRANSLATIONS,
    VALIDATION,
)
from pipeline.common.settings import (
    DataSettings,
    PreparationSettings,
    RunSettings,
    VersionSettings,
    load_section,
)
from pipeline.config import rows
from pipeline.reporting import certificate, figures, page, parsing
from pipeline.reporting.page import Block, Bullets, Figure, Heading, Paragraph, Table

EXAMPLES = 5
"""Lines of the test set in the report."""
LONGEST_MAPPING = 8
"""Mappings with more entries are histograms, which the report leaves out."""
SECTIONS: dict[str, type[Settings]] = {
    "preparation": PreparationSettings,
    "subwords": SubwordSettings,
    "binning": BinningSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "averaging": AveragingSettings,
    "search": SearchSettings,
}
NOT_COMPARED = {"training.seed", "training.resume_minutes", "training.verify_every", "training.keep_states"}
"""Keys that no row of the paper states or that decide no result."""
PAPER_SUBWORDS = 37_000
"""The paper's joint vocabulary of "about 37000" (5.1); rows.yaml has the merges of the paper's code instead."""


def number(value: float | None, form: str = ".2f") -> str:
    """Return a number for a table; an empty string for None."""
    return "" if value is None else format(value, form)


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys: `model.N` -> 6."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def reference_row(name: str) -> str:
    """Return the paper's row that `name` is compared with: itself, or base or parse-wsj for rows not in the paper."""
    row = rows.row(name)
    own = row.paper.bleu is not None or row.paper.f1 is not None
    return name if own else {"en-tree": "parse-wsj"}.get(row.pair, "base")


def comparable(data: DataSettings) -> bool:
    """Return whether the scored sets are the paper's: newstest2013 and newstest2014."""
    return data.valid.name.startswith("newstest2013") and data.test.name.startswith("newstest2014")


def translation(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return BLEU beside that of the paper's row, and the steps from sacreBLEU to the paper's scoring."""
    name = reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    bleu2, flops = (table2.bleu, table2.flops) if table2 else (None, None)
    # Table 3 is English-German only.
    bleu3, ppl = (paper.bleu, paper.ppl) if run.pair == "en-de" else (None, None)
    interval = f"{metrics['bleu']:.2f} ({metrics['bleu_low']:.2f} to {metrics['bleu_high']:.2f})"
    last, average = f"{metrics['bleu_valid_set']}; last checkpoint", f"{metrics['bleu_set']}; average"
    size = f"{paper.params_m} million" if paper.params_m is not None else ""
    lines = [
        ("BLEU, sacreBLEU (95% interval)", average, "", interval),
        ("BLEU, the paper's way", average, number(bleu2, ".1f"), f"{metrics['bleu_paper_way']:.2f}"),
        ("chrF", average, "", f"{metrics['chrf']:.2f}"),
        ("BLEU, sacreBLEU", last, "", f"{metrics['bleu_valid']:.2f}"),
        ("BLEU, the paper's way", last, number(bleu3, ".1f"), f"{metrics['bleu_valid_paper_way']:.2f}"),
        ("perplexity per subword", last, number(ppl), f"{metrics['ppl_valid']:.2f}"),
        ("parameters", "", size, f"{metrics['params']:,}"),
        ("training FLOPs, the paper's way", "", number(flops, ".1e"), f"{metrics['train_flops_paper']:.2e}"),
        ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
    ]
    other_sets = (
        f"The paper's numbers are of newstest2013 and newstest2014; this run's are of {data.valid.name} and "
        f"{data.test.name}, which is other text: the numbers are listed for orientation and cannot be compared."
    )
    names = metrics["bleu_paper_way_steps"].split("; ")
    between = [f"bleu_paper_way_step_{position}" for position in range(2, len(names))]
    keys = ["bleu", *between, "bleu_paper_way"]
    steps = [(step, f"{metrics[key]:.2f}") for step, key in zip(names, keys, strict=True)]
    return [
        Heading("Result"),
        *([] if comparable(data) else [Paragraph(other_sets)]),
        Table(("measure", "set and model", f"the paper's {name}", "this run"), lines),
        Paragraph(f"sacreBLEU's signature: {metrics['bleu_signature']}. chrF's: {metrics['chrf_signature']}."),
        Heading("From sacreBLEU to the paper's way of scoring"),
        Table(("step, on both sides", f"BLEU, {metrics['bleu_set']}"), steps),
    ]


def results(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return the scores beside those of the paper's row."""
    if "f1" in metrics:
        return parsing.results(run, reference_row(run.row), metrics)
    return translation(run, data, metrics)


def literature(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Return Table 2 for the run's pair with this run in it, as table and picture, and what others reported since."""
    table = rows.table()
    published = [(entry.name, entry.on(run.pair), ".2f") for entry in table.literature]
    published += [
        (f"Transformer ({name}), the paper", row.paper.table2.get(run.pair), ".1f") for name, row in table.rows.items()
    ]
    listed = [
        (name, number(result.bleu, form), number(result.flops, ".1e")) for name, result, form in published if result
    ]
    this = f"this run ({run.row}, {run.corpus}), {metrics['bleu_set']}"
    listed.append((this, f"{metrics['bleu_paper_way']:.2f}", f"{metrics['train_flops_paper']:.2e}"))
    others = [
        (other.name, number(other.bleu), number(other.bleu_paper_way, ".1f"), other.note)
        for other in table.others
        if other.pair == run.pair
    ]
    others.append((this, f"{metrics['bleu']:.2f}", f"{metrics['bleu_paper_way']:.2f}", ""))
    return [
        Heading("Beside Table 2"),
        Paragraph("newstest2014 BLEU the paper's way and training cost in FLOPs, as the paper reports them."),
        Table(("model", "BLEU, the paper's way", "cost, FLOPs"), listed, frozenset([len(listed) - 1])),
        Paragraph("Later Transformers on newstest2014, as their authors report them:"),
        Table(("model", "sacreBLEU", "the paper's way", ""), others, frozenset([len(others) - 1])),
        figures.against_cost(run, metrics),
    ]


def differences(run: RunSettings, configuration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return keys, the values of the paper's row and the values of this run, where they differ."""
    reference = rows.settings(reference_row(run.row), run.pair)
    if reference["subwords"]["merges"] is not None and configuration["subwords"]["merges"] is None:
        # The paper gives the vocabulary's size and its code the merges: a run is compared in the unit that it uses.
        reference = rows.merge(reference, {"subwords": {"vocabulary": PAPER_SUBWORDS}})
    paper = flat(reference)

    def text(value: Any) -> str:
        return "null" if value is None else str(value)

    return [
        (key, text(paper.get(key)), text(value))
        for key, value in flat(configuration).items()
        if value != paper.get(key) and key not in NOT_COMPARED
    ]


def explanations(
    run: RunSettings, data: DataSettings, metrics: Mapping[str, Any], configuration: Mapping[str, Any]
) -> list[str]:
    """Return sentences on why this run's numbers differ from the paper's."""
    name = reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    return page.sentences(
        "explanations",
        run=run,
        row=name,
        paper=paper,
        metrics=metrics,
        gap=metrics["bleu_paper_way"] - table2.bleu if table2 and comparable(data) else None,
        parameters=parameters(ModelSettings.model_validate(configuration["model"]), rows.PAPER_VOCABULARY),
        paper_vocabulary=rows.PAPER_VOCABULARY,
        averaging=configuration["averaging"],
        subwords=configuration["subwords"],
    )


def cost_section(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> list[Block]:
    """Return devices, time and cost of the training."""
    used, padding = metrics["model_flops_utilisation"], training.get("padding")
    times = [f"{precisedelta(round(seconds))} of {name}" for name, seconds in training["device_seconds"].items()]
    lines = [
        ("device", f"{metrics['devices']} x {metrics['device']}"),
        ("processes", str(training["processes"])),
        ("precision", metrics["precision"]),
        ("training time, attempts lost to a kill included", precisedelta(round(metrics["train_seconds"]))),
        ("device time, all attempts", ", ".join(times)),
        ("updates", f"{metrics['updates']:,}"),
        ("target tokens per second", number(training.get("tokens_per_second"), ",.0f")),
        ("padding, of all positions", number(padding, ".1%")),
        ("operations counted", f"{metrics['train_flops_counted']:.3e}"),
        ("model FLOPs utilisation", "peak not on record" if used is None else f"{used:.1%}"),
    ]
    return [Heading("Hardware, time, cost"), Table(("", ""), lines)]


def corpus_section(data: DataSettings, binned: Mapping[str, Any]) -> list[Block]:
    """Return the names of the corpora, the counts of the training corpus, and the first lines of the test set."""
    names = ", ".join(part.name for part in data.train)
    short = {
        key: value for key, value in binned.items() if not isinstance(value, Mapping) or len(value) <= LONGEST_MAPPING
    }
    counts = [
        (key, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for key, value in flat(short).items()
        if isinstance(value, int | float)
    ]
    paths = (
        RAW / f"test.{data.test.name}.{data.source}",
        RAW / f"test.{data.test.name}.{data.target}",
        TRANSLATIONS / f"{data.test.name}.average.{data.target}",
    )
    columns = []
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as file:
            columns.append([line.removesuffix("\n") for line in islice(file, EXAMPLES)])
    return [
        Heading("Text"),
        Paragraph(f"Training: {names}. Validation: {data.valid.name}. Test: {data.test.name}."),
        Table(("binned training corpus", ""), counts),
        Heading("First lines of the test set"),
        Table(("source", "reference", "translation"), list(zip(*columns, strict=True))),
    ]


def blocks() -> list[Block]:
    """Return the whole report, made from the files of the earlier stages."""
    chosen, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: load_section(name, kind).model_dump() for name, kind in SECTIONS.items()}
    versions = load_section("versions", VersionSettings).model_dump()
    metrics, name = stage.read_json(SCORES), reference_row(chosen.row)
    changed = differences(chosen, configuration)
    maps: list[Block] = [
        Figure(path.read_bytes(), path.stem, f"attention-{path.stem}") for path in sorted(ATTENTION.glob("*.svg"))
    ]
    return [
        Heading(f"{chosen.row}, {chosen.pair} on {chosen.corpus}, seed {chosen.seed}", 1),
        *results(chosen, data, metrics),
        *(literature(chosen, metrics) if comparable(data) else []),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), changed) if changed else Paragraph("None in the settings."),
        *([Bullets(explanations(chosen, data, metrics, configuration))] if "bleu" in metrics else []),
        *cost_section(metrics, stage.read_json(TRAINING)),
        figures.curves(CURVES, VALIDATION),
        *corpus_section(data, stage.read_json(BINNED_STATS)),
        *([Heading("Attention"), *maps] if maps else []),
        *certificate.section(stage.read_json(CERTIFICATE)),
        Heading("How to repeat it"),
        Paragraph(
            "The full configuration is results/config.yaml; libraries that decide bytes: "
            f"{', '.join(f'{library} {version}' for library, version in versions.items())}."
        ),
    ]


def run(tracker: stage.Tracker) -> None:
    """Write results/report.md, results/report.html and results/figures; log them and all numbers of the run."""
    content = blocks()
    with writing(FIGURES) as temporary:
        temporary.mkdir()
        for figure in content:
            if isinstance(figure, Figure):
                (temporary / f"{figure.name}.svg").write_bytes(figure.svg)
    for path, written in ((REPORT, page.markdown(content, FIGURES.name)), (REPORT_HTML, page.html(content))):
        with writing(path) as temporary:
            temporary.write_text(written, encoding="utf-8", newline="\n")
