"""The served model, as MLflow runs it: this file is its code, copied beside the model folder when it is registered.

MLflow runs it where a model is loaded (`mlflow models serve`, `mlflow.pyfunc.load_model`), with the copy of `nmt` that
was registered with it; the rest of this repository need not be there. No weight and no object is pickled.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any

from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

from nmt.errors import InputError
from nmt.inference.loading import LoadedModel
from nmt.inference.options import LONGEST
from nmt.inference.quantization import quantize
from nmt.inference.translator import Translator

BEAM = 32  # the widest beam of a request, unless the model's own is wider: memory grows with it


class Translation(PythonModel):
    """MLflow's model: translates a list of sentences. MLflow refuses input that is not of predict's type."""

    translator: Translator

    def load_context(self, context: PythonModelContext) -> None:
        self.translator = Translator(Path(context.artifacts["model"]), longest=LONGEST, split="sentences")

    def predict(
        self, context: PythonModelContext, model_input: list[str], params: dict[str, Any] | None = None
    ) -> list[str] | list[list[str]]:
        """Return a translation for each sentence, in order; with `nbest` above 1 a list of them, best first.

        `params` may hold the search's `beam` and `alpha`, `nbest`, and `quantization`: `none` or `int8`. Raises
        MlflowException, which the server answers with status 400, where a request is wrong or its beam too wide.
        """
        changes = dict(params or {})
        nbest, quantization = changes.pop("nbest", 1), changes.pop("quantization", "none")
        try:
            ready = _with_weights(self.translator, quantization)
            settings = ready.settings.changed(changes)
            settings.check_nbest(nbest)
            _check_beam(settings.beam, max(BEAM, self.translator.settings.beam))
            # One with the request's settings: requests are answered side by side.
            translator = Translator(ready.model, None, settings, ready.engine, ready.longest, ready.split)
            texts = [sentence.texts for sentence in translator.translations(model_input, nbest)]
            return texts if nbest > 1 else [best for best, *_ in texts]
        except InputError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


@lru_cache(2)
def _with_weights(ready: Translator, quantization: str) -> Translator:
    """Return the translator, or one with 8-bit weights, which the first request for it makes.

    Raises InputError for other values, and for 8-bit weights on a GPU.
    """
    if quantization == "none":
        return ready
    if quantization != "int8":
        raise InputError(f"quantization is {quantization!r}: give none or int8")
    model = LoadedModel(ready.model.folder, ready.model.device)
    quantize(model.transformer)
    return Translator(model, longest=ready.longest, split=ready.split)


def _check_beam(beam: int, most: int) -> None:
    if beam > most:
        raise InputError(f"beam is {beam}: give at most {most}")


set_model(Translation())
