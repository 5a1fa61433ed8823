"""Write the average model's attention for a pair of the validation set: arrays, and pictures for the report."""

from __future__ import annotations

from pathlib import Path

from nmt.config import InputError
from pipeline.common import stage
from pipeline.common.paths import ATTENTION, AVERAGE, RAW
from pipeline.common.settings import DataSettings, VersionSettings, load_section

WORDS = range(6, 16)
"""Numbers of words of a source that a picture can show."""


def choose_pair(source: Path, target: Path) -> tuple[str, str]:
    """Return the first pair whose source has 6 to 15 words, else the first whose source has text.

    Raises InputError where no source line has text.
    """
    from nmt.text.parallel_text import parallel

    first = None
    for ours, theirs in parallel(source, target):
        if len(ours.split()) in WORDS and theirs.strip():
            return ours, theirs
        first = first or ((ours, theirs) if ours.strip() else None)
    if first is None:
        raise InputError(f"{source} has no line with text: give a validation set that has")
    return first


def run(tracker: stage.Tracker) -> None:
    """Write results/attention: attention.npz, and pictures in the manner of the paper's figures 3 to 5."""
    # Imported here: importing torch takes a second.
    from nmt.inference import attention_maps
    from nmt.inference.loading import Models

    data = load_section("data", DataSettings)
    versions = load_section("versions", VersionSettings)
    stage.check_versions(
        {
            "sacremoses": versions.sacremoses,
            "subword_nmt": versions.subword_nmt,
            "sentencepiece": versions.sentencepiece,
        }
    )
    names = [RAW / f"valid.{data.valid.name}.{language}" for language in (data.source, data.target)]
    models = Models([AVERAGE], pair=(data.source, data.target))
    attention_maps.save(attention_maps.attention(models, *choose_pair(*names)), ATTENTION)
