"""Model folders with random weights, for tests of everything that opens one."""

from pathlib import Path
from typing import Any

import torch
from clones import WORDS

from nmt import codec
from nmt.inference.model_folder import ModelDescription, load_description, save_model
from nmt.inference.settings import SearchSettings
from nmt.model import Transformer
from nmt.model_settings import ModelSettings
from nmt.parsing.trees import Linearisation, linearise, read_trees
from nmt.text import subwords
from nmt.text.settings import SubwordSettings, TokenizerSettings

TREES = [
    "(S (NP (DT the) (JJ old) (NN man)) (VP (VBZ sees) (NP (DT a) (NN dog))) (. .))",
    "(S (NP (PRP He)) (VP (VBD did) (RB not) (VP (VB see) (NP (PRP it)))))",
    "(S (S (NP (PRP She)) (VP (VBZ sleeps) (ADVP (RB well)))) (, ,) (CC and) (S (NP (PRP we)) (VP (VBP do))) (. !))",
]


def model_settings(**changes: Any) -> ModelSettings:
    settings = {
        "N": 2, "d_model": 16, "d_ff": 32, "h": 2, "d_k": 8, "d_v": 8, "P_drop": 0.1, "attention_dropout": 0.0,
        "relu_dropout": 0.0, "positions": "sinusoidal", "position_layout": "interleaved", "max_positions": 64,
        "projection_biases": True, "initialisation": "glorot", **changes,
    }  # fmt: skip
    return ModelSettings.model_validate(settings)


def folder_of(
    folder: Path, seed: int = 1, target: str = "de", words: str = WORDS, pieces: int | None = None,
    symbols: tuple[str, ...] = (), **model: Any,
) -> Path:  # fmt: skip
    """A model folder with BPE of Moses' tokens, or so many word pieces of raw text and `symbols`."""
    settings = SubwordSettings(kind="bpe", merges=60, vocabulary=None, multiple_of=8)
    if pieces:
        sizes = {"merges": None, "vocabulary": pieces, "multiple_of": 8}
        settings = SubwordSettings.model_validate({"kind": "wordpieces", "user_defined_symbols": symbols, **sizes})
    learned = subwords.learn(dict.fromkeys(words.split(), 3), settings)
    learned.save(folder.parent / f"{folder.name}.subwords")
    kind = "none" if pieces else "moses"
    description = ModelDescription(
        source="en",
        target=target,
        vocabulary=learned.size,
        tokenizer=TokenizerSettings(tokenizer=kind, normalize_punctuation=False, aggressive_hyphens=False),
        model=model_settings(**model),
        search=SearchSettings(beam=4, alpha=0.6, max_extra=10, stop="exact"),
        origin={},
    )
    return save(folder, seed, description, learned.size)


def save(folder: Path, seed: int, description: ModelDescription, *rows: int) -> Path:
    """Save a model with random weights, and the subwords beside it."""
    torch.manual_seed(seed)
    built = Transformer(description.model, *rows)
    with torch.no_grad():
        for table in {built.target_embedding.table, built.output_table}:
            table.mul_(3.0)
    save_model(folder, built.state_dict(), description, folder.parent / f"{folder.name}.subwords")
    return folder


def parser_of(folder: Path, linearisation: Linearisation, seed: int = 3, **model: Any) -> Path:
    """A parser's model folder with random weights, which has a closed vocabulary of the symbols of TREES."""
    base = load_description(folder_of(folder.parent / f"{folder.name}.text", **model))
    settings = SubwordSettings(kind="bpe", merges=60, vocabulary=None, target="closed", multiple_of=64)
    symbols = [symbol for tree in read_trees(TREES, "TREES") for symbol in linearise(tree, linearisation)]
    source, target = codec.learn(dict.fromkeys(WORDS.split(), 3), dict.fromkeys(symbols, 3), settings)
    codec.save(folder.parent / f"{folder.name}.subwords", source, target)
    tokenizer = base.tokenizer.model_copy(update={"tokenizer": linearisation})
    changed = {"target": "tree", "vocabulary": source.size, "target_vocabulary": target.size, "tokenizer": tokenizer}
    return save(folder, seed, base.model_copy(update=changed), source.size, target.size)
