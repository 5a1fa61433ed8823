"""Which pairs' attention the report shows."""

import html
import re
from pathlib import Path

import numpy as np
import torch
from data_stages import write_sides

from nmt.inference.attention_maps import Attention, draw_lines, write_quantized
from pipeline.stages.attention import FIGURES, choose_pairs


def test_the_papers_sentences_come_first_then_those_of_a_readable_length(tmp_path: Path) -> None:
    long, short, fitting = "word " * 30, "one word", [f"a sentence of six words {n}" for n in range(3)]
    sources = [long, "", short, *fitting, FIGURES[1], " ", FIGURES[0]]
    files = write_sides(tmp_path / "valid", [(source, "ein Satz") for source in sources])
    chosen = [source for source, _ in choose_pairs(*files, 5, "en")]
    assert chosen == [*FIGURES, *fitting]
    assert [source for source, _ in choose_pairs(*files, 100, "en")] == [*FIGURES, *fitting, short, long]


def test_a_source_without_text_is_never_chosen(tmp_path: Path) -> None:
    # A pair without a target is the last resort.
    both = [("a sentence of six words here", ""), ("short", "kurz")]
    files = write_sides(tmp_path / "valid", [("", "leer"), ("  ", "leer"), ("\u200b", "leer"), *both])
    assert choose_pairs(*files, 4, "en") == both[::-1]


def attention(layers: int, heads: int, words: int) -> Attention:
    names = [f"$w{number}@@" for number in range(words)]
    shapes = {name: torch.rand(layers, heads, words, words).softmax(-1) for name in ("encoder", "decoder", "cross")}
    return Attention(names, names, shapes)


def test_weights_are_kept_to_half_a_255th(tmp_path: Path) -> None:
    maps = [attention(2, 3, 4), attention(2, 3, 5)]
    write_quantized(maps, tmp_path / "sentences.npz")
    with np.load(tmp_path / "sentences.npz", allow_pickle=False) as arrays:
        assert arrays["source.1"].tolist() == maps[1].source
        kept = torch.from_numpy(arrays["cross.1"]).float() / 255
    assert (kept - maps[1].weights["cross"]).abs().max() <= 0.5 / 255 + 1e-6


def test_rows_of_a_picture_have_the_words_that_they_write() -> None:
    shapes = {name: torch.ones(1, 1, 2, 3 if name == "cross" else 2) for name in ("decoder", "cross")}
    looked = Attention(["a", "漢", "</s>"], ["<s>", "c"], shapes)
    for name, keys in (("cross", ["a", "漢", "</s>"]), ("decoder", ["<s>", "c"])):
        words = re.findall(r">(\S+)</text>", html.unescape(draw_lines(looked, name, 0).decode()))
        assert words == ["c", "</s>", *keys]
