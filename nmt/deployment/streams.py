"""Translate raw text with a model folder: standard input, files or lines typed at a terminal; `wmt translate`.

Each line gives one line, and an empty line stays empty; with n-best lists a line gives several, with --json an object.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from nmt.config import InputError, first_error
from nmt.deployment.resumable_output import Partial, fingerprint
from nmt.inference.alignment import alignment
from nmt.inference.loading import Models
from nmt.inference.options import TranslationOptions
from nmt.inference.quantization import quantize
from nmt.inference.sampling import SamplingSettings
from nmt.inference.translator import Engine, TorchEngine, Translation, Translator
from nmt.text.parallel_text import read_stream


def translate(options: TranslationOptions) -> None:
    """Translate a text, or lines typed at a terminal. Raises InputError for wrong options, models or text."""
    translator = open_translator(options)
    if options.output is not None:
        try:
            _translate_to_file(translator, options, options.output)
        except OSError as error:
            # The error of a failed write names no file.
            error.filename = error.filename or str(options.output)
            raise
    elif options.input is None and sys.stdin.isatty():
        _converse(translator, options)
    else:
        with _lines(options.input) as lines:
            for number, translation in enumerate(_translations(translator, options, lines, 0), start=1):
                sys.stdout.write(format_output(translator, translation, number, options))
                if options.window == 1:
                    sys.stdout.flush()  # Another program may wait for this line before it sends the next one.
    if counts := dict(translator.models.target.counts()):
        print(f"{options.command}: {_repaired(counts)}", file=sys.stderr)


def _repaired(counts: dict[str, int]) -> str:
    """Return how many trees were repaired, and each repair's number of times."""
    trees, malformed = counts.pop("trees"), counts.pop("malformed trees", 0)
    kinds = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{malformed:,} of {trees:,} trees had to be repaired{f': {kinds}' if kinds else ''}"


def open_translator(options: TranslationOptions) -> Translator:
    """Return the translator for these options; raise InputError if they contradict each other or the model."""
    for name in ("nbest", "longest", "batch_tokens", "window"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(options, name)}: give at least 1")
    if options.resume and options.output is None:
        raise InputError("--resume continues a file: give --output too")
    pair = tuple(options.pair.split("-")) if options.pair else None
    if pair is not None and len(pair) != 2:
        raise InputError(f"--pair is `{options.pair}`: write it as en-de")
    device = _device(options.device) if options.device else None
    folders, weights = [options.model, *options.ensemble], options.engine == "torch"
    if options.quantization and not weights:
        raise InputError("a CTranslate2 model is quantized by wmt export: leave out --quantization")
    if not weights and (options.precision != "float32" or options.stop):
        raise InputError(
            "the engine ctranslate2 has no --precision and no --stop: leave them out, or use --engine torch"
        )
    models = Models(folders, device, options.precision, pair, weights=weights)
    if options.quantization:
        for model in models.members:
            quantize(model)
    given = {key: getattr(options, key) for key in ("beam", "alpha", "max_extra", "stop")}
    settings = models.description.search.changed({key: value for key, value in given.items() if value is not None})
    if not options.sample and options.nbest > settings.beam:
        raise InputError(f"--nbest is {options.nbest}, and the beam {settings.beam}: raise --beam to it")
    engine = _engine(options, models)
    split = None if options.long is None else options.long == "split"
    return Translator(models, None, settings, engine, options.longest, split=split)


def _device(name: str) -> torch.device:
    """Return a device on which torch can make a tensor; raises InputError where it cannot."""
    try:
        made = torch.empty(0, device=name)
        made.cpu()  # A tensor on the device `meta` has no values to copy.
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"--device is `{name}`, which torch cannot use here: give cpu, or cuda with a GPU") from error
    return made.device


def _engine(options: TranslationOptions, models: Models) -> Engine:
    if options.engine == "torch":
        return TorchEngine(models, _sampling(options) if options.sample else None)
    if options.sample or options.ensemble:
        raise InputError("the engine ctranslate2 has no --sample and no --ensemble: use --engine torch")
    from nmt.deployment.ctranslate2_engine import NOTE, CTranslate2Engine

    engine = CTranslate2Engine(options.model, models)
    print(f"{options.command}: {NOTE}", file=sys.stderr)
    return engine


def _sampling(options: TranslationOptions) -> SamplingSettings:
    try:
        return SamplingSettings(seed=options.seed, temperature=options.temperature, top_k=options.top_k)
    except ValidationError as error:
        name, value, rule = first_error(error)
        raise InputError(f"--{name.replace('_', '-')} is {value!r}, but {rule}: change it") from error


def format_output(translator: Translator, translation: Translation, number: int, options: TranslationOptions) -> str:
    """Return the output for a line, with its \\n."""
    if options.json:
        return json.dumps(_json_object(translator, translation, number), ensure_ascii=False) + "\n"
    if options.nbest == 1:
        return translation.texts[0] + "\n"
    scored = zip(translation.texts, translation.hypotheses, strict=False)
    lines = [f"{number} ||| {text} ||| {found.score:.6f}\n" for text, found in scored]
    return "".join(lines) or f"{number} |||  ||| 0.000000\n"


def _json_object(translator: Translator, translation: Translation, number: int) -> dict[str, Any]:
    """Return a line's translations for --json: scores, subwords, repairs, attention."""
    names = translator.models.target_subwords.symbols
    found: list[dict[str, Any]] = []
    for text, one in zip(translation.texts, translation.hypotheses, strict=False):
        scores = {"score": one.score, "log_probability": one.log_probability}
        found.append({"text": text, **scores, "subwords": names(one.ids)})
        if (repairs := translator.repairs(one.ids, translation.pieces[0])) is not None:
            found[-1]["repairs"] = dict(repairs)
    fields: dict[str, Any] = {"line": number, "source": translation.source, "translations": found}
    if len(translation.pieces) > 1:
        fields["sentences"] = len(translation.pieces)
    elif translation.pieces and translator.models.members:
        ids = translation.pieces[0].ids
        weights = alignment(translator.models.members, ids, translation.hypotheses[0].ids).tolist()
        fields |= {
            "source_subwords": translator.models.subwords.symbols(ids),
            "attention": [[round(w, 4) for w in row] for row in weights],
        }
    return fields


def _translate_to_file(translator: Translator, options: TranslationOptions, output: Path) -> None:
    partial = Partial(output, fingerprint(asdict(options), translator.models.folders))
    with _lines(options.input) as lines:
        done = partial.begin(lines, resume=options.resume)
        with closing(partial):
            for number, translation in enumerate(_translations(translator, options, lines, done), start=done + 1):
                partial.write(translation.source, format_output(translator, translation, number, options))
            partial.finish()


@contextmanager
def _lines(path: Path | None) -> Iterator[Iterator[str]]:
    """Open the lines of a file, or of standard input."""
    with path.open("rb") if path is not None else nullcontext(sys.stdin.buffer) as stream:
        yield read_stream(stream, str(path or "standard input"))


def _translations(
    translator: Translator, options: TranslationOptions, lines: Iterator[str], done: int
) -> Iterator[Translation]:
    """Yield the translations of lines, of which `done` came before."""
    return translator.translations(_counted(lines, done), options.nbest, options.batch_tokens, options.window, done)


def _counted(lines: Iterator[str], done: int) -> Iterator[str]:
    """Yield the lines; display at a terminal how many have been read."""
    if not sys.stderr.isatty():
        yield from lines
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("lines read"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("lines", total=None, completed=done)
        for line in lines:
            progress.advance(task)
            yield line


def _converse(translator: Translator, options: TranslationOptions) -> None:
    """Translate lines typed at a terminal until end of file."""
    print(f"{translator.description.source} > {translator.description.target}; end with Ctrl-D", file=sys.stderr)
    for number in itertools.count():
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        try:
            for translation in translator.translations([line], options.nbest, options.batch_tokens, 1, number):
                sys.stdout.write(format_output(translator, translation, number + 1, options))
        except InputError as error:
            print(f"{options.command}: {error}", file=sys.stderr)
