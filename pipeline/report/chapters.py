"""The report's chapters on one run: its text, cost and certificate, what differs from the paper, how to repeat it."""

import json
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from humanize import precisedelta

from nmt.codec import Codec
from nmt.flops import parameters
from nmt.model_settings import ModelSettings
from nmt.task import PARSING, task_of
from nmt.text.parallel_text import read_lines
from nmt.text.scripts import has_spaces
from pipeline.config import paths, rows
from pipeline.config.corpora import DataSettings, RunSettings
from pipeline.report import figures, page, scores, sentences
from pipeline.report.page import Block, Bullets, Commands, Figure, Heading, Paragraph, Table

NOT_COMPARED = {
    f"training.{key}" for key in ("seed", "resume_minutes", "validation_sample", "verify_every", "keep_states")
}
"""Keys that no row of the paper states or that decide no result."""
LARGEST_PATCH = 20_000  # characters of a patch that the page has
PAPER_SUBWORDS = 37_000
"""The paper's joint vocabulary of "about 37000" (5.1); rows.yaml has the merges of the paper's code instead."""


def differences(run: RunSettings, configuration: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return keys, the values of the paper's row and the values of this run, where they differ."""
    reference = rows.settings(scores.reference_row(run.row), run.pair)
    if reference["subwords"]["merges"] is not None and configuration["subwords"]["merges"] is None:
        # The paper gives the vocabulary's size and its code the merges: a run is compared in the unit that it uses.
        reference = rows.merge_sections(reference, {"subwords": {"vocabulary": PAPER_SUBWORDS}})
    paper = dict(rows.flat(reference))

    def text(value: Any) -> str:
        return "null" if value is None else str(value)

    return [
        (key, text(paper.get(key)), text(value))
        for key, value in rows.flat(configuration)
        if value != paper.get(key) and key not in NOT_COMPARED
    ]


def explanations(
    run: RunSettings, metrics: Mapping[str, Any], configuration: Mapping[str, Any], papers: str
) -> list[str]:
    name, key = scores.reference_row(run.row), task_of(run.pair).papers_key
    printed = rows.printed(name, run.pair)
    return page.sentences(
        "explanations",
        run=run,
        row=name,
        papers=papers,
        paper=rows.row(name).paper,
        metrics=metrics,
        gap=metrics[key] - float(printed[key]) if key in printed and scores.comparable(metrics) else None,
        parameters=parameters(ModelSettings.model_validate(configuration["model"]), rows.PAPER_VOCABULARY),
        paper_vocabulary=rows.PAPER_VOCABULARY,
        **configuration,
    )


def cost(metrics: Mapping[str, Any], training: Mapping[str, Any]) -> list[Block]:
    used = metrics["model_flops_utilisation"]
    times = [f"{precisedelta(round(seconds))} of {name}" for name, seconds in training["device_seconds"].items()]
    lines = [
        ("device", f"{metrics['devices']} x {metrics['device']}{scores.conditions(metrics)}"),
        ("processes", str(training["processes"])),
        ("precision", metrics["precision"]),
        ("training time, attempts lost to a kill included", precisedelta(round(metrics["train_seconds"]))),
        ("device time, all attempts", ", ".join(times)),
        ("updates", f"{metrics['updates']:,}"),
        ("target tokens per second", f"{training['tokens_per_second']:,.0f}"),
        ("padding, of all positions", f"{training['padding']:.1%}"),
        ("operations counted", f"{metrics['train_flops_counted']:.3e}"),
        ("model FLOPs utilisation", "peak not on record" if used is None else f"{used:.1%}"),
    ]
    return [Heading("Hardware, time, cost"), Table(("", ""), lines)]


def certificate(certificate: Mapping[str, Any]) -> list[Block]:
    links = certificate["training"]["links"]
    return [
        Heading("Certificate"),
        Paragraph(
            f"results/certificate.json has the settings, the hashes of {len(certificate['files']):,} files, "
            f"{len(links):,} hashes of the training up to update {links[-1]['update']:,}, and its own: "
            f"{certificate['seal']}. The command wmt verify makes the files again and compares: it runs every stage up "
            "to the score but training, and trains parts of the training again from kept states."
        ),
    ]


def corpus(data: DataSettings, binned: Mapping[str, Any]) -> list[Block]:
    names = ", ".join(part.name for part in data.train)
    counts = [
        (key, f"{value:,}" if isinstance(value, int) else f"{value:.4g}")
        for key, value in rows.flat({name: statistic for name, statistic in binned.items() if name != "histogram"})
    ]
    return [
        Heading("Text"),
        Paragraph(
            f"Training: {names}. Validation: {data.valid.name}. Test: {', '.join(text.name for text in data.test)}."
        ),
        Table(("binned training corpus", ""), counts),
    ]


def overlap(tokenized: Mapping[str, Any]) -> Paragraph:
    """Return how many lines of the test sets and the validation set training has seen, by side."""
    overlap = tokenized["overlap"]
    names = {"test": "test", "valid": "validation", **{key: key for key in overlap if key.startswith("test.")}}
    counts = [
        f"{name} set: {', '.join(f'{kind} {count:,}' for kind, count in overlap[role].items())}"
        for role, name in names.items()
    ]
    return Paragraph(f"Lines that are in the training text, too. {'; '.join(counts)}.")


def groups(
    data: DataSettings, codec: Codec, lines: Sequence[sentences.Line], title: str, tokenize: str | None
) -> list[Block]:
    """Return the scores, named `title`, of the test set's lines by length, and of its words by frequency."""
    languages = data.source, data.target
    blocks: list[Block] = [Heading("By length", 3), sentences.by_length({title: lines}, languages, tokenize)]
    if task_of(data.target) is not PARSING and has_spaces(data.target):  # Else each line would be a word.
        counts = sentences.word_counts(paths.tokenized("train", data.target))
        blocks += [
            Heading("By frequency of words", 3),
            Paragraph("Words of the references, grouped by how often the training text has them."),
            sentences.by_frequency(lines, codec.target.tokenize, counts),
        ]
    return blocks


def repetition(run: RunSettings, settings: Mapping[str, Any], names: Mapping[str, str]) -> list[Block]:
    """Return what names the run, and the commands that make it again in a copy of the repository, with its patch."""
    chosen = [f"-S {key}={value}" for key, value in run.model_dump().items()]
    chosen.append("-S '~overrides'")  # those of the commit's params.yaml
    values = {key: json.dumps(value, ensure_ascii=False) for key, value in settings.items()}
    chosen += [f"-S {quote(f'++overrides.{key}={value}')}" for key, value in values.items()]
    patch, listed = names.get("patch", ""), [f"{what} {name}" for what, name in names.items() if what != "patch"]
    if parent := settings.get("training.start_from.folder"):
        listed.append(f"the parent {parent}: copy it from this machine, no commit has it")
    checkout = [f"git checkout {names['commit']}"] if names.get("commit", "unknown") != "unknown" else []
    apply = ["git apply differences.patch"] if patch else []
    blocks: list[Block] = [Heading("How to repeat it")]
    if listed:
        blocks.append(Bullets(listed))
    blocks.append(Commands([*checkout, *apply, " ".join(["dvc exp run", *chosen])]))
    if len(patch) > LARGEST_PATCH:
        return [*blocks, Paragraph("differences.patch is among the run's artifacts in MLflow.")]
    masked = ", where *** stands for what looked like a secret" if "***" in patch else ""
    return [*blocks, Paragraph(f"differences.patch{masked}:"), Commands(patch.splitlines())] if patch else blocks


def learning(data: DataSettings, codec: Codec) -> list[Block]:
    source, reference = (paths.raw("valid", data.valid.name, language) for language in (data.source, data.target))
    losses = figures.series(paths.VALIDATION, "valid_loss")
    records = map(json.loads, read_lines(paths.VALIDATION_OUTPUTS))
    return [
        Heading("While it trained"),
        Paragraph("What the model wrote for lines of the validation set at every validation, by greedy search."),
        figures.learning(records, losses, (source, reference), [data.source, data.target], codec.write),
    ]


def attention(data: DataSettings) -> list[Block]:
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
