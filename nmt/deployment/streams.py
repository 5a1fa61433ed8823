"""Translate raw text with model folders: standard input, files or lines typed at a terminal; `wmt translate`.

Each line gives one line, and an empty line stays empty; with n-best lists a line gives several, with --json an object.
"""

import json
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from nmt.common.files import output_file, writing
from nmt.errors import InputError, tell
from nmt.inference.loading import LoadedModel
from nmt.inference.options import TranslationOptions
from nmt.inference.quantization import quantize
from nmt.inference.search import Hypothesis
from nmt.inference.translator import Translation, Translator
from nmt.text import words
from nmt.text.parallel_text import composed, read_lines, read_stream
from nmt.text.sentences import split_sentences

NAMED = 8  # words that the training text does not have, at the end of a translation


def translate(options: TranslationOptions) -> None:
    """Translate a text, or lines typed at a terminal. Raises InputError for wrong options, models or text."""
    if options.input is None and sys.stdin is None:
        raise InputError("there is no standard input: give --input")
    inputs = (options.input or Path("/dev/stdin"), *options.models)
    output = output_file(options.output, *inputs) if options.output else None
    if output and options.input and options.input.is_file():
        deque(read_lines(options.input), 0)  # A byte that is not UTF-8 is told before hours of work are lost.
    translator = open_translator(options)
    if output is not None:
        try:
            with writing(output) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(_outputs(translator, options))
        except OSError as error:
            # The error of a failed write names no file.
            error.filename = error.filename or str(options.output)
            raise
    else:
        if options.input is None and sys.stdin.isatty():
            tell(f"{options.command}: type lines; end with Ctrl-D")
            options = replace(options, window=1)
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as the input, whatever the locale
        # While its bar is shown, rich puts its own stream in sys.stdout's place, which writes to the terminal.
        stdout = None if sys.stdout.isatty() else sys.stdout
        for text in _outputs(translator, options):
            # Who reads it may wait for this line before the next one is sent.
            print(text, end="", file=stdout, flush=options.window == 1)
    if counts := dict(translator.repairs):
        trees, malformed = counts.pop("trees"), counts.pop("malformed trees", 0)
        kinds = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        ending = f": {kinds}" if kinds else ""
        tell(f"{options.command}: {malformed:,} of {trees:,} trees had to be repaired{ending}")
    if skipped := translator.skipped:
        raise InputError(f"lines left empty: {len(skipped):,}; the first: {skipped[0]}")


def open_translator(options: TranslationOptions) -> Translator:
    """Return the translator for these options; raise InputError if they contradict each other or the model."""
    device = torch.device(options.device) if options.device else None
    models = [LoadedModel(folder, device, options.precision or "float32") for folder in options.models]
    model = models[0]
    if options.command == "parse" and not model.writes_trees:
        raise InputError(f"{model.folder} writes {model.description.target}, not trees: use wmt translate")
    if options.quantization:
        for loaded in models:
            quantize(loaded.transformer)
    names = ("beam", "alpha", "max_extra", "stop")
    given = {name: value for name in names if (value := getattr(options, name)) is not None}
    settings = model.description.search.changed(given)
    if options.nbest > settings.beam:
        raise InputError(f"--nbest is {options.nbest}, and the beam {settings.beam}: raise --beam to it")
    translator = Translator(models, None, settings, longest=options.longest, split=options.split)
    translator.skipped = []
    return translator


def _outputs(translator: Translator, options: TranslationOptions) -> Iterator[str]:
    from rich.console import Console
    from rich.progress import track

    with options.input.open("rb") if options.input else nullcontext(sys.stdin.buffer) as stream:
        name = str(options.input or "standard input")
        lines = read_stream(stream, name)
        lines = lines if translator.description.tokenizer.compose else composed(lines, name)
        if sys.stderr.isatty() and options.window > 1:
            lines = iter(track(lines, "reading lines", console=Console(stderr=True), transient=True))
        translations = translator.translations(lines, options.nbest, options.batch_tokens, options.window)
        joined, unseen = 0, dict[str, None]()
        seen = words.load(folder / "subwords" for folder in options.models)
        for number, translation in enumerate(translations, start=1):
            if options.split == "long" and len(translation.pieces) == 1 and not translator.model.writes_trees:
                joined += len(split_sentences(translation.source, translator.description.source)) > 1
            if seen is not None and translation.pieces and len(unseen) < words.MOST:
                unseen |= dict.fromkeys(words.unseen(translator.model.source.tokenize(translation.source), seen))
            yield format_output(translator, translation, number, options)
        if joined:
            tell(
                f"{options.command}: {joined:,} {'line has' if joined == 1 else 'lines have'} several sentences, of "
                "which a model may translate the first alone: give --split sentences"
            )
        if seen is not None and unseen:
            known = "in" if len(seen) < words.MOST else f"among the {words.MOST:,} most frequent words of"
            are, them = ("word is", "it") if len(unseen) == 1 else ("different words are", "them")
            least = "at least " if len(unseen) >= words.MOST else ""
            first = (word[:60] for word in islice(unseen, NAMED))
            named = ", ".join([*first, *(["..."] if len(unseen) > NAMED else [])])
            guessed = f"{least}{len(unseen):,} {are} not {known} the training text, so the model guesses {them}"
            tell(f"{options.command}: {guessed}: {named}")


def format_output(translator: Translator, translation: Translation, number: int, options: TranslationOptions) -> str:
    """Return the output of line `number`, counted from 1: its translation, its n-best list or a JSON object."""
    if options.json:
        return json.dumps(_json_object(translator, translation, number), ensure_ascii=False) + "\n"
    if options.nbest == 1:
        return translation.texts[0] + "\n"
    scored = zip(translation.texts, translation.hypotheses, strict=False)
    lines = [f"{number} ||| {text} ||| {hypothesis.score:.6f}\n" for text, hypothesis in scored]
    return "".join(lines) or f"{number} ||| {translation.texts[0]} ||| 0.000000\n"


def _json_object(translator: Translator, translation: Translation, number: int) -> dict[str, Any]:
    """Return a line's translations for --json: scores, subwords, repairs, attention."""
    model = translator.model
    translations: list[dict[str, Any]] = []
    copied = [Hypothesis([], 0.0, 0.0)] if translation.texts[0] else []
    for text, one in zip(translation.texts, translation.hypotheses or copied, strict=False):
        scores = {"score": one.score, "log_probability": one.log_probability}
        translations.append({"text": text, **scores, "subwords": model.target_subwords.symbols(one.ids)})
    if model.writes_trees:
        for entry, repairs in zip(translations, translation.repairs, strict=True):
            entry["repairs"] = dict(repairs)
    fields: dict[str, Any] = {"line": number, "source": translation.source, "translations": translations}
    if len(translation.pieces) > 1:
        fields["sentences"] = len(translation.pieces)
    elif translation.pieces:
        ids = translation.pieces[0].ids
        weights = translator.alignment(tuple(ids), tuple(translation.hypotheses[0].ids)).tolist()
        fields["source_subwords"] = model.subwords.symbols(ids)
        fields["attention"] = [[round(w, 4) for w in row] for row in weights]
    return fields
