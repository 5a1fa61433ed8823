"""The served model, as MLflow runs it: this file is its code, copied beside the model folder when it is registered.

MLflow runs it where a model is loaded (`mlflow models serve`, `mlflow.pyfunc.load_model`), with the copy of `nmt` that
was registered with it; the rest of this repository need not be there. No weight and no object is pickled.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.pyfunc.model import PythonModel, PythonModelContext

if TYPE_CHECKING:
    from nmt.inference.translator import Translator

BEAM = 32
"""The widest beam of a request, unless the model's own is wider: memory grows with it."""
SENTENCES = 10_000
"""The most sentences of a request."""
CHARACTERS = 10_000
"""The most characters of a sentence: the time to find subwords grows with the square of a word's."""


class Translation(PythonModel):
    """MLflow's model: translates a list of sentences."""

    translator: Translator

    def load_context(self, context: PythonModelContext) -> None:
        from nmt.inference.options import LONGEST
        from nmt.inference.translator import Translator

        self.translator = Translator(Path(context.artifacts["model"]), longest=LONGEST, split="sentences")

    def predict(
        self, context: PythonModelContext, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> list[str]:
        """Return a translation for each sentence, in order; `params` may hold the search's `beam` and `alpha`.

        Raises MlflowException, which the server answers with status 400, where a request is wrong or too large.
        """
        from nmt.errors import InputError
        from nmt.inference.translator import Translator

        ready, sentences = self.translator, [str(each) for each in np.ravel(np.asarray(model_input, dtype=object))]
        most = max(BEAM, ready.settings.beam)
        try:
            settings = ready.settings.changed(params or {})
            _check_sizes(sentences, settings.beam, most)
            # One with the request's settings: requests are answered side by side.
            translator = Translator(ready.model, None, settings, ready.engine, ready.longest, ready.split)
            return list(translator.translate(sentences))
        except InputError as error:
            raise MlflowException.invalid_parameter_value(str(error)) from error


def _check_sizes(sentences: list[str], beam: int, most: int) -> None:
    from nmt.errors import InputError

    longest = max(map(len, sentences), default=0)
    if beam > most or len(sentences) > SENTENCES or longest > CHARACTERS:
        raise InputError(
            f"the request has {len(sentences):,} sentences of up to {longest:,} characters and a beam of {beam:,}: "
            f"send at most {SENTENCES:,} sentences of {CHARACTERS:,} characters, and a beam of at most {most}"
        )


set_model(Translation())
