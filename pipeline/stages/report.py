"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from nmt.text import codec
from pipeline.common import stage
from pipeline.common.paths import (
    ATTENTION,
    AVERAGE,
    BINNED_STATS,
    CERTIFICATE,
    CURVES,
    FIGURES,
    RAW,
    REPORT,
    REPORT_HTML,
    SCORES,
    SENTENCES,
    TOKENIZED,
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
from pipeline.config.scorer import scorer_of
from pipeline.reporting import attention, browser_model, certificate, figures, page, scores, sentences
from pipeline.reporting.page import Block, Bullets, Figure, Heading, Paragraph, Table
from pipeline.reporting.provenance import Provenance

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


def differences(run: RunSettings, configuration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return keys, the values of the paper's row and the values of this run, where they differ."""
    reference = rows.settings(scores.reference_row(run.row), run.pair)
    if reference["subwords"]["merges"] is not None and configuration["subwords"]["merges"] is None:
        # The paper gives the vocabulary's size and its code the merges: a run is compared in the unit that it uses.
        reference = rows.merge(reference, {"subwords": {"vocabulary": PAPER_SUBWORDS}})
    paper = dict(rows.flat(reference))

    def text(value: Any) -> str:
        return "null" if value is None else str(value)

    return [
        (key, text(paper.get(key)), text(value))
        for key, value in rows.flat(configuration)
        if value != paper.get(key) and key not in NOT_COMPARED
    ]


def explanations(
    run: RunSettings, data: DataSettings, metrics: Mapping[str, Any], configuration: Mapping[str, Any]
) -> list[str]:
    """Return sentences on why this run's numbers differ from the paper's."""
    name = scores.reference_row(run.row)
    paper = rows.row(name).paper
    table2 = paper.table2.get(run.pair)
    return page.sentences(
        "explanations",
        run=run,
        row=name,
        paper=paper,
        metrics=metrics,
        gap=metrics["bleu_paper_way"] - table2.bleu if table2 and scores.comparable(metrics) else None,
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
        ("target tokens per second", scores.number(training.get("tokens_per_second"), ",.0f")),
        ("padding, of all positions", scores.number(padding, ".1%")),
        ("operations counted", f"{metrics['train_flops_counted']:.3e}"),
        ("model FLOPs utilisation", "peak not on record" if used is None else f"{used:.1%}"),
    ]
    return [Heading("Hardware, time, cost"), Table(("", ""), lines)]


def corpus_section(data: DataSettings, binned: Mapping[str, Any]) -> list[Block]:
    """Return the names of the corpora and the counts of the training corpus."""
    names = ", ".join(part.name for part in data.train)
    short = {
        key: value for key, value in binned.items() if not isinstance(value, Mapping) or len(value) <= LONGEST_MAPPING
    }
    counts = [
        (key, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for key, value in rows.flat(short)
        if isinstance(value, int | float)
    ]
    return [
        Heading("Text"),
        Paragraph(f"Training: {names}. Validation: {data.valid.name}. Test: {data.test.name}."),
        Table(("binned training corpus", ""), counts),
    ]


def test_lines(data: DataSettings) -> list[sentences.Line]:
    """Return the lines of the test set with the average model's translations and their scores."""
    source, reference = (RAW / f"test.{data.test.name}.{language}" for language in (data.source, data.target))
    return sentences.scored(source, reference, TRANSLATIONS / f"{data.test.name}.average.{data.target}", data.target)


def groups(data: DataSettings, preparation: PreparationSettings, lines: Sequence[sentences.Line]) -> list[Block]:
    """Return the scores of the test set's lines by length, and of its words by frequency."""
    if data.target == "tree":
        gold, parsed = RAW / f"test.{data.test.name}.tree", TRANSLATIONS / f"{data.test.name}.average.tree"
        return sentences.trees_by_length(gold, parsed)
    tokenizer = codec.tokenizers(data.source, data.target, preparation.tokenizer)[1]
    counts = sentences.count_words(TOKENIZED / f"train.{data.target}")
    return [*sentences.by_length(lines), *sentences.by_frequency(lines, tokenizer, counts)]


def attention_section() -> list[Block]:
    """Return the attention of pairs of the validation set."""
    pictures = [
        Figure(
            path.read_bytes(),
            path.stem,
            f"attention-{path.stem}",
            only_markdown=not path.stem.startswith("cross-layer"),
        )
        for path in sorted(ATTENTION.glob("*.svg"))
    ]
    return [Heading("Attention"), attention.view(ATTENTION / "sentences.npz", pictures)]


def blocks(lines: Sequence[sentences.Line], provenance: Provenance) -> list[Block]:
    """Return the whole report, made from the files of the earlier stages."""
    chosen, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: load_section(name, kind).model_dump() for name, kind in SECTIONS.items()}
    versions = load_section("versions", VersionSettings).model_dump()
    preparation = PreparationSettings.model_validate(configuration["preparation"])
    metrics, name = stage.read_json(SCORES), scores.reference_row(chosen.row)
    changed, output = differences(chosen, configuration), scorer_of(data.target).output
    return [
        Heading(f"{chosen.row}, {chosen.pair} on {chosen.corpus}, seed {chosen.seed}", 1),
        *provenance.header(),
        scores.headline(chosen, data, metrics),
        figures.losses(CURVES, VALIDATION),
        *scores.results(chosen, data, metrics),
        *(scores.literature(chosen, metrics) if "bleu" in metrics and scores.comparable(metrics) else []),
        Heading(f"{output.capitalize()}s of the test set"),
        sentences.view({output: lines}, data.source, data.target),
        *groups(data, preparation, lines),
        *attention_section(),
        *browser_model.section(AVERAGE, lines[0].source),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), changed) if changed else Paragraph("None in the settings."),
        *([Bullets(explanations(chosen, data, metrics, configuration))] if "bleu" in metrics else []),
        *cost_section(metrics, stage.read_json(TRAINING)),
        *provenance.times(),
        Heading("Curves of the training"),
        figures.curves(CURVES, VALIDATION),
        *corpus_section(data, stage.read_json(BINNED_STATS)),
        *certificate.section(stage.read_json(CERTIFICATE)),
        Heading("How to repeat it"),
        Paragraph(
            "The full configuration is results/config.yaml; libraries that decide bytes: "
            f"{', '.join(f'{library} {version}' for library, version in versions.items())}."
        ),
    ]


def run(tracker: stage.Tracker, provenance: Callable[[], Provenance] = Provenance) -> None:
    """Write results/report.md, results/report.html, results/figures and results/sentences.jsonl."""
    lines = test_lines(load_section("data", DataSettings))
    content = blocks(lines, provenance())
    sentences.write(lines, SENTENCES)
    with writing(FIGURES) as temporary:
        temporary.mkdir()
        for block in page.static_blocks(content):
            if isinstance(block, Figure):
                (temporary / f"{block.name}.svg").write_bytes(block.svg)
    for path, written in ((REPORT, page.markdown(content, FIGURES.name)), (REPORT_HTML, page.html(content))):
        with writing(path) as temporary:
            temporary.write_text(written, encoding="utf-8", newline="\n")
