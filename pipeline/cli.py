"""The command `wmt`: options, help, errors and exit statuses of everything that people run.

A command is a few lines over a room below. What it runs is imported inside it, so that `--help` and shell completion
answer at once. Stages are run by `python -m pipeline STAGE`, not from here.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from nmt.inference.options import (
    LONGEST,
    WINDOW,
    EngineName,
    LongLines,
    Precision,
    Quantization,
    TranslationOptions,
)

MODELS, RUNS, DATA, SERVICES = "Models", "Runs", "Data", "Services"
"""Panels of the help."""
SEARCH = "Search (by default as the model folder says)"
"""A panel of the help of `wmt translate`."""


class Commands(TyperGroup):
    """Commands whose errors become one sentence and an exit status here, and nowhere else."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command. Status 1 for what a user can mend, 130 for Ctrl-C, 0 where the reader has closed the pipe."""
        try:
            try:
                result = super().invoke(ctx)
            except typer.Exit as status:
                result = status
            sys.stdout.flush()
        except KeyboardInterrupt as error:
            raise typer.Exit(130) from error
        except BrokenPipeError as error:
            _discard_output()
            raise typer.Exit from error
        except (OSError, ValueError) as error:
            from nmt.config import InputError

            if not isinstance(error, InputError | OSError):
                raise
            try:
                sys.stdout.flush()
            except OSError:
                _discard_output()
            print(f"{ctx.invoked_subcommand}: {_sentence(error)}", file=sys.stderr)
            raise typer.Exit(1) from error
        if isinstance(result, typer.Exit):
            raise result
        return result


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _discard_output() -> None:
    """Send what is still in the buffer nowhere: Python would complain once more when it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class SeveralValues(TyperCommand):
    """A command whose repeatable options take several values at once: `--seeds 1 2` is `--seeds 1 --seeds 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeat the option's name before its second value and those after it."""
        names = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        repeated: list[str] = []
        name, values = "", 0
        for argument in args:
            if argument.startswith("-"):
                name, values = argument, 0
            elif name in names:
                values += 1
                if values > 1:
                    repeated.append(name)
            repeated.append(argument)
        return super().parse_args(ctx, repeated)


app = typer.Typer(
    cls=Commands, no_args_is_help=True, rich_markup_mode="rich", pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip
catalog = typer.Typer(no_args_is_help=True)
app.add_typer(catalog, name="catalog", rich_help_panel=DATA)

Model = Annotated[
    Path, typer.Argument(metavar="MODEL_DIR", help="A model folder, such as models/average.", show_default=False)
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(metavar="MODEL_DIR...", help="More models of the same vocabulary: the mean of their probabilities."),
]


@app.callback()
def wmt() -> None:
    """Raw WMT14 text to a scored Transformer.

    `dvc repro` runs the pipeline that params.yaml describes; these commands do everything around it.

    \b
    Example:
      dvc repro
      wmt summary
      wmt translate models/average --input in.en --output out.de
    """


@app.command(cls=SeveralValues, rich_help_panel=MODELS)
def translate(
    model: Model,
    ensemble: Ensemble = None,
    pair: Annotated[str | None, typer.Option(help="Refuse a model of another pair: en-de, ...")] = None,
    input_: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="Lines to translate, instead of standard input.")
    ] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Appears when it is whole.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an --output that was interrupted.")] = False,
    beam: Annotated[int | None, typer.Option(help="Hypotheses a sentence; 1: greedy.", rich_help_panel=SEARCH)] = None,
    alpha: Annotated[float | None, typer.Option(help="Length penalty.", rich_help_panel=SEARCH)] = None,
    max_extra: Annotated[int | None, typer.Option(help="Subwords beyond the source's.", rich_help_panel=SEARCH)] = None,
    stop: Annotated[
        str | None, typer.Option(help="exact, or tensor2tensor's looser rule.", rich_help_panel=SEARCH)
    ] = None,
    nbest: Annotated[
        int, typer.Option(help="Translations a line, written `line ||| text ||| score`.", rich_help_panel=SEARCH)
    ] = 1,
    sample: Annotated[
        bool,
        typer.Option("--sample", help="Draw translations at random instead of searching.", rich_help_panel=SEARCH),
    ] = False,
    temperature: Annotated[float, typer.Option(help="Of --sample.", rich_help_panel=SEARCH)] = 1.0,
    top_k: Annotated[int, typer.Option(help="Of --sample: among the likeliest alone.", rich_help_panel=SEARCH)] = 0,
    seed: Annotated[int, typer.Option(help="Of --sample.", rich_help_panel=SEARCH)] = 1,
    longest: Annotated[int, typer.Option(help="Subwords of a line that is translated whole.")] = LONGEST,
    long: Annotated[LongLines, typer.Option(help="Longer lines: their sentences one by one, or a refusal.")] = "split",
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line: translations, scores, attention.")
    ] = False,
    engine: Annotated[
        EngineName, typer.Option(help="ctranslate2: with a folder made by wmt export; its penalty is not GNMT's.")
    ] = "torch",
    device: Annotated[str | None, typer.Option(help="cpu, cuda; by default a GPU where there is one.")] = None,
    precision: Annotated[Precision, typer.Option(help="Of the weights and the arithmetic.")] = "float32",
    batch_tokens: Annotated[
        int, typer.Option(help="Source positions a batch, all beams counted: memory goes with it.")
    ] = 4096,
    window: Annotated[int, typer.Option(help="Lines sorted by length together; 1: line by line.")] = WINDOW,
) -> None:
    """Translate raw text with a model folder alone.

    A line in, a line out; an empty line stays one. At a terminal it asks for lines.

    \b
    Example:
      wmt translate models/average --input in.en --output out.de
      wmt translate models/average --json --nbest 4 < in.en
    """
    from nmt.inference import streams

    streams.translate(
        TranslationOptions(
            model=model, ensemble=tuple(ensemble or ()), pair=pair, input=input_, output=output, resume=resume,
            beam=beam, alpha=alpha, max_extra=max_extra, stop=stop, nbest=nbest, sample=sample,
            temperature=temperature, top_k=top_k, seed=seed, longest=longest, long=long, json=as_json, engine=engine,
            device=device, precision=precision, batch_tokens=batch_tokens, window=window,
        )
    )  # fmt: skip


@app.command(cls=SeveralValues, rich_help_panel=MODELS)
def score(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Raw lines.", show_default=False)],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="Their translations, detokenised.", show_default=False)
    ],
    ensemble: Ensemble = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line, and one of them all.")] = False,
) -> None:
    """Score given translations: log-probability in nats and perplexity a subword, EOS counted, a line each.

    These are the numbers that the search gives with its own translations, as far as their text is coded into the same
    subwords again.

    \b
    Example:
      wmt score models/average in.en out.de
    """
    from nmt.evaluation import forced_scoring

    lines, total = 0, forced_scoring.Scored(0.0, 0)
    for scored in forced_scoring.score_files([model, *(ensemble or ())], source, target):
        lines, total = lines + 1, total + scored
        if as_json:
            print(json.dumps({"log_probability": scored.log_probability, "tokens": scored.tokens,
                              "perplexity": scored.perplexity}))  # fmt: skip
        else:
            print(f"{scored.log_probability:.4f}\t{scored.perplexity:.4f}")
    if as_json:
        print(json.dumps({"lines": lines, "tokens": total.tokens, "log_probability": total.log_probability,
                          "perplexity": total.perplexity}))  # fmt: skip
    else:
        print(f"{lines:,} lines, {total.tokens:,} subwords: perplexity {total.perplexity:.4f}", file=sys.stderr)


app.command(
    "parse",
    cls=SeveralValues,
    rich_help_panel=MODELS,
    help="""Parse sentences with a model folder of the pair en-tree: a tree in Penn bracketing for each line.

    Words are separated by spaces. The options are those of wmt translate.

    \b
    Example:
      wmt parse models/average --input sentences.txt --output trees.mrg
    """,
)(translate)


@app.command(rich_help_panel=MODELS)
def evalb(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="Gold trees, one a line.", show_default=False)],
    parsed: Annotated[Path, typer.Argument(metavar="PARSED", help="A tree for each line.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="An object.")] = False,
) -> None:
    """Score constituency trees as EVALB does with COLLINS.prm: labelled F1 and others, by sentence length too.

    \b
    Example:
      wmt evalb gold.mrg parsed.mrg
    """
    from nmt.evaluation import evalb as scoring

    report = scoring.report(gold, parsed)
    print(json.dumps(report, indent=2, ensure_ascii=False) if as_json else scoring.text(report))


@app.command(rich_help_panel=MODELS)
def bleu(
    hypotheses: Annotated[
        list[Path],
        typer.Argument(metavar="HYP", help="Detokenised translations; of several systems, the baseline first."),
    ],
    reference: Annotated[Path, typer.Argument(metavar="REF", help="One reference a line.", show_default=False)],
    lang: Annotated[str, typer.Option(help="The target language's code: de, fr, ...", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="An object, or a list for several systems.")] = False,
) -> None:
    """Score translations: sacreBLEU with its signature, the paper's own way step by step, chrF.

    Several systems are compared with the first by paired bootstrap resampling.

    \b
    Example:
      wmt bleu out.de ref.de --lang de
      wmt bleu base.de other.de ref.de --lang de --json
    """
    from nmt.evaluation import bleu as scoring

    reports = scoring.reports(hypotheses, reference, lang)
    if as_json:
        print(json.dumps(reports if len(reports) > 1 else reports[0], indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(scoring.text, reports)))


@app.command(rich_help_panel=MODELS)
def attention(
    model: Model,
    source: Annotated[str, typer.Option(help="A raw sentence.", show_default=False)],
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.", show_default=False)],
    target: Annotated[str | None, typer.Option(help="Its translation; the model's own by default.")] = None,
) -> None:
    """Write every layer's and head's attention for a pair of sentences, as arrays and pictures.

    The pictures are in the manner of the paper's figures 3 to 5.

    \b
    Example:
      wmt attention models/average --source "She sees a dog." --output looked
    """
    if output.exists():
        raise typer.BadParameter(f"{output} exists: give a new folder", param_hint="--output")
    from nmt.inference import attention_maps

    attention_maps.look(model, source, target, output)


@app.command(rich_help_panel=MODELS)
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write.", show_default=False)],
    quantization: Annotated[Quantization, typer.Option(help="Of the weights.")] = "float32",
) -> None:
    """Make a CTranslate2 model, complete in itself.

    `wmt translate OUT --engine ctranslate2` translates with it.

    \b
    Example:
      wmt export models/average exported --quantization int8
    """
    if out.exists() and not (out / "model.bin").exists():
        raise typer.BadParameter(f"{out} exists and is no CTranslate2 model: give another folder", param_hint="OUT")
    from nmt.inference import export as exporting

    exporting.export(model, out, quantization)


@app.command(rich_help_panel=RUNS)
def plan(
    no_measure: Annotated[bool, typer.Option("--no-measure", help="Leave out the measurement and the time.")] = False,
) -> None:
    """Say which stages would run, and the disk, memory, operations and time that they need.

    Nothing is written. The speed of training is measured for a few seconds with the configured model on this machine;
    the rest is arithmetic on the configuration and the corpora's known sizes, as rough as it says. The exit status is 1
    where disk or memory do not suffice.

    \b
    Example:
      wmt plan --no-measure
    """
    from pipeline.commands import plan as planning

    raise typer.Exit(0 if planning.report(measure=not no_measure) else 1)


@app.command(rich_help_panel=RUNS)
def rows(
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects.")] = False,
    vocabulary: Annotated[
        int | None, typer.Option(help="Rows of the embedding; by default as many as the paper's code had.")
    ] = None,
) -> None:
    """List the rows of the paper's tables with exact parameter counts beside the paper's.

    \b
    Example:
      wmt rows --vocabulary 37000
    """
    from pipeline.commands import rows as table
    from pipeline.config.rows import PAPER_VOCABULARY

    items = table.listing(PAPER_VOCABULARY if vocabulary is None else vocabulary)
    print(json.dumps(items, indent=2) if as_json else table.text(items))


@app.command(rich_help_panel=RUNS)
def summary() -> None:
    """Print the BLEU of the finished run, its interval, and where report and model are.

    \b
    Example:
      wmt summary
    """
    from pipeline.reporting import summary as reporting

    print(reporting.text())


@app.command(cls=SeveralValues, rich_help_panel=RUNS)
def states(
    free: Annotated[
        list[str] | None, typer.Option(metavar="STATE...", help="Delete these (a beginning is enough).")
    ] = None,
    older: Annotated[
        float | None, typer.Option(metavar="DAYS", help="Delete the finished ones not used for DAYS days.")
    ] = None,
) -> None:
    """List what trainings keep on disk to be resumed or extended, and free it.

    Finished results do not need it: they are in models/ and in DVC's cache. Without it a training can no longer be
    resumed, nor extended to more updates.

    \b
    Example:
      wmt states --older 30
    """
    import time

    from pipeline.commands import states as kept
    from pipeline.stage import state_root

    if not free and older is None:
        print(kept.listing(kept.states(state_root()), time.time()))
        return
    for state in kept.free_chosen(state_root(), free or (), older):
        print(f"freed {state.name}: {state.bytes / 1e6:,.0f} MB")


@app.command(rich_help_panel=RUNS)
def join(
    state: Annotated[
        Path,
        typer.Argument(metavar="STATE", help="The training's folder, work/train/<fingerprint>.", show_default=False),
    ],
) -> None:
    """Join, as a further machine, a training that another one runs.

    All share the state root and the repository, and say where they meet: WMT_NODES=2
    WMT_RENDEZVOUS=first-machine:29400.

    \b
    Example:
      wmt join work/train/0123456789abcdef-0123456789abcdef
    """
    from pipeline.commands import join as joining

    raise typer.Exit(joining.join(state))


@app.command(cls=SeveralValues, rich_help_panel=RUNS)
def ablation(
    rows: Annotated[
        list[str] | None, typer.Option(metavar="ROW...", help="By default base and one of every kind.")
    ] = None,
    seeds: Annotated[list[int], typer.Option(metavar="SEED...", help="Of every row.")] = [1, 2, 3],  # noqa: B006 - Typer copies it
    corpus: Annotated[str | None, typer.Option(help="A file of data/catalog/; params.yaml's by default.")] = None,
    width: Annotated[int, typer.Option(help="Divides every width.")] = 4,
    depth: Annotated[int, typer.Option(help="Divides the layers.")] = 2,
    updates: Annotated[int, typer.Option(help="Of every run.")] = 1000,
    tokens: Annotated[int, typer.Option(help="Target tokens an update.")] = 1500,
    warmup: Annotated[int, typer.Option(help="Updates of warm-up.")] = 400,
    merges: Annotated[int, typer.Option(help="BPE merges, or word pieces.")] = 4000,
    jobs: Annotated[int, typer.Option(help="Runs beside each other.")] = 1,
    rate: Annotated[float, typer.Option(help="Multiplies Eq. 3.")] = 1.0,
    precision: Annotated[Precision, typer.Option(help="Of the matrix products.")] = "float32",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The report.")] = Path("results/ablation.md"),
) -> None:
    """Train rows of Table 3, scaled down together, with several seeds under one budget, and compare them.

    Every run is a DVC experiment of params.yaml's pair (`dvc exp show` lists them), of the repository as it stands when
    the ablation begins; those that are there already are not run again. Widths (d_model, d_ff, d_k, d_v) are divided
    by --width, layers by --depth, for all rows alike; heads, dropout, label smoothing and positions are the row's own.
    Compared are perplexity and BLEU of the validation set, from the last checkpoint, as in Table 3.

    \b
    Example:
      wmt ablation --rows base A-h1 C-N2 --seeds 1 2 3 --updates 1000
    """
    from pipeline.commands import ablation as study

    options = study.Options(
        rows=rows or study.ROWS, seeds=seeds, corpus=corpus, width=width, depth=depth, updates=updates, tokens=tokens,
        warmup=warmup, merges=merges, jobs=jobs, rate=rate, precision=precision, out=out,
    )  # fmt: skip
    print(study.run(options))


@catalog.callback()
def _catalog() -> None:
    """List the corpora that params.yaml's `corpus` may name, or add one of your own text files.

    \b
    Example:
      wmt catalog list
    """


@catalog.command("list")
def list_catalogs() -> None:
    """Print every catalog's name, pairs and description.

    \b
    Example:
      wmt catalog list
    """
    from pipeline.config import catalogs

    for one in map(catalogs.load, catalogs.names()):
        print(f"{one.name:<20} {' '.join(sorted(one.pairs)):<12} {one.description}")


def _pairs() -> list[str]:
    from typing import get_args

    from pipeline.config.settings import Pair

    return list(get_args(Pair))


def _known_pair(pair: str) -> str:
    if pair not in _pairs():
        raise typer.BadParameter(f"{pair!r} is not one of {', '.join(map(repr, _pairs()))}.")
    return pair


Text = tuple[Path, Path]


@catalog.command("add")
def add_catalog(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What params.yaml's `corpus` will call it.", show_default=False)
    ],
    pair: Annotated[
        str,
        typer.Option(
            help="The languages, from and into.", show_default=False, callback=_known_pair, autocompletion=_pairs
        ),
    ],
    train: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for training.", show_default=False)],
    valid: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for validation.", show_default=False)],
    test: Annotated[Text, typer.Option(metavar="SRC TGT", help="The two sides for the test.", show_default=False)],
    description: Annotated[str, typer.Option(help="One line, for `wmt catalog list`.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Replace a catalog of that name.")] = False,
) -> None:
    """Write a catalog of your own plain text files: UTF-8, one segment a line.

    \b
    Example:
      wmt catalog add mine --pair en-de --train train.en train.de \\
        --valid dev.en dev.de --test test.en test.de
    """
    from pipeline.config.paths import CATALOGS
    from pipeline.corpora import user_text

    texts = {"train": train, "valid": valid, "test": test}
    written = user_text.add(name, pair, texts, description, force, CATALOGS)
    print(f"{written}: set `corpus: {name}` in params.yaml to use it")


@app.command(rich_help_panel=SERVICES)
def ui() -> None:
    """Start MLflow and Prefect's server on this machine's loopback, for one person. Ctrl-C ends both.

    $MLFLOW_PORT and $PREFECT_PORT name other ports than 5000 and 4200. Prefect asks for a password, a new one at each
    start, which commands typed in this environment find by themselves.

    \b
    Example:
      wmt ui
    """
    from pipeline.orchestration import services

    services.serve(worker=False)


@app.command(rich_help_panel=SERVICES)
def serve() -> None:
    """Start MLflow, Prefect's server and a worker, which runs what is asked of Prefect's deployments. Ctrl-C ends all.

    As `wmt ui`, with a worker. A second Ctrl-C does not wait for checkpoints.

    \b
    Example:
      wmt serve
    """
    from pipeline.orchestration import services

    services.serve(worker=True)


def main() -> None:
    """Run the command line; raises SystemExit."""
    app(prog_name="wmt")


if __name__ == "__main__":
    main()
