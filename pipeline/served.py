"""The served model, as MLflow runs it: this file is its code, copied beside the model folder when it is registered.

MLflow runs it where a model is loaded (`mlflow models serve`, `mlflow.pyfunc.load_model`), with the copy of `nmt` that
was registered with it; the rest of this repository need not be there. No weight and no object is pickled.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

if TYPE_CHECKING:
    from nmt.translator import Translator


class Translation(PythonModel):
    """Sentences to sentences."""

    translator: Translator

    def load_context(self, context: PythonModelContext) -> None:
        """Load the model folder, once."""
        from nmt.translator import Translator

        self.translator = Translator(Path(context.artifacts["model"]))

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[str]:
        """A translation for each sentence, in order; `params` may hold the search's `beam` and `alpha`."""
        from nmt.config import SearchSettings

        # Requests are answered side by side, each with settings of its own.
        translator = copy.copy(self.translator)
        translator.settings = SearchSettings.model_validate({**translator.settings.model_dump(), **(params or {})})
        return list(translator.translate(str(sentence) for sentence in np.ravel(np.asarray(model_input, dtype=object))))


set_model(Translation())
