"""Model folders with random weights, for tests of everything that opens one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from nmt.config import ModelSettings, SearchSettings, SubwordSettings, TokenizerSettings
from nmt.inference.model_folder import ModelDescription, save_model
from nmt.model import Transformer
from nmt.text import subwords

WORDS = "the old man sees a dog . He did not see it She sleeps well , and we do !"


def folder_of(folder: Path, seed: int = 1, target: str = "de", words: str = WORDS, **model: Any) -> Path:
    """A model folder with random weights."""
    torch.manual_seed(seed)
    bpe = SubwordSettings(kind="bpe", merges=60, vocabulary=None, multiple_of=8)
    learned = subwords.learn(dict.fromkeys(words.split(), 3), bpe)
    learned.save(folder.parent / f"{folder.name}.subwords")
    settings = {
        "N": 2,
        "d_model": 16,
        "d_ff": 32,
        "h": 2,
        "d_k": 8,
        "d_v": 8,
        "P_drop": 0.1,
        "attention_dropout": 0.0,
        "relu_dropout": 0.0,
        "positions": "sinusoidal",
        "position_layout": "interleaved",
        "max_positions": 64,
        "projection_biases": True,
        "initialisation": "glorot",
        **model,
    }
    description = ModelDescription(
        source="en",
        target=target,
        vocabulary=learned.size,
        tokenizer=TokenizerSettings(tokenizer="moses", normalize_punctuation=False, aggressive_hyphens=False),
        model=ModelSettings.model_validate(settings),
        search=SearchSettings(beam=4, alpha=0.6, max_extra=10, stop="exact"),
        origin={},
    )
    built = Transformer(description.model, learned.size)
    with torch.no_grad():
        built.embedding.table.mul_(3.0)
    save_model(folder, built.state_dict(), description, folder.parent / f"{folder.name}.subwords")
    return folder
