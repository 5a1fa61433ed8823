"""Translate raw text with a model folder alone: `wmt translate MODEL_DIR < text`.

A line in, a line out; an empty line stays one. At a terminal it asks for lines.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from nmt.config import InputError
from nmt.inference.loading import PRECISIONS, Models
from nmt.inference.resumable_output import Partial, fingerprint
from nmt.inference.sampling import SamplingSettings
from nmt.inference.translator import LONGEST, WINDOW, Engine, TorchEngine, Translation, Translator, read_input


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parse = argparse.ArgumentParser(prog="wmt translate", description=__doc__)
    parse.add_argument("model", type=Path, metavar="MODEL_DIR", help="a model folder, such as models/average")
    parse.add_argument(
        "--ensemble",
        nargs="+",
        type=Path,
        default=[],
        metavar="MODEL_DIR",
        help="more models of the same vocabulary: the mean of their probabilities",
    )
    parse.add_argument("--pair", help="refuse a model of another pair: en-de, ...")
    parse.add_argument("--input", type=Path, metavar="FILE", help="lines to translate, instead of standard input")
    parse.add_argument("--output", type=Path, metavar="FILE", help="appears when it is whole")
    parse.add_argument("--resume", action="store_true", help="go on with an --output that was interrupted")
    search = parse.add_argument_group("search; by default as the model folder says")
    search.add_argument("--beam", type=int, help="hypotheses a sentence; 1: greedy")
    search.add_argument("--alpha", type=float, help="length penalty")
    search.add_argument("--max-extra", type=int, dest="max_extra", help="subwords beyond the source's")
    search.add_argument("--stop", help="exact, or tensor2tensor's looser rule")
    search.add_argument("--nbest", type=int, default=1, help="translations a line, written `line ||| text ||| score`")
    search.add_argument("--sample", action="store_true", help="draw translations at random instead of searching")
    search.add_argument("--temperature", type=float, default=1.0, help="of --sample")
    search.add_argument("--top-k", type=int, default=0, dest="top_k", help="of --sample: among the likeliest alone")
    search.add_argument("--seed", type=int, default=1, help="of --sample")
    parse.add_argument("--longest", type=int, default=LONGEST, help="subwords of a line that is translated whole")
    parse.add_argument(
        "--long",
        choices=("split", "refuse"),
        default="split",
        help="longer lines: their sentences one by one, or a refusal",
    )
    parse.add_argument("--json", action="store_true", help="a JSON object a line: translations, scores, attention")
    parse.add_argument(
        "--engine",
        choices=("torch", "ctranslate2"),
        default="torch",
        help="ctranslate2: with a folder made by wmt export; its penalty is not GNMT's",
    )
    parse.add_argument("--device", help="cpu, cuda; by default a GPU where there is one")
    parse.add_argument("--precision", choices=sorted(PRECISIONS), default="float32")
    parse.add_argument(
        "--batch-tokens",
        type=int,
        default=4096,
        dest="batch_tokens",
        help="source positions a batch, all beams counted: memory goes with it",
    )
    parse.add_argument("--window", type=int, default=WINDOW, help="lines sorted by length together; 1: line by line")
    return parse


def translator(options: argparse.Namespace) -> Translator:
    """What the command line asks for; raises InputError or ValueError where it cannot be had."""
    for name in ("nbest", "longest", "batch_tokens", "window"):
        if getattr(options, name) < 1:
            raise InputError(f"--{name.replace('_', '-')} is {getattr(options, name)}: give at least 1")
    if options.resume and options.output is None:
        raise InputError("--resume goes on with a file: give --output too")
    pair = tuple(options.pair.split("-")) if options.pair else None
    if pair is not None and len(pair) != 2:
        raise InputError(f"--pair is `{options.pair}`: write it as en-de")
    native = options.engine == "torch"
    device = torch.device(options.device) if options.device else None
    models = Models([options.model, *options.ensemble], device, options.precision, pair, weights=native)
    asked = {key: getattr(options, key) for key in ("beam", "alpha", "max_extra", "stop")}
    changes = {key: value for key, value in asked.items() if value is not None}
    settings = models.description.search.changed(changes)
    if not options.sample and options.nbest > settings.beam:
        raise InputError(f"--nbest is {options.nbest}, and the beam {settings.beam}: raise --beam to it")
    engine = _engine(options, models)
    return Translator(models, None, settings, engine, options.longest, split=options.long == "split")


def _engine(options: argparse.Namespace, models: Models) -> Engine:
    if options.engine == "torch":
        drawn = {"seed": options.seed, "temperature": options.temperature, "top_k": options.top_k}
        return TorchEngine(models, SamplingSettings.model_validate(drawn) if options.sample else None)
    if options.sample or options.ensemble:
        raise InputError("--sample and --ensemble are of our own engine: use --engine torch")
    from nmt.inference.ctranslate2_engine import NOTE, CTranslate2Engine

    engine = CTranslate2Engine(options.model, models)
    print(f"translate: {NOTE}", file=sys.stderr)
    return engine


def record(ready: Translator, translation: Translation, number: int, options: argparse.Namespace) -> str:
    """What is written for a line, with its \\n."""
    if options.json:
        return json.dumps(_object(ready, translation, number), ensure_ascii=False) + "\n"
    if options.nbest == 1:
        return translation.texts[0] + "\n"
    scored = zip(translation.texts, translation.hypotheses, strict=False)
    lines = [f"{number} ||| {text} ||| {found.score:.6f}\n" for text, found in scored]
    return "".join(lines) or f"{number} |||  ||| 0.000000\n"


def _object(ready: Translator, translation: Translation, number: int) -> dict[str, Any]:
    names = ready.models.subwords.symbols
    found = [
        {
            "text": text,
            "score": hypothesis.score,
            "log_probability": hypothesis.log_probability,
            "subwords": names(hypothesis.ids),
        }
        for text, hypothesis in zip(translation.texts, translation.hypotheses, strict=False)
    ]
    whole: dict[str, Any] = {"line": number, "source": translation.source, "translations": found}
    if len(translation.pieces) > 1:
        whole["sentences"] = len(translation.pieces)
    elif translation.pieces and ready.models.members:
        from nmt.inference.attention_maps import alignment

        ids = translation.pieces[0].ids
        weights = alignment(ready.models.members, ids, translation.hypotheses[0].ids)
        whole |= {"source_subwords": names(ids), "attention": [[round(w, 4) for w in row] for row in weights.tolist()]}
    return whole


def run(ready: Translator, options: argparse.Namespace) -> None:
    """Translate a stream, from where an interrupted output ends."""
    if options.output is None:
        for text in _records(ready, options, 0):
            sys.stdout.write(text)
        sys.stdout.flush()
        return
    partial = Partial(options.output, fingerprint(vars(options), ready.models.folders, options.input))
    done = partial.begin(resume=options.resume)
    try:
        for number, text in enumerate(_records(ready, options, done), start=done + 1):
            partial.write(text)
            partial.line(number)
        partial.finish()
    finally:
        partial.close()


def _records(ready: Translator, options: argparse.Namespace, done: int) -> Iterator[str]:
    """What is written for each line after the first `done`."""
    with options.input.open("rb") if options.input is not None else nullcontext(sys.stdin.buffer) as stream:
        lines = itertools.islice(read_input(stream, str(options.input or "standard input")), done, None)
        found = ready.translations(_counted(lines, done), options.nbest, options.batch_tokens, options.window, done)
        for number, translation in enumerate(found, start=done + 1):
            yield record(ready, translation, number, options)


def _counted(lines: Iterator[str], done: int) -> Iterator[str]:
    """The lines as they are; at a terminal how many have been read is shown."""
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


def converse(ready: Translator, options: argparse.Namespace) -> None:
    """Ask for lines at a terminal until it says that there are no more."""
    print(f"{ready.description.source} > {ready.description.target}; end with Ctrl-D", file=sys.stderr)
    number = 0
    while True:
        try:
            line = input("> ")
        except EOFError:
            print()
            return
        try:
            for translation in ready.translations([line], options.nbest, options.batch_tokens, 1, number):
                sys.stdout.write(record(ready, translation, number + 1, options))
        except InputError as error:
            print(f"translate: {error}", file=sys.stderr)
        number += 1


def main(arguments: list[str] | None = None) -> int:
    """Translate; returns the exit status."""
    options = parser().parse_args(arguments)
    try:
        ready = translator(options)
        if options.input is None and options.output is None and sys.stdin.isatty():
            converse(ready, options)
        else:
            run(ready, options)
    except BrokenPipeError:
        # The reader has had enough; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        print(f"translate: {error.filename or options.output}: {error.strerror}", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"translate: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
