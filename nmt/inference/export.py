"""A CTranslate2 model from one of ours: `wmt export`.

OUT is complete in itself: besides CTranslate2's files it holds config.yaml and the subwords, so that
`wmt translate OUT --engine ctranslate2` translates raw text.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nmt.common.files import writing
from nmt.config import BOS, EOS, UNK, InputError, ModelSettings
from nmt.inference.ctranslate2_engine import library
from nmt.inference.loading import Models
from nmt.inference.model_folder import load_description, load_model
from nmt.inference.options import Quantization
from nmt.model import LAYER_NORM_EPSILON, MultiHeadAttention, Transformer, positional_encoding

POSITIONS = 1024
"""Sinusoids that the exported table holds: longer sentences are refused by CTranslate2."""


def representable(settings: ModelSettings) -> None:
    """Raises InputError for a model that CTranslate2's Transformer is not."""
    if settings.sharing != "all":
        raise InputError(
            f"the export writes one table of embeddings, and this model has model.sharing {settings.sharing}: "
            "translate with --engine torch"
        )
    if settings.d_k != settings.d_v:
        raise InputError(
            f"CTranslate2 has one size for a head's keys and values, and this model has d_k {settings.d_k} and "
            f"d_v {settings.d_v}: translate with --engine torch"
        )
    if settings.h * settings.d_k != settings.d_model:
        raise InputError(
            f"CTranslate2's heads share d_model among them, and this model has h x d_k = {settings.h * settings.d_k} "
            f"beside d_model {settings.d_model}: translate with --engine torch"
        )


def export(folder: Path, out: Path, quantization: Quantization = "float32") -> None:
    """Write the CTranslate2 model `out`; raises InputError where the model is not representable or damaged."""
    module = library()
    description = load_description(folder)
    representable(description.model)
    # Opening all of it finds what does not fit together before anything is written.
    models = Models([folder], torch.device("cpu"), weights=False)
    symbols = models.subwords.symbols(range(models.subwords.unpadded))
    if len(set(symbols)) < len(symbols):
        raise InputError(f"{folder}: two subwords have one name, which CTranslate2 cannot tell apart")
    spec = _specification(module, load_model(folder, description), len(symbols))
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    spec.config.bos_token = spec.config.decoder_start_token = symbols[BOS]
    spec.config.eos_token, spec.config.unk_token = symbols[EOS], symbols[UNK]
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    with writing(out) as temporary:
        temporary.mkdir()
        spec.save(str(temporary))
        shutil.copyfile(folder / "config.yaml", temporary / "config.yaml")
        shutil.copytree(folder / "subwords", temporary / "subwords")


def _specification(module: Any, model: Transformer, rows: int) -> Any:
    """CTranslate2's description of the model, with its weights; the vocabulary's padding rows are left out."""
    settings = model.settings
    spec = module.specs.TransformerSpec.from_config(
        (settings.N, settings.N), settings.h, pre_norm=False, activation=module.specs.Activation.RELU,
        alignment_layer=-1, alignment_heads=0,
    )  # fmt: skip
    table = model.embedding.table.detach()[:rows]
    if settings.positions == "learned":
        positions = model.embedding.learned.detach()
    else:
        positions = positional_encoding(POSITIONS, settings.d_model, settings.position_layout)
    for side, embeddings in ((spec.encoder, spec.encoder.embeddings[0]), (spec.decoder, spec.decoder.embeddings)):
        embeddings.weight = table.numpy()
        side.scale_embeddings = True
        side.position_encodings.encodings = positions.numpy()
    spec.decoder.projection.weight = table.numpy()
    for ours, theirs in zip(model.encoder, spec.encoder.layer, strict=True):
        assert isinstance(ours.self_attention, MultiHeadAttention)
        _self_attention(ours.self_attention, theirs.self_attention)
        _norms(ours, theirs.self_attention, theirs.ffn)
        _feed_forward(ours, theirs.ffn)
    for ours, theirs in zip(model.decoder, spec.decoder.layer, strict=True):
        assert isinstance(ours.self_attention, MultiHeadAttention)
        assert isinstance(ours.cross_attention, MultiHeadAttention)
        _self_attention(ours.self_attention, theirs.self_attention)
        _cross_attention(ours.cross_attention, theirs.attention)
        _norms(ours, theirs.self_attention, theirs.attention, theirs.ffn)
        _feed_forward(ours, theirs.ffn)
    return spec


def _fill(theirs: Any, *ours: nn.Linear) -> None:
    """One linear map of CTranslate2's from ours, stacked."""
    weights: list[Tensor] = [part.weight.detach() for part in ours]
    theirs.weight = torch.cat(weights).numpy()
    if ours[0].bias is not None:
        theirs.bias = torch.cat([part.bias.detach() for part in ours]).numpy()


def _self_attention(ours: MultiHeadAttention, theirs: Any) -> None:
    _fill(theirs.linear[0], ours.W_Q, ours.W_K, ours.W_V)
    _fill(theirs.linear[1], ours.W_O)


def _cross_attention(ours: MultiHeadAttention, theirs: Any) -> None:
    _fill(theirs.linear[0], ours.W_Q)
    _fill(theirs.linear[1], ours.W_K, ours.W_V)
    _fill(theirs.linear[2], ours.W_O)


def _feed_forward(ours: Any, theirs: Any) -> None:
    _fill(theirs.linear_0, ours.feed_forward.W_1)
    _fill(theirs.linear_1, ours.feed_forward.W_2)


def _norms(ours: Any, *theirs: Any) -> None:
    for add_norm, part in zip(ours.add_norms, theirs, strict=True):
        part.layer_norm.gamma = add_norm.norm.weight.detach().numpy()
        part.layer_norm.beta = add_norm.norm.bias.detach().numpy()
