from nmt.evaluation.bleu import sacrebleu as bleu
from nmt.evaluation.forced_scoring import score_lines as score
from nmt.fitting import fit as fit
from nmt.inference.attention_maps import attention as attention
from nmt.inference.model_folder import load as load
from nmt.inference.translator import Translator as Translator
from nmt.model import Transformer as Transformer

__all__ = ["Transformer", "Translator", "__version__", "attention", "bleu", "fit", "load", "score"]
__version__: str
