"""The served model behind MLflow's own scoring server: what a request may ask for, and what it is refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from model_folders import folder_of

from nmt.inference.loading import LoadedModel
from nmt.inference.quantization import quantize
from nmt.inference.translator import Translator
from pipeline.tracking import registry

pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning")

SENTENCES = ["the old man sees a dog .", "She sleeps well"]


@pytest.fixture(scope="module")
def serving() -> Any:
    """The module under test. It imports MLflow, which takes seconds that collecting tests need not."""
    from pipeline.tracking import serving

    return serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("served") / "model", words=" ".join([*SENTENCES, *registry.EXAMPLE]), N=1)


@pytest.fixture(scope="module")
def server(serving: Any, folder: Path) -> httpx.ASGITransport:
    """MLflow's server of the model as it is registered, in this process."""
    import mlflow.pyfunc
    from mlflow.pyfunc import scoring_server

    path = folder.parent / "registered"
    mlflow.pyfunc.save_model(path, **registry.model_content(folder, {"beam": 4, "alpha": 0.6}))
    return httpx.ASGITransport(scoring_server.init(mlflow.pyfunc.load_model(str(path))), raise_app_exceptions=False)


def ask(server: httpx.ASGITransport, sentences: Any, **params: Any) -> tuple[int, Any]:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=server, base_url="http://server") as client:
            return await client.post("/invocations", json={"inputs": sentences, "params": params})

    answer = asyncio.run(post())
    return answer.status_code, answer.json()


def test_a_request_is_answered_with_its_own_settings(serving: Any, server: httpx.ASGITransport, folder: Path) -> None:
    ready = Translator(folder)
    assert ask(server, SENTENCES) == (200, {"predictions": list(ready.translate(SENTENCES))})
    wide = Translator(ready.model, settings=ready.settings.changed({"beam": serving.BEAM, "alpha": 0.0}))
    predictions = list(wide.translate(SENTENCES))
    assert ask(server, SENTENCES, beam=serving.BEAM, alpha=0.0) == (200, {"predictions": predictions})


def test_a_request_may_have_several_translations_and_8_bit_weights(server: httpx.ASGITransport, folder: Path) -> None:
    best = [each.texts for each in Translator(folder).translations(SENTENCES, nbest=3)]
    assert ask(server, SENTENCES, nbest=3) == (200, {"predictions": best})
    rounded = LoadedModel(folder)
    quantize(rounded.transformer)
    predictions = list(Translator(rounded).translate(SENTENCES))
    assert ask(server, SENTENCES, quantization="int8") == (200, {"predictions": predictions})
    assert ask(server, SENTENCES, quantization="none") == ask(server, SENTENCES)


def test_what_a_request_may_not_ask_for_is_a_sentence(serving: Any, server: httpx.ASGITransport) -> None:
    refused: list[tuple[Any, dict[str, Any], str]] = [
        (SENTENCES, {"nbest": 5}, "nbest is 5: it must lie between 1 and the beam, 4"),
        (SENTENCES, {"nbest": 0}, "nbest is 0: it must lie between 1 and the beam, 4"),
        (SENTENCES, {"quantization": "int4"}, "quantization is 'int4': give none or int8"),
        (SENTENCES, {"beam": serving.BEAM + 1}, "beam is 33: give at most 32"),
        (SENTENCES, {"beam": 0}, "the search's beam is 0; input should be greater than or equal to 1"),
        (SENTENCES, {"alpha": -0.1}, "the search's alpha is -0.1; input should be greater than or equal to 0"),
        (SENTENCES, {"alpha": 1e300}, "the search's alpha is 1e+300; input should be less than or equal to 10"),
        (["dog " * 300], {}, "subwords, and at most 256 are translated at once"),
    ]
    for sentences, params, message in refused:
        status, answer = ask(server, sentences, **params)
        assert (status, answer["error_code"]) == (400, "INVALID_PARAMETER_VALUE"), answer
        assert message in answer["message"]


def test_a_models_own_beam_may_be_wider_than_a_requests(serving: Any, folder: Path) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc.model import PythonModelContext

    model, ready, context = serving.Translation(), Translator(folder), PythonModelContext({"model": str(folder)}, {})
    model.translator = Translator(ready.model, settings=ready.settings.changed({"beam": serving.BEAM + 3}))
    assert len(model.predict(context, SENTENCES[1:])) == 1
    assert len(model.predict(context, SENTENCES[1:], {"beam": serving.BEAM + 2})) == 1
    with pytest.raises(MlflowException, match="beam is 36: give at most 35"):
        model.predict(context, SENTENCES, {"beam": serving.BEAM + 4})
