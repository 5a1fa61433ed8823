"""Converts a model folder to a package that Argos Translate and LibreTranslate install; `wmt export --to argos`.

They split sentences by a model of their own, and search with CTranslate2, whose search is not ours.
"""

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nmt.common.files import scratch_folder, write_json, writing
from nmt.deployment import export as ctranslate2_export
from nmt.errors import InputError
from nmt.inference.model_folder import load_description
from nmt.inference.options import Quantization
from nmt.task import task_in
from nmt.text import subwords
from nmt.text.scripts import NAMES, code

VERSION = "1.0"
_README = """# {from_name} to {to_name}

The Transformer of "Attention Is All You Need": row `{row}`, corpus `{corpus}`, seed {seed}, {weights}. {scores}

Install it with `argospm install FILE`. Its text is raw word pieces; translations are not those of `wmt translate` to
the letter: the search divides by another length, and Argos Translate writes a space for `_`.
"""


def export(
    folder: Path, out: Path, quantization: Quantization = "float32", run: Mapping[str, Any] | None = None
) -> None:
    """Write the package `out`, a zip; `run` as for the card of a model for transformers.

    Raises InputError for a model that does not read and write raw word pieces, and as the export to CTranslate2 does.
    """
    description, learned = load_description(folder), subwords.load(folder / "subwords").settings
    tokenizer = description.tokenizer
    changed = tokenizer.normalize_punctuation or tokenizer.compose
    if learned.kind != "wordpieces" or tokenizer.tokenizer != "none" or changed:
        raise InputError(
            f"{folder} has subwords `{learned.kind}` of text by the tokenizer `{tokenizer.tokenizer}`, and Argos "
            "Translate raw word pieces alone, not normalised or composed: train with subwords.kind wordpieces and "
            "preparation.tokenizer.tokenizer none, or export --to ctranslate2"
        )
    source, target = code(description.source), code(description.target)
    names = {f"{side}_name": NAMES.get(language, language) for side, language in (("from", source), ("to", target))}
    codes = {"from_code": source, "to_code": target}
    task = task_in(run or {})
    text = f"{task.title} {run[task.key]:.1f} on {run[f'{task.key}_set']}, by {task.program}." if run else ""
    with scratch_folder(out.with_name(f"{out.name}.folder")) as scratch:
        package = scratch / f"translate-{source}_{target}-{VERSION.replace('.', '_')}"
        package.mkdir()
        ctranslate2_export.export(folder, package / "model", quantization, ends_source=True)
        shutil.copyfile(folder / "subwords/wordpieces.model", package / "sentencepiece.model")
        write_json(package / "metadata.json", {"package_version": VERSION, "argos_version": "1.11", **codes, **names})
        origin = {key: description.origin.get(key, "unknown") for key in ("row", "corpus", "seed", "weights")}
        (package / "README.md").write_text(_README.format_map({**origin, **names, "scores": text}), encoding="utf-8")
        with writing(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(package.rglob("*")):
                archive.write(path, path.relative_to(scratch))
