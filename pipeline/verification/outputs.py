"""The checks of what a model gave: translations, made again, and their score, computed again."""

from __future__ import annotations

import tempfile
from itertools import zip_longest
from pathlib import Path

from nmt.config import SearchSettings
from nmt.evaluation import bleu, evalb
from nmt.text.parallel_text import read_lines
from pipeline.common import paths
from pipeline.common.stage import read_json
from pipeline.stages import certify, decode
from pipeline.verification.certificate import Finding, Subject, hashes


def names(subject: Subject, role: str) -> tuple[str, str]:
    """Return the name of the set of a role, and that of the file of its references."""
    reference = next(name for name in subject.certificate["references"] if name.startswith(f"{role}."))
    return reference.removeprefix(f"{role}.").rpartition(".")[0], reference


def translations(subject: Subject, again: bool) -> Finding:
    """Compare the translations with the certificate; where models and sources are here and `again`, translate again."""
    files, step = subject.files, "translations"
    folder = files.results / paths.TRANSLATIONS.name
    found = hashes(step, subject.certificate["translations"], folder, "*")
    if found.status != "equal" or not again:
        return found
    done, left = [], []
    for role, model in (("valid", files.last), ("test", files.average)):
        name, reference = names(subject, role)
        target = reference.rpartition(".")[2]
        source = paths.RAW / f"{role}.{name}.{subject.certificate['run']['pair'].split('-')[0]}"
        translated = folder / f"{name}.{paths.LAST.name if role == 'valid' else paths.AVERAGE.name}.{target}"
        if not source.exists() or not model.exists() or not subject.has_corpus():
            left.append(name)
            continue
        if (other := other_line(subject, model, source, translated)) is not None:
            return Finding(step, "differs", other)
        done.append(name)
    if not done:
        return found
    return Finding(step, "recomputed", " and ".join([*done, *(f"{name} (by its hash alone)" for name in left)]))


def other_line(subject: Subject, model: Path, source: Path, translated: Path) -> str | None:
    """Translate a set again; return a sentence on the first line that differs, None where all are equal."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / translated.name
        decode.translate(model, SearchSettings.model_validate(subject.certificate["search"]), source, out)
        lines = enumerate(zip_longest(read_lines(translated), read_lines(out)), start=1)
        changed = [number for number, (there, here) in lines if there != here]
    if not changed:
        return None
    return f"{translated}: {model} translates {len(changed):,} lines otherwise, the first is line {changed[0]:,}"


def score(subject: Subject) -> Finding:
    """Compare the recorded scores with the certificate, and score the test set's translations again."""
    recorded = subject.certificate["score"]
    key = next(iter(recorded))
    for path in (subject.files.results / paths.SCORES.name, subject.files.results / paths.METRICS.name):
        here = read_json(path) if path.exists() else {}
        for name in recorded.keys() & here.keys():
            if here[name] != recorded[name]:
                found = f"{path}: {name} is {here[name]}, the certificate has {recorded[name]}"
                return Finding("score", "differs", found)
    name, reference = names(subject, "test")
    target = reference.rpartition(".")[2]
    translated = subject.files.results / paths.TRANSLATIONS.name / f"{name}.{paths.AVERAGE.name}.{target}"
    if not subject.has_corpus():
        return Finding("score", "not here", f"{paths.RAW} is another run's")
    if missing := [path for path in (translated, paths.RAW / reference) if not path.exists()]:
        return Finding("score", "not here", f"{missing[0]} is missing")
    if certify.hashes([paths.RAW / reference])[reference] != subject.certificate["references"][reference]:
        return Finding("score", "differs", f"{paths.RAW / reference} is not the run's reference")
    if key == "f1":
        scores = evalb.read(paths.RAW / reference, translated, gold_tags=True)
        value, signature = scores.total.f1, scores.signature
    else:
        value, signature = bleu.sacrebleu(bleu.read_lines(translated), bleu.read_lines(paths.RAW / reference))
    if (value, signature) != (recorded[key], recorded[f"{key}_signature"]):
        there = f"{key} was recorded as {recorded[key]} ({recorded[f'{key}_signature']})"
        return Finding("score", "differs", f"{there}, but the translations have {value} ({signature})")
    return Finding("score", "recomputed", f"{key} {value:.2f} on {recorded[f'{key}_set']}, {signature}")
