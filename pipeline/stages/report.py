"""Write the report: the run beside the paper's row and the literature, its cost, and every difference explained."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from humanize import precisedelta

from nmt import codec
from nmt.common.files import write_text, writing
from nmt.evaluation.scoring import scorer
from nmt.flops import parameters
from nmt.model_settings import ModelSettings
from nmt.parsing.tokenizers import TreeTokenizer
from nmt.task import task_of
from nmt.text.parallel_text import read_lines
from nmt.text.settings import PreparationSettings
from pipeline.config import catalogs, paths, resolution, rows, sections
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.config.paths import read_json
from pipeline.config.sections import load_section, plain_section
from pipeline.data.references import identities
from pipeline.report import browser_model, figures, page, scores, sentences
from pipeline.report.page import Block, Bullets, Commands, Figure, Heading, Paragraph, Table, View

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


def explanations(run: RunSettings, metrics: Mapping[str, Any], configuration: Mapping[str, Any]) -> list[str]:
    name, key = scores.reference_row(run.row), task_of(run.pair).papers_key
    paper = rows.row(name).paper
    printed = rows.printed(name, run.pair)
    return page.sentences(
        "explanations",
        run=run,
        row=name,
        paper=paper,
        metrics=metrics,
        gap=metrics[key] - float(printed[key]) if key in printed and scores.comparable(metrics) else None,
        parameters=parameters(ModelSettings.model_validate(configuration["model"]), rows.PAPER_VOCABULARY),
        paper_vocabulary=rows.PAPER_VOCABULARY,
        averaging=configuration["averaging"],
        subwords=configuration["subwords"],
    )


def cost_section(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> list[Block]:
    used = metrics["model_flops_utilisation"]
    times = [f"{precisedelta(round(seconds))} of {name}" for name, seconds in training["device_seconds"].items()]
    lines = [
        ("device", f"{metrics['devices']} x {metrics['device']}"),
        ("processes", str(training["processes"])),
        ("precision", metrics["precision"]),
        ("training time, attempts lost to a kill included", precisedelta(round(metrics["train_seconds"]))),
        ("device time, all attempts", ", ".join(times)),
        ("updates", f"{metrics['updates']:,}"),
        ("target tokens per second", scores.number(training.get("tokens_per_second"), ",.0f")),
        ("padding, of all positions", scores.number(training.get("padding"), ".1%")),
        ("operations counted", f"{metrics['train_flops_counted']:.3e}"),
        ("model FLOPs utilisation", "peak not on record" if used is None else f"{used:.1%}"),
    ]
    return [Heading("Hardware, time, cost"), Table(("", ""), lines)]


def certificate_section(certificate: Mapping[str, Any]) -> list[Block]:
    links = certificate["training"]["links"]
    chain = f", {len(links):,} hashes of the training up to update {links[-1]['update']:,}" if links else ""
    return [
        Heading("Certificate"),
        Paragraph(
            f"results/certificate.json has the settings, the hashes of {len(certificate['files']):,} files{chain}, and "
            f"its own: {certificate['seal']}. `wmt verify` makes the files again and compares: it runs every stage up "
            "to the score but training, and trains parts of the training again from kept states."
        ),
    ]


def corpus_section(data: DataSettings, binned: Mapping[str, Any]) -> list[Block]:
    names = ", ".join(part.name for part in data.train)
    counts = [
        (key, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for key, value in rows.flat({name: each for name, each in binned.items() if name != "histogram"})
    ]
    return [
        Heading("Text"),
        Paragraph(f"Training: {names}. Validation: {data.valid.name}. Test: {data.test.name}."),
        Table(("binned training corpus", ""), counts),
    ]


def overlap(tokenized: Mapping[str, Any]) -> Paragraph:
    """Return how many lines of the test and the validation set training has seen, by side."""
    found = [
        f"{name} set: {', '.join(f'{kind} {count:,}' for kind, count in tokenized['overlap'][role].items())}"
        for role, name in (("test", "test"), ("valid", "validation"))
    ]
    return Paragraph(f"Lines that are in the training text, too. {'; '.join(found)}.")


def groups(data: DataSettings, lines: Sequence[sentences.Line], counts: Counter[str]) -> list[Block]:
    """Return the scores of the test set's lines by length, and of its words by frequency."""
    found: list[Block] = [
        Heading("By length", 3),
        sentences.by_length({task_of(data.target).title: lines}, data.target),
    ]
    if not scorer(data.target).groups_words:
        return found
    preparation = load_section("preparation", PreparationSettings)
    tokenizer = codec.tokenizers(data.source, data.target, preparation.tokenizer)[1]
    return [
        *found,
        Heading("By frequency of words", 3),
        Paragraph("Words of the references, grouped by how often the training text has them."),
        sentences.by_frequency(lines, tokenizer.tokenize, counts),
    ]


def repetition(run: RunSettings, settings: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Return the commands that make this run again in a copy of the repository."""
    chosen = [f"-S {key}={value}" for key, value in run.model_dump().items()]
    chosen += [f"-S {quote(f'++overrides.{key}={json.dumps(value)}')}" for key, value in settings.items()]
    commits = [f"git checkout {name.removeprefix('commit ')}" for name in names if name.startswith("commit ")]
    return [*commits, " ".join(["dvc exp run", *chosen])]


def learning_section(data: DataSettings) -> list[Block]:
    target = codec.load(paths.AVERAGE / "subwords")[1]
    symbols = target.symbols(range(target.used_rows)) if target.settings.target == "closed" else ()
    tokenizer = load_section("preparation", PreparationSettings).tokenizer
    written = codec.tokenizers(data.source, data.target, tokenizer, symbols)[1]

    def text(ids: Sequence[int], source: str) -> str:
        tokens = target.decode(ids)
        return written.detokenize(tokens, source) if isinstance(written, TreeTokenizer) else written.detokenize(tokens)

    source, reference = (paths.RAW / f"valid.{data.valid.name}.{language}" for language in (data.source, data.target))
    losses = figures.series(paths.VALIDATION, "valid_loss")
    records = map(json.loads, read_lines(paths.VALIDATION_OUTPUTS))
    return [
        Heading("While it trained"),
        Paragraph("What the model wrote for lines of the validation set at every validation, by greedy search."),
        figures.learning(records, losses, (source, reference), [data.source, data.target], text),
    ]


def attention_section(data: DataSettings) -> list[Block]:
    pictures = []
    for path in sorted(paths.ATTENTION.glob("*.svg")):
        name, in_page = path.stem, path.stem.startswith("cross-layer")
        kind, layer = name.split("-layer-")
        caption = f"Attention of layer {layer}, {figures.ATTENTION[kind]}: a picture for each head"
        pictures.append(Figure(path.read_bytes(), caption, f"attention-{name}", only_markdown=not in_page))
    return [
        Heading("Attention"),
        figures.attention(paths.ATTENTION / "sentences.npz", [data.source, data.target], pictures),
    ]


def blocks(lines: Sequence[sentences.Line], names: Sequence[str]) -> list[Block]:
    chosen, data = load_section("run", RunSettings), load_section("data", DataSettings)
    configuration = {name: plain_section(name) for name in sections.SECTIONS}
    named = {"run": chosen.model_dump(), **configuration}
    versions = ", ".join(f"{library} {version}" for library, version in plain_section("versions").items())
    metrics, name = read_json(paths.SCORES) | identities(data.model_dump()), scores.reference_row(chosen.row)
    source, target = (sentences.word_counts(paths.TOKENIZED / f"train.{side}") for side in (data.source, data.target))
    seen = [word for word, _ in source.most_common(sentences.SEEN)]
    unlike, output = differences(chosen, configuration), task_of(data.target).output
    return [
        Heading(resolution.name(named), 1),
        Paragraph(scores.lead(chosen, metrics, catalogs.load(chosen.corpus).description)),
        *browser_model.section(paths.AVERAGE, sentences.examples(lines), seen),
        scores.headline(chosen, data, metrics),
        sentences.extremes(lines, task_of(data.target).of_line),
        *learning_section(data),
        *scores.results(chosen, metrics),
        overlap(read_json(paths.TOKENIZED / "stats.json")),
        Heading(f"{output.capitalize()}s of the test set"),
        sentences.view({output: lines}, data.source, data.target),
        *groups(data, lines, target),
        *attention_section(data),
        Heading(f"Differences from the paper's {name}"),
        Table(("key", f"the paper's {name}", "this run"), unlike) if unlike else Paragraph("None in the settings."),
        *([Bullets(explanations(chosen, metrics, configuration))] if "bleu" in metrics else []),
        *cost_section(metrics, read_json(paths.TRAINING)),
        Heading("Curves of the training"),
        figures.curves(paths.CURVES, paths.VALIDATION),
        *corpus_section(data, read_json(paths.BINNED_STATS)),
        *certificate_section(read_json(paths.CERTIFICATE)),
        Heading("How to repeat it"),
        *([Bullets(names)] if names else []),
        Commands(repetition(chosen, resolution.changed(named), names)),
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
    write_text(paths.REPORT, page.markdown(content, paths.FIGURES.name))
    write_text(paths.REPORT_HTML, page.html(content))
