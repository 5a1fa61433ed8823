"""Converts a model folder to one of CTranslate2's; `wmt export`.

CTranslate2's search is not ours: its length penalty is |Y|^alpha, not GNMT's, and it ends by another rule.
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from nmt.common.files import writing
from nmt.errors import InputError
from nmt.ids import BOS, EOS, UNK
from nmt.inference.loading import LoadedModel
from nmt.inference.options import Quantization
from nmt.model import LAYER_NORM_EPSILON, MultiHeadAttention, Transformer, positional_encoding
from nmt.model_settings import ModelSettings
from nmt.text.subwords import Subwords

POSITIONS = 1024  # positions in the exported table of sinusoids


def check_representable(settings: ModelSettings) -> None:
    """Raise InputError for a model that CTranslate2 cannot represent."""
    d_k, d_v, width = settings.d_k, settings.d_v, settings.h * settings.d_k
    for fits, needs, actual in (
        (settings.sharing == "all", "one table of embeddings", f"model.sharing {settings.sharing}"),
        (d_k == d_v, "one size for keys and values", f"d_k {d_k} and d_v {d_v}"),
        (width == settings.d_model, "h x d_k = d_model", f"h x d_k = {width} and d_model {settings.d_model}"),
    ):
        if not fits:
            raise InputError(f"the export needs {needs}, but this model has {actual}: translate with `wmt translate`")


def check_symbols(folder: Path, subwords: Subwords) -> list[str]:
    """Return the symbols of all rows; raise InputError if two are equal, as of a word `<unk>` in the training text."""
    symbols = subwords.symbols(range(subwords.used_rows))
    if repeated := [symbol for symbol, count in Counter(symbols).items() if count > 1]:
        raise InputError(f"{folder}: two subwords have the symbol {repeated[0]}, which the export cannot tell apart")
    return symbols


def export(folder: Path, out: Path, quantization: Quantization = "float32", *, ends_source: bool = False) -> None:
    """Write the CTranslate2 model `out`, which with `ends_source` adds EOS to a source itself.

    Raises InputError if the model cannot be represented or is damaged.
    """
    try:
        import ctranslate2
    except ModuleNotFoundError as error:
        raise InputError(
            "CTranslate2 is not installed: `pip install ctranslate2`, or `pip install -e '.[ctranslate2]'`"
        ) from error
    model = LoadedModel(folder, torch.device("cpu"))
    check_representable(model.description.model)
    symbols = check_symbols(folder, model.subwords)
    spec = _specification(ctranslate2, model.transformer, len(symbols))
    spec.register_source_vocabulary(symbols)
    spec.register_target_vocabulary(symbols)
    spec.config.bos_token = spec.config.decoder_start_token = symbols[BOS]
    spec.config.eos_token, spec.config.unk_token = symbols[EOS], symbols[UNK]
    spec.config.add_source_eos = ends_source
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    spec.optimize(quantization=None if quantization == "float32" else quantization)
    with writing(out, folder=True) as temporary:
        spec.save(str(temporary))


def _specification(module: Any, model: Transformer, rows: int) -> Any:
    """Return CTranslate2's description of the model, with its weights but without the vocabulary's padding rows."""
    settings = model.settings
    options = {"pre_norm": False, "alignment_layer": -1, "alignment_heads": 0}
    options["activation"] = module.specs.Activation.RELU
    spec = module.specs.TransformerSpec.from_config((settings.N, settings.N), settings.h, **options)
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
        _fill_layer(ours, theirs, (theirs.self_attention, theirs.ffn))
    for ours, theirs in zip(model.decoder, spec.decoder.layer, strict=True):
        _fill_layer(ours, theirs, (theirs.self_attention, theirs.attention, theirs.ffn))
        cross, linear = cast("MultiHeadAttention", ours.cross_attention), theirs.attention.linear
        _fill(linear[0], cross.W_Q)
        _fill(linear[1], cross.W_K, cross.W_V)
        _fill(linear[2], cross.W_O)
    return spec


def _fill(theirs: Any, *ours: nn.Linear) -> None:
    """Set a linear map of CTranslate2's to ours, stacked."""
    theirs.weight = torch.cat([part.weight.detach() for part in ours]).numpy()
    if ours[0].bias is not None:
        theirs.bias = torch.cat([part.bias.detach() for part in ours]).numpy()


def _fill_layer(ours: Any, theirs: Any, sublayers: Sequence[Any]) -> None:
    attention = ours.self_attention
    _fill(theirs.self_attention.linear[0], attention.W_Q, attention.W_K, attention.W_V)
    _fill(theirs.self_attention.linear[1], attention.W_O)
    _fill(theirs.ffn.linear_0, ours.feed_forward.W_1)
    _fill(theirs.ffn.linear_1, ours.feed_forward.W_2)
    for add_norm, part in zip(ours.add_norms, sublayers, strict=True):
        part.layer_norm.gamma = add_norm.norm.weight.detach().numpy()
        part.layer_norm.beta = add_norm.norm.bias.detach().numpy()
