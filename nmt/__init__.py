"""The Transformer of "Attention Is All You Need" and its training, as a library.

The names below are its public API, each imported when it is first used; everything else may change.
"""

import os
from importlib import import_module, metadata  # noqa: TID251 # only what is named here

# Some images set it for all that torch multiplies: float32 would mean TF32.
os.environ.pop("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", None)

_PUBLIC = {
    "Transformer": ("nmt.model", "Transformer"),
    "Translator": ("nmt.inference.translator", "Translator"),
    "attention": ("nmt.inference.attention_maps", "attention"),
    "bleu": ("nmt.evaluation.bleu", "sacrebleu"),
    "fit": ("nmt.fitting", "fit"),
    "load": ("nmt.inference.model_folder", "load"),
    "score": ("nmt.evaluation.forced_scoring", "score_lines"),
}
__all__ = [*_PUBLIC, "__version__"]  # noqa: PLE0604 # the names are strings


def __getattr__(name: str) -> object:
    if name == "__version__":
        return metadata.version("wmt-transformer")
    if name not in _PUBLIC:
        raise AttributeError(f"module `nmt` has no attribute `{name}`")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)
