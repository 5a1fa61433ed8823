"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
from pipeline import stage
from pipeline.config import rows
from pipeline.config.settings import (
    DataSettings,
    PreparationSettings,
    RunSettings,
    VersionSettings,
    load_section,
)
from pipeline.reporting import figures, page, parsing
from pipeline.reporting.page import Block, Bullets, Figure, Heading, Paragraph, Table

METRICS = Path("results/metrics.json")
TRAINING = Path("results/training.json")
CURVES, VALIDATION = Path("results/training.csv"), Path("results/validation.csv")
BINNED = Path("data/binned/stats.json")
TRANSLATIONS = Path("results/translations")
ATTENTION = Path("results/attention")
RAW = Path("data/raw")
MARKDOWN, HTML = Path("results/report.md"), Path("results/report.html")
FIGURES = Path("results/figures")

EXAMPLES = 5
SECTIONS: dict[str, type[Settings]] = {
    "preparation": PreparationSettings,
    "subwords": SubwordSettings,
    "binning": BinningSettings,
    "model": ModelSettings,
    "training": TrainingSettings,
    "averaging": AveragingSettings,
    "search": SearchSettings,
}
DECIDES_NOTHING = {"training.seed", "training.resume_minutes"}
"""Keys that no row of the paper states or that decide no result."""
PAPER_SUBWORDS = 37_000
"""Of English and German together, "about", in the paper (5.1); rows give the merges that its code came to it by."""


def number(value: float | None, form: str = ".2f") -> str:
    """A number for a table; nothing for none."""
    return "" if value is None else format(value, form)


def duration(seconds: float) -> str:
    """Seconds as people say them: `43 min 12 s`, `11 h 58 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def reference_row(name: str) -> str:
    """The paper's row that `name` is compared with: itself or, for rows that are not the paper's, base."""
    row = rows.row(name)
    own = row.paper.bleu is not None or row.paper.f1 is not None
    return name if own else {"en-tree": "parse-wsj"}.get(row.pair, "base")


def comparable(data: DataSettings) -> bool:
    """Whether the sets scored are the paper's: newstest2013 and newstest2014."""
    return data.valid.name.startswith("newstest2013") and data.test.name.startswith("newstest2014")


def results(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """The row beside the paper's."""
    name = reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    published = (table2.bleu, table2.flops) if table2 is not None else (None, None)
    # Table 3 is English-German alone.
    table3 = paper if run.pair == "en-de" else rows.Reported(params_m=paper.params_m)
    interval = f"{metrics['bleu']:.2f} ({metrics['bleu_low']:.2f} to {metrics['bleu_high']:.2f})"
    last, average = f"{metrics['bleu_valid_set']}; last checkpoint", f"{metrics['bleu_set']}; average"
    printed = f"{paper.params_m} million" if paper.params_m is not None else ""
    table = Table(
        ("measure", "set and model", f"the paper's {name}", "this run"),
        [
            ("BLEU, sacreBLEU (95% interval)", average, "", interval),
            ("BLEU, the paper's way", average, number(published[0], ".1f"), f"{metrics['bleu_paper_way']:.2f}"),
            ("chrF", average, "", f"{metrics['chrf']:.2f}"),
            ("BLEU, sacreBLEU", last, "", f"{metrics['bleu_valid']:.2f}"),
            ("BLEU, the paper's way", last, number(table3.bleu, ".1f"), f"{metrics['bleu_valid_paper_way']:.2f}"),
            ("perplexity a subword", last, number(table3.ppl), f"{metrics['ppl_valid']:.2f}"),
            ("parameters", "", printed, f"{metrics['params']:,}"),
            ("training FLOPs, the paper's way", "", number(published[1], ".1e"),
             f"{metrics['train_flops_paper']:.2e}"),
            ("training FLOPs, counted", "", "", f"{metrics['train_flops_counted']:.2e}"),
        ],
    )  # fmt: skip
    return [
        Heading("Result"),
        *([] if comparable(data) else [Paragraph(_other_sets(data))]),
        table,
        Paragraph(f"sacreBLEU's signature: {metrics['bleu_signature']}. chrF's: {metrics['chrf_signature']}."),
        Heading("From sacreBLEU to the paper's way of scoring"),
        Table(("step, on both sides", f"BLEU, {metrics['bleu_set']}"), list(_steps(metrics))),
    ]


def _steps(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    names = metrics["bleu_paper_way_steps"].split("; ")
    between = [f"bleu_paper_way_step_{position}" for position in range(2, len(names))]
    for name, key in zip(names, ["bleu", *between, "bleu_paper_way"], strict=True):
        yield name, f"{metrics[key]:.2f}"


def _other_sets(data: DataSettings) -> str:
    return (
        f"The paper's numbers are of newstest2013 and newstest2014; this run's are of {data.valid.name} and "
        f"{data.test.name}, other text: they stand side by side for orientation and cannot be compared."
    )


def literature(run: RunSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """Table 2 for the run's pair with the run in it, and what others have reported since."""
    listed: list[tuple[str, str, str]] = []
    listed.extend(
        (entry.name, number(found.bleu), number(found.flops, ".1e"))
        for entry in rows.table().literature
        if (found := entry.on(run.pair))
    )
    for entry_name, row in rows.table().rows.items():
        if ours := row.paper.table2.get(run.pair):
            listed.append(
                (f"Transformer ({entry_name}), the paper", number(ours.bleu, ".1f"), number(ours.flops, ".1e"))
            )
    this = f"this run ({run.row}, {run.corpus}), {metrics['bleu_set']}"
    listed.append((this, f"{metrics['bleu_paper_way']:.2f}", f"{metrics['train_flops_paper']:.2e}"))
    others = [
        (other.name, number(other.bleu), number(other.bleu_paper_way, ".1f"), other.note)
        for other in rows.table().others
        if other.pair == run.pair
    ]
    others.append((this, f"{metrics['bleu']:.2f}", f"{metrics['bleu_paper_way']:.2f}", ""))
    return [
        Heading("Beside Table 2"),
        Paragraph("newstest2014 BLEU the paper's way and training cost in FLOPs, as the paper reports them."),
        Table(("model", "BLEU, the paper's way", "cost, FLOPs"), listed, frozenset([len(listed) - 1])),
        Paragraph("Later Transformers on newstest2014, as their authors report them:"),
        Table(("model", "sacreBLEU", "the paper's way", ""), others, frozenset([len(others) - 1])),
    ]


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one: `model.N` -> 6."""
    found: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def differences(run: RunSettings, configuration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Keys, the paper's row's values and this run's, where they differ."""
    reference = rows.settings(reference_row(run.row), run.pair)
    if reference["subwords"]["merges"] is not None and configuration["subwords"]["merges"] is None:
        # Both ways of giving one size are the paper's: a run is held to the one that it goes by.
        reference = rows.merge(reference, {"subwords": {"vocabulary": PAPER_SUBWORDS}})
    paper, ours = flat(reference), flat(configuration)
    return [
        (key, _value(paper.get(key)), _value(value))
        for key, value in ours.items()
        if value != paper.get(key) and key not in DECIDES_NOTHING
    ]


def _value(value: Any) -> str:
    return "null" if value is None else str(value)


def explanations(
    run: RunSettings, data: DataSettings, metrics: Mapping[str, Any], configuration: Mapping[str, Any]
) -> list[str]:
    """Sentences on what sets this run's numbers apart from the paper's."""
    name = reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    said = []
    checkpoints, requested = metrics["averaged_checkpoints"], configuration["averaging"]["last"]
    if checkpoints < requested:
        said.append(
            f"The average is the {metrics['bleu_model']}: averaging.last is {requested}, but training left "
            f"{checkpoints}."
        )
    if comparable(data) and table2 is not None:
        gap = metrics["bleu_paper_way"] - table2.bleu
        said.append(
            f"Scored the paper's way, this run is {abs(gap):.2f} BLEU {'above' if gap >= 0 else 'below'} the paper's "
            f"{name} on newstest2014; the interval of the sacreBLEU score covers the choice of sentences, not of seeds."
        )
    said.append(
        "The paper's BLEU is not sacreBLEU: it is taken on Moses tokens"
        + (", with compounds split and quotes made plain" if data.target == "de" else "")
        + ". Only the lines named so are to be held against it."
    )
    said.append(
        f"Perplexity is per subword, without label smoothing: only runs on equal subwords compare. Here "
        f"{metrics['vocabulary']:,} rows of embedding; the paper names about 37,000 (en-de) and 32,000 (en-fr)."
    )
    if run.row == name and paper.params_m is not None:
        settings = ModelSettings.model_validate(configuration["model"])
        at_paper = parameters(settings, rows.PAPER_VOCABULARY)
        outlier = " No single size fits its 213 and its other counts." if name == "big" else ""
        said.append(
            f"With {rows.PAPER_VOCABULARY:,} rows of embedding this model has {at_paper:,} parameters; the paper "
            "prints "
            f"{paper.params_m} million.{outlier}"
        )
    if configuration["subwords"]["kind"] == "wordpieces":
        said.append("sentencepiece stands in for the paper's word-piece model, which was never published.")
    if run.pair == "en-fr" and name == "big":
        said.append(
            "The paper's English-French score of big is 41.8 in its tables and 41.0 in its text and first version."
        )
    if name == "base":
        said.append("The paper's 3.3e18 FLOPs for base are of 12 hours; 100,000 updates of 0.4 s would be 3.0e18.")
    said.append(
        f"Cost the paper's way is training seconds x devices x sustained single precision of one "
        f"({metrics['sustained_flops']:.2e} a second; {metrics['sustained_flops_source']}). Processors since 2017 do "
        "most of their work in other units, so the counted operations compare better between them."
    )
    said.append(f"One run, one seed ({run.seed}).")
    return said


def hardware(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> list[Block]:
    """What it was trained on, how long, and what that cost."""
    used, times = metrics["model_flops_utilisation"], training["device_seconds"]
    padding = training.get("padding")
    lines = [
        ("device", f"{metrics['devices']} x {metrics['device']}"),
        ("processes", str(training["processes"])),
        ("precision", metrics["precision"]),
        ("training time, attempts lost to a kill included", duration(metrics["train_seconds"])),
        ("device time, all attempts", ", ".join(f"{duration(time)} of {name}" for name, time in times.items())),
        ("updates", f"{metrics['updates']:,}"),
        ("target tokens a second", number(training.get("tokens_per_second"), ",.0f")),
        ("padding, of all positions", "" if padding is None else f"{padding:.1%}"),
        ("operations counted", f"{metrics['train_flops_counted']:.3e}"),
        ("model FLOPs utilisation", "peak not on record" if used is None else f"{used:.1%}"),
    ]
    return [Heading("Hardware, time, cost"), Table(("", ""), lines)]


def text(data: DataSettings, binned: Mapping[str, Any]) -> list[Block]:
    """What was trained on."""
    # Histograms are for programs.
    short = {key: value for key, value in binned.items() if not isinstance(value, Mapping) or len(value) <= 8}
    counts = [
        (key, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for key, value in flat(short).items()
        if isinstance(value, int | float)
    ]
    return [
        Heading("Text"),
        Paragraph(f"Training: {', '.join(part.name for part in data.train)}. Validation: {data.valid.name}. "
                  f"Test: {data.test.name}."),
        Table(("binned training corpus", ""), counts),
    ]  # fmt: skip


def examples(data: DataSettings) -> list[Block]:
    """The first lines of the test set: source, reference, translation."""
    paths = (
        RAW / f"test.{data.test.name}.{data.source}",
        RAW / f"test.{data.test.name}.{data.target}",
        TRANSLATIONS / f"{data.test.name}.average.{data.target}",
    )
    texts = []
    for path in paths:
        with path.open(encoding="utf-8", newline="\n") as file:
            texts.append([line.removesuffix("\n") for line, _ in zip(file, range(EXAMPLES), strict=False)])
    return [Heading("First lines of the test set"), Table(("source", "reference", "translation"),
                                                          list(zip(*texts, strict=True)))]  # fmt: skip


def attention(folder: Path) -> list[Block]:
    """The model's attention for a pair of the validation set, in the manner of the paper's figures 3 to 5."""
    pictures = [Figure(path.read_bytes(), path.stem, f"attention-{path.stem}") for path in sorted(folder.glob("*.svg"))]
    return [Heading("Attention"), *pictures] if pictures else []


def _translation(run: RunSettings, data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """BLEU beside the paper's row and Table 2."""
    return [*results(run, data, metrics), *literature(run, metrics), figures.against_cost(run, metrics)]


def _parsing(run: RunSettings, _data: DataSettings, metrics: Mapping[str, Any]) -> list[Block]:
    """F1 beside the paper's row and Table 4."""
    return parsing.results(run, reference_row(run.row), metrics)


SCORED = {"tree": _parsing}
"""How the scores of a target that is no language are shown; those of every other target are BLEU."""


def blocks() -> list[Block]:
    """The whole report, from the files of the stages before."""
    asked, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: load_section(name, kind).model_dump() for name, kind in SECTIONS.items()}
    metrics, training = stage.read_json(METRICS), stage.read_json(TRAINING)
    changed = differences(asked, configuration)
    name = reference_row(asked.row)
    versions = load_section("versions", VersionSettings).model_dump()
    return [
        Heading(f"{asked.row}, {asked.pair} on {asked.corpus}, seed {asked.seed}", 1),
        *SCORED.get(data.target, _translation)(asked, data, metrics),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), changed) if changed else Paragraph("None in the settings."),
        *([Bullets(explanations(asked, data, metrics, configuration))] if "bleu" in metrics else []),
        *hardware(metrics, training),
        figures.curves(CURVES, VALIDATION),
        *text(data, stage.read_json(BINNED)),
        *examples(data),
        *attention(ATTENTION),
        Heading("How to repeat it"),
        Paragraph(
            "The full configuration is results/config.yaml; libraries that decide bytes: "
            + ", ".join(f"{library} {version}" for library, version in versions.items())
            + "."
        ),
    ]


def run(tracker: stage.Tracker) -> None:
    """Everything measured -> results/report.md, results/report.html and results/figures."""
    content = blocks()
    with writing(FIGURES) as temporary:
        temporary.mkdir()
        for figure in content:
            if isinstance(figure, Figure):
                (temporary / f"{figure.name}.svg").write_bytes(figure.svg)
    tracker.artifact(FIGURES)
    for path, written in ((MARKDOWN, page.markdown(content, FIGURES.name)), (HTML, page.page(content))):
        with writing(path) as temporary:
            temporary.write_text(written, encoding="utf-8", newline="\n")
        tracker.artifact(path)
    # From here and not from the stage that measured them: a cached stage tells a tracker nothing.
    metrics = stage.read_json(METRICS)
    tracker.metrics({key: value for key, value in metrics.items() if isinstance(value, int | float)})
    tracker.tags({key: value for key, value in metrics.items() if isinstance(value, str)})
