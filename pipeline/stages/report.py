"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from nmt.codec import Codec
from nmt.common.files import write_text, writing
from nmt.errors import printable
from nmt.task import task_of
from nmt.text.settings import PreparationSettings
from pipeline.config import catalogs, paths, resolution, sections
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.paths import read_json
from pipeline.config.sections import load_section, plain_section
from pipeline.report import browser_model, chapters, figures, page, scores, sentences
from pipeline.report.page import Block, Bullets, Commands, Figure, Heading, Paragraph, Table, View


def blocks(lines: Sequence[sentences.Line], names: Sequence[str]) -> list[Block]:
    chosen, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: plain_section(name) for name in sections.SECTIONS}
    named = {"run": chosen.model_dump(), **configuration}
    versions = ", ".join(f"{library} {version}" for library, version in plain_section("versions").items())
    metrics, name = read_json(paths.SCORES), scores.reference_row(chosen.row)
    metrics |= scores.identities(data.model_dump(), metrics)
    source, target = (sentences.word_counts(paths.TOKENIZED / f"train.{side}") for side in (data.source, data.target))
    codec = Codec(
        paths.AVERAGE / "subwords", data.source, data.target, load_section("preparation", PreparationSettings).tokenizer
    )
    seen = [word for word, _ in source.most_common(sentences.SEEN)]
    unlike, output = chapters.differences(chosen, configuration), task_of(data.target).output
    return [
        Heading(resolution.name(named), 1),
        Paragraph(scores.lead(chosen, metrics, catalogs.load(chosen.corpus).description)),
        *browser_model.section(paths.AVERAGE, sentences.examples(lines), seen),
        scores.headline(chosen, data, metrics),
        sentences.extremes(lines, task_of(data.target).of_line),
        *chapters.learning(data, codec),
        *scores.results(chosen, metrics),
        chapters.overlap(read_json(paths.TOKENIZED / "stats.json")),
        Heading(f"{output.capitalize()}s of the test set"),
        sentences.view({output: lines}, data.source, data.target),
        *chapters.groups(data, codec, lines, target),
        *chapters.attention(data),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), unlike) if unlike else Paragraph("None in the settings."),
        *([Bullets(chapters.explanations(chosen, metrics, configuration))] if "bleu" in metrics else []),
        *chapters.cost(metrics, read_json(paths.TRAINING)),
        Heading("Curves of the training"),
        figures.curves(paths.CURVES, paths.VALIDATION),
        *chapters.corpus(data, read_json(paths.BINNED_STATS)),
        *chapters.certificate(read_json(paths.CERTIFICATE)),
        Heading("How to repeat it"),
        *([Bullets(names)] if names else []),
        Commands(chapters.repetition(chosen, resolution.changed(named), names)),
        Paragraph(f"The full configuration is results/config.yaml; libraries that decide bytes: {versions}."),
    ]


def run(provenance: Callable[[], Sequence[str]] = lambda: ()) -> None:
    """Write results/report.md, results/report.html, results/figures and results/sentences.jsonl.

    `provenance` returns what names the run, which no stage knows: the commit, DVC's experiment, Prefect's run.
    """
    data = load_section("data", DataSettings)
    source, reference = (paths.RAW / f"test.{data.test.name}.{language}" for language in (data.source, data.target))
    output = paths.TRANSLATIONS / f"{data.test.name}.average.{data.target}"
    lines = sentences.scored(source, reference, output, data.target)
    content = blocks(lines, provenance())
    sentences.write(lines, paths.SENTENCES)
    with writing(paths.FIGURES) as temporary:
        temporary.mkdir()
        for block in page.static_blocks(content):
            if isinstance(block, Figure):
                (temporary / f"{block.name}.svg").write_bytes(block.svg)
        for view in content:
            if isinstance(view, View) and view.beside:
                (temporary / Path(view.beside).name).write_text(page.loaded(view), encoding="utf-8")
    write_text(paths.REPORT, printable(page.markdown(content, paths.FIGURES.name)))
    write_text(paths.REPORT_HTML, page.html(content))
