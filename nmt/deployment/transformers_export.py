"""Converts a model folder to one that Hugging Face's transformers opens; `wmt export --to transformers`.

Its MarianMT is our model but for two things. Its LayerNorm adds 1e-5, not 1e-6, which changes logits by about 1e-4. Its
positions have all sines first: the dimensions of the residual stream, whose order means nothing else, are written so.
Nothing here imports transformers.
"""

import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt.common.files import write_json, writing
from nmt.common.tensors import WEIGHTS, save_tensors
from nmt.deployment.export import POSITIONS, check_representable, check_symbols
from nmt.deployment.model_card import card
from nmt.errors import InputError
from nmt.ids import BOS, EOS, PAD, UNK
from nmt.inference.loading import LoadedModel
from nmt.inference.model_folder import to_dtype
from nmt.inference.options import Quantization
from nmt.model import Transformer
from nmt.text.moses import LINE_BREAKERS
from nmt.text.subwords import SPECIALS, Subwords, WordPieces

_CODE = Path(__file__).with_name("transformers_tokenizer.py")
_LONGEST = 512  # subwords of the longest translation: transformers has one limit for all sentences
_TOKENS = {
    "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "forced_eos_token_id": EOS,
    "decoder_start_token_id": BOS,
}  # fmt: skip
_SPACE = "\u2581"  # sentencepiece's own symbol for a space


def export(folder: Path, out: Path, dtype: Quantization = "float32", run: Mapping[str, Any] | None = None) -> None:
    """Write the folder `out`, with `run` in its model card; raise InputError if MarianMT cannot represent the model."""
    model = LoadedModel(folder, torch.device("cpu"))
    description, subwords = model.description, model.subwords
    settings, search, words = description.model, description.search, description.tokenizer
    if model.writes_trees:
        raise InputError(f"{folder} writes trees, which transformers cannot make of subwords: parse with `wmt parse`")
    check_representable(settings)
    if settings.positions == "learned":
        raise InputError("MarianMT cannot represent a model with learned positions: translate with `wmt translate`")
    check_symbols(folder, subwords)
    weights = to_dtype(_weights(model.transformer, subwords.used_rows), dtype)
    sizes = {"layers": settings.N, "attention_heads": settings.h, "ffn_dim": settings.d_ff}
    config = {
        "architectures": ["MarianMTModel"], "model_type": "marian", "dtype": dtype, **_TOKENS,
        "vocab_size": subwords.used_rows, "d_model": settings.d_model,
        **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sizes.items()},
        "dropout": settings.P_drop, "attention_dropout": settings.attention_dropout,
        "activation_dropout": settings.relu_dropout, "activation_function": "relu", "scale_embedding": True,
        "max_position_embeddings": POSITIONS,
    }  # fmt: skip
    generation = {
        **_TOKENS, "suppress_tokens": [PAD, BOS, UNK], "begin_suppress_tokens": [EOS],
        "num_beams": search.beam, "length_penalty": search.alpha, "max_length": _LONGEST,
    }  # fmt: skip
    tokenizer: dict[str, Any] = {
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), SPECIALS, strict=True)),
        "split_special_tokens": True,  # `</s>` in a text is text.
        "clean_up_tokenization_spaces": False, "model_max_length": POSITIONS,
        "model_input_names": ["input_ids", "attention_mask"],
    }  # fmt: skip
    with writing(out, folder=True) as temporary:
        raw = words.tokenizer == "none" and not (words.normalize_punctuation or words.compose)
        if isinstance(subwords, WordPieces) and raw and not subwords.settings.user_defined_symbols:
            write_json(temporary / "tokenizer.json", _word_piece_tokenizer(subwords))
            tokenizer["tokenizer_class"] = "PreTrainedTokenizerFast"
        else:
            # A tokenizer.json cannot split a piece that has no row into its parts, as our BPE does, nor keep the space
            # before a user's symbol.
            _copy_code(temporary)
            shutil.copytree(folder / "subwords", temporary / "subwords")
            tokenizer["tokenizer_class"] = "TransformersTokenizer"
            tokenizer["auto_map"] = {"AutoTokenizer": [f"{_CODE.stem}.TransformersTokenizer", None]}
            tokenizer |= {"source_lang": description.source, "target_lang": description.target}
            tokenizer["words"] = words.model_dump()
        save_tensors(temporary / WEIGHTS, weights)
        write_json(temporary / "config.json", config)
        write_json(temporary / "generation_config.json", generation)
        write_json(temporary / "tokenizer_config.json", tokenizer)
        text = card(description, run, has_code="auto_map" in tokenizer)
        (temporary / "README.md").write_text(text, encoding="utf-8")


def _weights(model: Transformer, rows: int) -> dict[str, Tensor]:
    """Return MarianMT's tensors by name; the vocabulary's padding rows are left out."""
    order = torch.arange(model.settings.d_model)
    if model.settings.position_layout == "interleaved":
        order = torch.cat((order[::2], order[1::2]))
    weights = {"model.shared.weight": model.embedding.table[:rows, order], "final_logits_bias": torch.zeros(1, rows)}

    def linear(name: str, ours: nn.Linear, *, writes: bool = False) -> None:
        """Add a map that reads the residual stream, or one that writes to it."""
        bias = torch.zeros(ours.out_features) if ours.bias is None else ours.bias
        weights[f"{name}.weight"] = ours.weight[order] if writes else ours.weight[:, order]
        weights[f"{name}.bias"] = bias[order] if writes else bias

    sides: dict[str, Any] = {"encoder": model.encoder, "decoder": model.decoder}
    for prefix, layer in ((f"model.{side}.layers.{n}", layer) for side in sides for n, layer in enumerate(sides[side])):
        attentions = {"self_attn": layer.self_attention}
        if hasattr(layer, "cross_attention"):
            attentions["encoder_attn"] = layer.cross_attention
        for name, attention in attentions.items():
            for theirs, ours in (("q_proj", attention.W_Q), ("k_proj", attention.W_K), ("v_proj", attention.W_V)):
                linear(f"{prefix}.{name}.{theirs}", ours)
            linear(f"{prefix}.{name}.out_proj", attention.W_O, writes=True)
        linear(f"{prefix}.fc1", layer.feed_forward.W_1)
        linear(f"{prefix}.fc2", layer.feed_forward.W_2, writes=True)
        norms = (*(f"{name}_layer_norm" for name in attentions), "final_layer_norm")
        for name, add_norm in zip(norms, layer.add_norms, strict=True):
            weights |= {f"{prefix}.{name}.{part}": tensor[order] for part, tensor in add_norm.norm.named_parameters()}
    return {name: tensor.detach() for name, tensor in weights.items()}


def _copy_code(out: Path) -> None:
    """Copy the tokenizer's module, and nmt as an archive beside it: transformers copies single modules."""
    shutil.copyfile(_CODE, out / _CODE.name)
    package = Path(__file__).parents[1]
    with zipfile.ZipFile(out / "nmt.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(package.rglob("*.py")):
            # Such an entry has a constant time.
            archive.writestr(zipfile.ZipInfo(str(path.relative_to(package.parent))), path.read_bytes())


def _word_piece_tokenizer(subwords: Subwords) -> dict[str, Any]:
    """Return the content of a tokenizer.json for raw lines.

    sentencepiece merges the pair whose piece has the highest score: rows are in that order, after specials and bytes.
    """
    symbols, eos = subwords.symbols(range(subwords.used_rows)), SPECIALS[EOS]
    rows = {symbol: row for row, symbol in enumerate(symbols)}
    splits = ([symbol[:at], symbol[at:]] for symbol in symbols[len(SPECIALS) + 256 :] for at in range(1, len(symbol)))
    merges = [pair for pair in splits if pair[0] in rows and pair[1] in rows]
    spaces = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
    line, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": eos, "type_id": 0}}
    normalizers = [
        {"type": "Replace", "pattern": {"Regex": LINE_BREAKERS.pattern}, "content": " "},
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE},
        {"type": "Prepend", "prepend": _SPACE},
    ]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "post_processor": {
            "type": "TemplateProcessing", "single": [line, end], "pair": [line, end],
            "special_tokens": {eos: {"id": eos, "ids": [EOS], "tokens": [eos]}},
        },
        "decoder": {"type": "Sequence", "decoders": [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        "model": {"type": "BPE", "unk_token": SPECIALS[UNK], "byte_fallback": True, "vocab": rows, "merges": merges},
    }  # fmt: skip
