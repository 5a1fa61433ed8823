"""Write the average model's attention for pairs of the validation set: arrays for the page, pictures for Markdown."""

import heapq
from pathlib import Path

from nmt.common.files import writing
from nmt.errors import InputError
from nmt.inference import attention_maps
from nmt.inference.loading import LoadedModel
from nmt.text.parallel_text import is_blank, parallel
from nmt.text.scripts import tokens
from pipeline.config.corpora import DataSettings
from pipeline.config.paths import ATTENTION, AVERAGE, raw
from pipeline.config.sections import AttentionSettings, check_versions, load_section

WORDS = range(6, 16)  # numbers of words of a source that a picture can show
FIGURES = (
    (
        "It is in this spirit that a majority of American governments have passed new laws since 2009 making the "
        "registration or voting process more difficult."
    ),
    "The Law will never be perfect, but its application should be just - this is what we are missing, in my opinion.",
)
"""The sources of the paper's figures 3 to 5, which are in newstest2013."""


def choose_pairs(source: Path, target: Path, count: int, language: str) -> list[tuple[str, str]]:
    """Return at most `count` pairs of raw lines: the paper's sentences, sources of 6 to 15 words, then the shortest.

    Raises InputError where no source line has text.
    """

    def rank(pair: tuple[str, str]) -> tuple[int, int]:
        if pair[0].strip() in FIGURES:
            return FIGURES.index(pair[0].strip()), 0
        if len(tokens(pair[0], language)) in WORDS and not is_blank(pair[1]):
            return len(FIGURES), 0
        # Attention grows with the square of the length, and these may be whole documents.
        return len(FIGURES) + 1 + is_blank(pair[1]), len(pair[0]) + len(pair[1])

    chosen = heapq.nsmallest(count, (pair for pair in parallel(source, target) if not is_blank(pair[0])), key=rank)
    if not chosen:
        raise InputError(f"{source} has no line with text: give a validation set that has")
    return chosen


def run() -> None:
    """Write results/attention: sentences.npz, and arrays and pictures of the first pair as `wmt attention` does."""
    data = load_section("data", DataSettings)
    check_versions("sacremoses", "subword_nmt", "sentencepiece")
    settings = load_section("attention", AttentionSettings)
    source, target = (raw("valid", data.valid.name, language) for language in (data.source, data.target))
    model = LoadedModel(AVERAGE)
    chosen = choose_pairs(source, target, settings.sentences, data.source)
    pairs = [attention_maps.attention(model, *pair) for pair in chosen]
    with writing(ATTENTION, folder=True) as temporary:
        attention_maps.write_files(pairs[0], temporary)
        attention_maps.write_quantized(pairs, temporary / "sentences.npz")
