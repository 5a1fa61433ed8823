"""Write the average model's attention for a pair of the validation set: arrays, and pictures for the report."""

from __future__ import annotations

from pathlib import Path

from nmt.config import InputError
from pipeline import stage
from pipeline.config.settings import DataSettings, load_section

RAW = Path("data/raw")
MODEL = Path("models/average")
ATTENTION = Path("results/attention")

WORDS = range(6, 16)
"""Numbers of words of a source that a picture can show."""


def pair(source: Path, target: Path) -> tuple[str, str]:
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
    # Imported here because torch takes a second to import.
    from nmt.inference import attention_maps
    from nmt.inference.loading import Models

    data = load_section("data", DataSettings)
    names = [RAW / f"valid.{data.valid.name}.{language}" for language in (data.source, data.target)]
    models = Models([MODEL], pair=(data.source, data.target))
    attention_maps.save(attention_maps.attention(models, *pair(*names)), ATTENTION)
