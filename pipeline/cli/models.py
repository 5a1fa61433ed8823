"""The commands of `wmt` on models and their output: translate, parse, score, evalb, bleu, attention, export."""

import json as json_format
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from nmt.inference.options import LONGEST, WINDOW, Quantization, Split, TranslationOptions
from nmt.schema import Precision
from pipeline.cli.repository import certificate_of
from pipeline.config.paths import AVERAGE, SCORES, read_json

app = typer.Typer()

Model = Annotated[Path, typer.Argument(metavar="MODEL_DIR", help="A model folder, such as models/average.")]
Models = Annotated[
    list[Path],
    typer.Argument(
        metavar="MODEL_DIR...",
        help="A model folder, such as models/average; several of one vocabulary translate by their mean probabilities.",
    ),
]


def _search(text: str, *names: str, **rules: Any) -> Any:
    return typer.Option(*names, **rules, help=text, rich_help_panel="Search (by default as the model folder says)")


PARSE_HELP = """Parse sentences with a model folder of the pair en-tree: a tree in Penn bracketing for each line.

Words are separated by spaces. Sentences of more than --longest subwords get an empty line. Standard error tells at the
end how many outputs had to be repaired to be trees. The options are those of wmt translate; sentences are never split.

\b
Example:
  wmt parse models/average --input sentences.txt --output trees.mrg
"""


@app.command("parse", rich_help_panel="Models", help=PARSE_HELP)
@app.command(rich_help_panel="Models")
def translate(
    context: typer.Context,
    models: Models,
    input: Annotated[Path | None, typer.Option(metavar="FILE", help="Translate this file, not standard input.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Appears when it is complete.")] = None,
    beam: Annotated[int | None, _search("Hypotheses per sentence; 1: greedy.")] = None,
    alpha: Annotated[float | None, _search("Length penalty.")] = None,
    max_extra: Annotated[int | None, _search("Subwords that a translation may have more than its source.")] = None,
    stop: Annotated[str | None, _search("exact, or tensor2tensor's looser rule.")] = None,
    nbest: Annotated[
        int, _search("Translations per line, written `line ||| text ||| score`; one of a line that is split.", min=1)
    ] = 1,
    longest: Annotated[
        int, typer.Option(min=1, help="Most subwords of a line that is translated whole, not split at sentence ends.")
    ] = LONGEST,
    split: Annotated[Split, typer.Option(help="Split into sentences: long lines, or all.")] = "long",
    json: Annotated[bool, typer.Option("--json", help="Write JSON lines: translations, scores, attention.")] = False,
    device: Annotated[Literal["cpu", "cuda"] | None, typer.Option(help="By default a GPU where there is one.")] = None,
    precision: Annotated[Precision | None, typer.Option(help="Of weights and arithmetic; float32 by default.")] = None,
    quantization: Annotated[Literal["int8"] | None, typer.Option(help="8-bit: faster on a CPU, less exact.")] = None,
    batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Source positions per batch, all beams counted; 4096, on a GPU 32768.")
    ] = None,
    window: Annotated[int, typer.Option(min=1, help="Lines sorted by length together; 1: line by line.")] = WINDOW,
) -> None:
    """Translate raw text with a model folder, or with several as an ensemble.

    Each input line gives one output line; an empty line stays empty. At a terminal it answers line by line.

    \b
    Example:
      wmt translate models/average --input in.en --output out.de
      wmt translate models/average --json --nbest 4 < in.en
      wmt translate models/a models/b < in.en
    """
    fields = dict(locals())  # The parameters have the names of the options' fields, but for one.
    options = TranslationOptions(command=str(fields.pop("context").info_name), **fields)
    from nmt.deployment import streams

    streams.translate(options)


@app.command(rich_help_panel="Models")
def score(
    model: Model,
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="Raw lines.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="Their translations, detokenised.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, then one for all lines.")] = False,
) -> None:
    """Score given translations: log-probability in nats and perplexity per subword, EOS counted, one line each.

    `wmt translate --json` has the same log-probability of its own translations, unless their text splits into other
    subwords.

    \b
    Example:
      wmt score models/average in.en out.de
    """
    from nmt.evaluation import forced_scoring
    from nmt.inference.loading import LoadedModel
    from nmt.text.parallel_text import parallel

    def written(scored: forced_scoring.Scored, **more: int) -> str:
        return json_format.dumps({**more, **asdict(scored), "perplexity": scored.perplexity})

    lines, total = 0, forced_scoring.Scored(0.0, 0)
    for scored in forced_scoring.score_lines(LoadedModel(model), parallel(source, target)):
        lines, total = lines + 1, total + scored
        print(written(scored) if as_json else f"{scored.log_probability:.4f}\t{scored.perplexity:.4f}")
    if as_json:
        print(written(total, lines=lines))
    else:
        print(f"{lines:,} lines, {total.tokens:,} subwords: perplexity {total.perplexity:.4f}", file=sys.stderr)


@app.command(rich_help_panel="Models")
def evalb(
    gold: Annotated[Path, typer.Argument(metavar="GOLD", help="Gold trees, one a line.")],
    parsed: Annotated[Path, typer.Argument(metavar="PARSED", help="A tree for each line.")],
    gold_tags: Annotated[bool, typer.Option("--gold-tags", help="Take GOLD's tags, as the pipeline does.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="An object.")] = False,
) -> None:
    """Score constituency trees as EVALB does with COLLINS.prm: labelled F1 and others, by sentence length too.

    \b
    Example:
      wmt evalb gold.mrg parsed.mrg
    """
    from nmt.parsing import evalb as scoring

    report = scoring.report(gold, parsed, gold_tags)
    print(json_format.dumps(report, indent=2, ensure_ascii=False) if as_json else scoring.text(report))


@app.command(rich_help_panel="Models")
def bleu(
    texts: Annotated[
        list[Path],
        typer.Argument(
            metavar="HYP... REF",
            help="Detokenised translations, of several systems the baseline first; then one reference per line.",
        ),
    ],
    lang: Annotated[str, typer.Option(help="The target language's code, which chooses sacreBLEU's tokenizer.")],
    tokenize: Annotated[
        str | None, typer.Option(help="sacreBLEU's tokenizer: 13a, intl, char, flores200 (fetches a file), ...")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="Score in lower case; on Moses tokens, too, as others report Multi30k.")
    ] = False,
    ter: Annotated[bool, typer.Option("--ter", help="TER too: seconds for 1,000 lines.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="An object, or a list for several systems.")] = False,
) -> None:
    """Score translations: sacreBLEU with its signature, chrF and, of languages of Moses, the paper's own way by steps.

    Several systems are compared with the first by paired bootstrap resampling.

    \b
    Example:
      wmt bleu out.de ref.de --lang de
      wmt bleu base.de other.de ref.de --lang de --json
    """
    from nmt.evaluation import bleu as scoring

    *hypotheses, reference = texts
    if not hypotheses:
        raise typer.BadParameter("REF is missing: give translations, then their references", param_hint="HYP... REF")
    reports = scoring.score_systems(hypotheses, reference, lang, tokenize, lowercase=lowercase, with_ter=ter)
    if as_json:
        # Sums of floating-point numbers: 100.00000000000004.
        rounded = json_format.loads(json_format.dumps(reports), parse_float=lambda text: round(float(text), 9))
        print(json_format.dumps(rounded if len(rounded) > 1 else rounded[0], indent=2, ensure_ascii=False))
    else:
        print("\n".join(map(scoring.format_report, reports)))


@app.command(rich_help_panel="Models")
def attention(
    model: Model,
    source: Annotated[str, typer.Option(help="A raw sentence.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="The folder to write.")],
    target: Annotated[str | None, typer.Option(help="Its translation; the model's own by default.")] = None,
) -> None:
    """Write a pair of sentences' attention: of all layers and heads as arrays, of the clearest layers as pictures.

    The pictures are in the manner of the paper's figures 3 to 5.

    \b
    Example:
      wmt attention models/average --source "She sees a dog." --output looked
    """
    if output.exists():
        raise typer.BadParameter(f"{output} exists: give a new folder", param_hint="--output")
    from nmt.inference import attention_maps

    attention_maps.write_attention(model, source, target, output)


@app.command(rich_help_panel="Models")
def export(
    model: Model,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write; of argos, a file.")],
    to: Annotated[
        Literal["ctranslate2", "transformers", "argos", "nmt"],
        typer.Option(help="argos: for Argos Translate and LibreTranslate. nmt: a model folder, for wmt itself."),
    ] = "ctranslate2",
    dtype: Annotated[
        Quantization,
        typer.Option("--dtype", "--quantization", help="Of the weights. The first three are CTranslate2's alone."),
    ] = "float32",
) -> None:
    """Make a CTranslate2 model, a folder for Hugging Face's transformers, an Argos package, or a smaller model folder.

    CTranslate2's own Translator opens the first, AutoModelForSeq2SeqLM the second, `wmt translate` the last; `argospm
    install` takes the package, of models on raw word pieces.

    \b
    Example:
      wmt export models/average exported --dtype int8
      wmt export models/average hub --to transformers
      wmt export models/average en_cs.argosmodel --to argos --dtype int8
      wmt export models/average half --to nmt --dtype bfloat16
    """
    if out.exists():
        raise typer.BadParameter(f"{out} exists and will not be replaced: name another path", param_hint="OUT")
    from nmt import codec
    from nmt.deployment import argos, transformers_export
    from nmt.deployment import export as exporting
    from nmt.inference import model_folder

    if to == "ctranslate2":
        exporting.export(model, out, dtype)
    elif to == "transformers":
        transformers_export.export(model, out, dtype, _run_of(model))
    elif to == "argos":
        argos.export(model, out, dtype, _run_of(model))
    else:
        model_folder.load_description(model)
        codec.load(model / "subwords")  # `convert` copies them as they are.
        model_folder.convert(model, out, dtype)


def _run_of(model: Path) -> dict[str, Any] | None:
    """Return the scores, licences and certificate of the run that made `model`.

    They are in results/ beside models/, if the certificate there is of these weights and these scores, else unknown.
    """
    from nmt.common.tensors import WEIGHTS

    root = model.resolve().parent.parent
    certificate = certificate_of(root, {AVERAGE / WEIGHTS: model / WEIGHTS, SCORES: root / SCORES})
    if certificate is None:
        return None
    licences = dict.fromkeys(archive["licence"] for archive in certificate["settings"]["data"]["archives"])
    return {**read_json(root / SCORES), "licences": list(licences), "certificate": certificate["seal"]}
