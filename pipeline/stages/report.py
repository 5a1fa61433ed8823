"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

from nmt.codec import Codec
from nmt.common.files import write_text, writing
from nmt.errors import printable
from nmt.task import task_in, task_of
from nmt.text.settings import PreparationSettings
from pipeline.config import catalogs, paths, resolution, rows, sections
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.paths import read_json
from pipeline.config.sections import load_section, plain_section
from pipeline.report import browser_model, chapters, figures, page, scores, sentences
from pipeline.report.page import Block, Bullets, Figure, Heading, Paragraph, Table, View


def blocks(lines: Sequence[sentences.Line], names: Mapping[str, str]) -> list[Block]:
    chosen, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: plain_section(name) for name in sections.SECTIONS}
    named = {"run": chosen.model_dump(), **configuration}
    versions = ", ".join(f"{library} {version}" for library, version in plain_section("versions").items())
    certificate = read_json(paths.CERTIFICATE)
    name = scores.reference_row(chosen.row)
    metrics = read_json(paths.SCORES) | scores.identities(data.model_dump(), read_json(paths.SCORES))
    metrics |= {"conditions": certificate["training"]["links"][-1]["conditions"]}
    tokenize = load_section("scoring", sections.ScoringSettings).tokenize
    codec = Codec(
        paths.AVERAGE / "subwords", data.source, data.target, load_section("preparation", PreparationSettings).tokenizer
    )
    start = configuration["training"].get("start_from")
    description = catalogs.load(chosen.corpus).description
    parent = start and f"{start['folder']} (weights {str(start.get('weights'))[:12]})"
    unlike = chapters.differences(chosen, configuration)
    output = task_of(data.target).output
    papers = scores.papers_name(chosen, bool(unlike))
    # Overrides may set back to the row's value what the catalog sets. Where a row says `auto`, another machine has
    # another precision.
    entry = catalogs.pair_entry(catalogs.load(chosen.corpus), chosen.pair)
    of_catalog = dict(rows.flat({"preparation": entry.preparation, "subwords": {} if start else entry.subwords}))
    if {"subwords.merges", "subwords.vocabulary"} & of_catalog.keys():  # Either size empties the other one.
        of_catalog = {"subwords.merges": None, "subwords.vocabulary": None, **of_catalog}
    repeated = {"training.precision": configuration["training"]["precision"]}
    repeated |= {key: value for key, value in rows.flat(configuration) if of_catalog.get(key, value) != value}
    return [
        Heading(scores.title(chosen), 1),
        Paragraph(scores.lead(resolution.name(named), chosen, metrics, description, parent)),
        *browser_model.section(paths.AVERAGE, sentences.examples(lines, data.source)),
        scores.headline(chosen, data, metrics, papers),
        Paragraph(f"The {sentences.EXTREMES} best and the {sentences.EXTREMES} worst lines of the test set:"),
        sentences.extremes(lines, task_of(data.target).of_line),
        *chapters.learning(data, codec),
        *scores.results(chosen, metrics, papers),
        *scores.sets(metrics),
        chapters.overlap(read_json(paths.TOKENIZED / "stats.json")),
        Heading(f"{output.capitalize()}s of the test set"),
        Paragraph(f"The page has all {len(lines):,} lines, report.md the best and the worst, above."),
        sentences.view({output: lines}, data.source, data.target),
        *chapters.groups(data, codec, lines, task_in(metrics).title, tokenize),
        *chapters.attention(data),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), unlike) if unlike else Paragraph("None in the settings."),
        *([Bullets(chapters.explanations(chosen, metrics, configuration, papers))] if "bleu" in metrics else []),
        *chapters.cost(metrics, read_json(paths.TRAINING)),
        Heading("Curves of the training", open=True),
        figures.curves(paths.CURVES, paths.VALIDATION, task_in(metrics).unit),
        *chapters.corpus(data, read_json(paths.BINNED_STATS)),
        *chapters.certificate(certificate),
        *chapters.repetition(chosen, {**resolution.changed(named), **repeated}, names),
        Paragraph(f"The full configuration is results/config.yaml; libraries that decide bytes: {versions}."),
    ]


def run(provenance: Callable[[], Mapping[str, str]] = dict) -> None:
    """Write results/report.md, results/report.html, results/figures and results/sentences.jsonl.

    `provenance` returns what names the run, which no stage knows: the commit, what differs from it, ...
    """
    data = load_section("data", DataSettings)
    lines, *others = (
        sentences.scored(
            paths.raw("test", text.name, data.source),
            paths.raw("test", text.name, data.target),
            paths.translation(text.name, paths.AVERAGE, data.target),
            data.target,
            text.name if number else "",
        )
        for number, text in enumerate(data.test)
    )
    content = blocks(lines, provenance())
    sentences.write(chain(lines, *others), paths.SENTENCES)
    with writing(paths.FIGURES, folder=True) as temporary:
        for block in page.static_blocks(content):
            if isinstance(block, Figure):
                (temporary / f"{block.name}.svg").write_bytes(block.svg)
        for view in content:
            if isinstance(view, View) and view.beside:
                # A script: a page that is a file itself can read no other kind.
                script = f'arrived("{page.packed(view)}")\n'
                (temporary / Path(view.beside).name).write_text(script, encoding="utf-8")
    write_text(paths.REPORT, printable(page.markdown(content, paths.FIGURES.name)))
    write_text(paths.REPORT_HTML, page.html(content))
