"""MLflow's model registry: a version of `wmt-<pair>` for the model of each finished run, and the alias `best`."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nmt.common.files import sha256_of
from nmt.task import Task, task_in
from pipeline.config.paths import AVERAGE

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

EXAMPLE = ["The old man sees the dog."]
BEST = "best"
WEIGHTS_TAG = "sha256"  # tag of a version: the hash of its weights
NEEDED = ("torch", "numpy", "pydantic", "PyYAML", "safetensors", "sacremoses", "subword-nmt", "sentencepiece", "mlflow")
"""Libraries that a served model imports."""


def register(client: MlflowClient, run: str, configuration: Mapping[str, Any], scores: Mapping[str, Any]) -> None:
    """Register models/average as a version of the run, once, with its scores, and move `best`."""
    import mlflow
    from mlflow.exceptions import MlflowException

    asked = configuration["run"]
    task = task_in(scores)
    name = f"wmt-{asked['pair']}"
    weights = sha256_of(AVERAGE / "model.safetensors")
    sets = [key for key in scores if key.endswith(("_set", "_references"))]
    tags = {**asked, **{key: scores[key] for key in (*sets, *task.numbers) if key in scores}, WEIGHTS_TAG: weights}
    tags = {key: str(value) for key, value in tags.items()}
    versions = client.search_model_versions(f"name = '{name}' and run_id = '{run}'")
    version = next((candidate.version for candidate in versions if candidate.tags.get(WEIGHTS_TAG) == weights), None)
    if version is None:
        content = model_content(AVERAGE, configuration["search"])
        with mlflow.start_run(run_id=run):
            logged = mlflow.pyfunc.log_model(
                name=asked["row"].replace(".", "_"), model_type="Transformer", step=int(scores["updates"]), **content
            )
        with suppress(MlflowException):  # It exists.
            client.create_registered_model(name)
        version = client.create_model_version(name, logged.model_uri, run, tags=tags, model_id=logged.model_id).version
    else:
        for key, value in tags.items():
            client.set_model_version_tag(name, version, key, value)
    references = str(scores.get(f"valid_{task.key}_references"))
    chosen = best(client.search_model_versions(f"name = '{name}'"), task, references)
    if chosen is not None:
        client.set_registered_model_alias(name, BEST, chosen)


def model_content(folder: Path, search: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `mlflow.pyfunc` saves of a model folder, nothing pickled; `search` has the defaults of a request."""
    here = Path(__file__).resolve().parent
    defaults = {"beam": int(search["beam"]), "alpha": float(search["alpha"]), "nbest": 1, "quantization": "none"}
    return {
        "python_model": here / "serving.py",
        "code_paths": [str(here.parents[1] / "nmt")],
        "artifacts": {"model": str(folder)},
        # MLflow takes the types of the parameters and their defaults from it, those of the input from `predict`.
        "input_example": (EXAMPLE, defaults),
        # Without their build (`2.13.0+cpu`), which an index may not have.
        "pip_requirements": [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in NEEDED],
    }


def best(versions: Sequence[ModelVersion], task: Task, references: str) -> str | None:
    """Return the version with the highest score on the paper's validation set, never on a test set.

    That is newstest2013 (Table 3's protocol) or, for trees, section 22. Of equals, the first. While no version was
    scored there, the one with the highest score on `references`: scores on different sets do not compare.
    """
    score, compared, papers = f"valid_{task.key}", f"valid_{task.key}_references", task.papers_sets[0]
    scored = [one for one in versions if one.tags.get(compared) in {papers, references} and score in one.tags]

    def rank(version: ModelVersion) -> tuple[bool, float, int]:
        return version.tags[compared] == papers, float(version.tags[score]), -int(version.version)

    return str(max(scored, key=rank).version) if scored else None
