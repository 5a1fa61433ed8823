"""A model folder as data for the page, which translates or parses with it: 8-bit weights, subwords, tokenizers."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nmt import codec
from nmt.inference.options import LONGEST
from nmt.task import task_of
from nmt.text import scripts, words
from nmt.text.moses import Rules, normalizing
from nmt.text.sentences import SENTENCE_END, abbreviations
from nmt.text.settings import TokenizerSettings
from nmt.text.subwords import BytePairs, Subwords, WordPieces
from pipeline.config.paths import FIGURES
from pipeline.report.page import Block, Paragraph, View

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 25_000_000  # bytes of 8-bit weights that a page may hold; those of a larger model are in a file beside it
STEPS = 127  # a row's largest weight in steps of its scale


def quantize(weights: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return a matrix as int8, and the scale of each row by which that is multiplied, float32."""
    matrix = weights.float().numpy()
    scales = (np.abs(matrix).max(axis=1) / STEPS).astype(np.float32)
    divisors = np.where(scales > 0, scales, 1)[:, None]
    return np.round(matrix / divisors).astype(np.int8), scales


def _pack(weights: Mapping[str, Tensor]) -> tuple[list[dict[str, Any]], bytes]:
    """Return the tensors' entries, and the data: a vector's float32 numbers, a matrix's scales, then its int8 numbers.

    An entry has name, shape and `at`: the byte at which its data begin, a multiple of 4.
    """
    tensors, data = [], bytearray()
    for name, tensor in sorted(weights.items()):
        tensors.append({"name": name, "shape": list(tensor.shape), "at": len(data)})
        if tensor.dim() == 2:
            steps, scales = quantize(tensor)
            data += scales.tobytes() + steps.tobytes()
            data += bytes(-len(data) % 4)
        else:
            data += tensor.float().numpy().tobytes()
    return tensors, bytes(data)


def _ranges(characters: Iterable[str]) -> list[list[int]]:
    """Return code points as closed ranges."""
    ranges: list[list[int]] = []
    for code in sorted(set(map(ord, characters))):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return ranges


def _in_javascript(rules: Rules) -> list[tuple[str, str]]:
    """Return rules as patterns and replacements of JavaScript, for lines that end in \\n."""
    patterns = (rule.pattern.replace(r"\s", r"[ \t\n\r\f\v]").replace(r"\!", "!") for rule, _ in rules)
    return [(pattern, re.sub(r"\\g<(\d)>", r"$\1", text)) for pattern, (_, text) in zip(patterns, rules, strict=True)]


def tokenizer_tables(language: str, settings: TokenizerSettings) -> dict[str, Any]:
    """Return what the page's tokenizer of `language` needs: classes of characters, abbreviations, rules.

    Parsers' sentences need none of them: their words are separated by spaces.
    """
    if settings.tokenizer not in ("moses", "none"):
        return {"tokenizer": settings.tokenizer}
    language = scripts.code(language)
    rules = _in_javascript(normalizing(language)) if settings.normalize_punctuation else []
    if settings.tokenizer == "none":
        return {"tokenizer": "none", "normalizing": rules, "compose": settings.compose}
    from sacremoses import MosesTokenizer

    moses = MosesTokenizer(language)
    names = {"alnum": "IsAlnum", "alpha": "IsAlpha", "number": "IsN", "lower": "IsLower"}
    return {
        "tokenizer": "moses",
        "language": language,
        "normalizing": rules,
        "compose": settings.compose,
        "aggressiveHyphens": settings.aggressive_hyphens,
        "classes": {name: _ranges(getattr(moses, attribute)) for name, attribute in names.items()},
        "prefixes": sorted(set(moses.NONBREAKING_PREFIXES)),
        "numericPrefixes": sorted(set(moses.NUMERIC_ONLY_PREFIXES)),
    }


def detokenizer_tables(language: str, settings: TokenizerSettings) -> dict[str, Any]:
    if settings.tokenizer != "moses":
        return {"tokenizer": settings.tokenizer}
    from sacremoses import MosesDetokenizer
    from sacremoses.util import CJKChars

    return {
        "tokenizer": "moses",
        "language": scripts.code(language),
        "classes": {"alpha": _ranges(MosesDetokenizer.IsAlpha), "currency": _ranges(MosesDetokenizer.IsSc)},
        "cjk": [] if scripts.code(language) == "ko" else CJKChars().ranges,
    }


def subword_tables(vocabulary: Subwords) -> dict[str, Any]:
    """Return what the page needs to encode and decode subwords; a closed vocabulary is only decoded."""
    tables = {"symbols": vocabulary.symbols(range(vocabulary.size)), "usedRows": vocabulary.used_rows}
    if isinstance(vocabulary, BytePairs):
        return {"kind": "bpe", "codes": [f"{first} {second}" for first, second in vocabulary.codes], **tables}
    if isinstance(vocabulary, WordPieces):
        whole = sorted(vocabulary.settings.user_defined_symbols, key=len, reverse=True)
        return {"kind": "wordpieces", "scores": vocabulary.scores(), "whole": whole, **tables}
    return tables


def section(folder: Path, examples: Sequence[str]) -> list[Block]:
    """Return the box in which one translates or parses; for a large model, also how to do so without the page.

    `examples` are sentences to begin with. Words that the training text does not have are marked.
    """
    # Imported here: importing torch takes a second.
    from nmt.common.tensors import WEIGHTS, load_tensors
    from nmt.inference.model_folder import load_description

    description = load_description(folder)
    task = task_of(description.target)
    by_command = f"At a terminal: wmt {task.verb} {folder}"
    weights = load_tensors(folder / WEIGHTS)
    model, longest = description.model, LONGEST
    if model.positions == "learned":
        longest = min(LONGEST, max(1, model.max_positions - description.search.max_extra - 1))
    tensors, blob = _pack(weights)
    source, target = codec.load(folder / "subwords")
    content = {
        "languages": [description.source, description.target],
        "settings": model.model_dump(include={"N", "h", "d_model", "d_k", "d_v", "position_layout"}),
        "tensors": tensors,
        "searching": description.search.model_dump(),
        "subwords": subword_tables(source),
        "targetSymbols": None if target is source else subword_tables(target),
        "tokenizer": tokenizer_tables(description.source, description.tokenizer),
        "detokenizer": detokenizer_tables(description.target, description.tokenizer),
        "longest": longest,
        "examples": list(examples),
        "seen": None if (seen := words.load([folder / "subwords"])) is None else sorted(seen),
        "most": words.MOST,
        "abbreviations": abbreviations(description.source),
        "sentenceEnd": SENTENCE_END.pattern.replace(r"\"", '"').replace(r"\w", r"[\p{L}\p{N}_]"),
        "between": "" if scripts.code(description.target) in scripts.SENTENCES_JOINED else " ",
    }
    view = View("translate", "translate", content, blob, fallback=[Paragraph(by_command)])
    if len(blob) <= LARGEST:
        return [view]
    served = f"mlflow models serve --env-manager local -m models:/wmt-{description.source}-{description.target}@best"
    why = f"Its 8-bit weights, {len(blob) / 1e6:,.0f} MB, are in a file beside this page"
    return [
        # By its hash: a comparison's copy of this page may lie beside another run's model.
        view._replace(beside=f"{FIGURES.name}/model-{hashlib.sha256(blob).hexdigest()[:8]}.js"),
        Paragraph(f"{why}. {by_command}; over HTTP: {served} -p 5001"),
    ]
