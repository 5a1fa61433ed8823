"""MLflow's model registry: a version of `wmt-<pair>` for each finished run, and the alias `best`."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.scorer import Scorer, scorer
from pipeline.tracking import descriptions, names

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.entities.model_registry import ModelVersion

EXAMPLE = ["The old man doesn't see the dog."]
BEST = "best"
LONGEST = 5000
"""Characters of a description that MLflow's database takes."""
NEEDED = ("torch", "numpy", "pydantic", "PyYAML", "safetensors", "sacremoses", "subword-nmt", "sentencepiece", "mlflow")
"""Libraries that a served model imports."""


def register(client: MlflowClient, run: str, folder: Path, values: Mapping[str, Any]) -> None:
    """Register a model folder as a version of the run, once, and move `best`.

    `values`: `name` and `pair` of the registered model; `metrics`, `tags` and `description` of the version; `search`
    (the folder's settings); `time` of the metrics in the run, in milliseconds since 1970.
    """
    name, by = str(values["name"]), scorer(values["metrics"])
    if not client.search_model_versions(f"name = '{name}' and run_id = '{run}'"):
        model = _log(client, run, folder, values)
        _make(client, name, descriptions.of_model(name, str(values["pair"])))
        client.create_model_version(
            name,
            f"models:/{model.model_id}",
            run_id=run,
            tags={**values["tags"], **{key: str(values["metrics"][key]) for key in by.numbers}},
            model_id=model.model_id,
            description=str(values["description"])[:LONGEST],
        )
    point_best(client, name, by, str(values["tags"][f"{by.key}_valid_set"]))


def _log(client: MlflowClient, run: str, folder: Path, values: Mapping[str, Any]) -> LoggedModel:
    """Log the model folder as a model of the run; returns it, ready to be loaded."""
    from mlflow.entities import LoggedModelOutput, Metric

    experiment = client.get_run(run).info.experiment_id
    for half in client.search_logged_models([experiment], filter_string=f"source_run_id = '{run}'"):
        # An earlier attempt was cut off.
        client.delete_logged_model(half.model_id)
    updates = int(values["metrics"]["updates"])
    model = client.create_logged_model(
        experiment, str(values["tags"]["row"]), source_run_id=run, tags=dict(values["tags"]), model_type="Transformer"
    )
    client.log_outputs(run, [LoggedModelOutput(model.model_id, step=updates)])
    # By a name of its own: what a kill has left is removed by the next attempt. `publish.lock` lets one in at a time.
    temporary = folder.with_name(".registering.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        save(temporary / "model", folder, values["search"], run, model)
        client.log_model_artifacts(model.model_id, str(temporary / "model"))
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    client.log_batch(
        run,
        metrics=[
            # Of the run's own step and time: two points would be drawn as a curve.
            Metric(name, float(values["metrics"][key]), int(values["time"]), 0, model_id=model.model_id, run_id=run)
            for key in scorer(values["metrics"]).numbers
            if (name := names.of_score(key)) is not None
        ],
    )
    return client.finalize_logged_model(model.model_id, "READY")


def save(path: Path, folder: Path, search: Mapping[str, Any], run: str, model: LoggedModel) -> None:
    """Write the model as MLflow loads it: code, signature, example and the model folder, nothing pickled."""
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema

    here = Path(__file__).resolve().parent
    parameters = [
        ParamSpec("beam", DataType.long, int(search["beam"])),
        ParamSpec("alpha", DataType.double, float(search["alpha"])),
    ]
    mlflow.pyfunc.save_model(
        path,
        python_model=here / "serving.py",
        code_paths=[str(here.parents[1] / "nmt")],
        artifacts={"model": str(folder)},
        signature=ModelSignature(
            Schema([ColSpec(DataType.string)]), Schema([ColSpec(DataType.string)]), ParamSchema(parameters)
        ),
        input_example=EXAMPLE,
        pip_requirements=requirements(),
        mlflow_model=Model(artifact_path=model.artifact_location, run_id=run, model_id=model.model_id),
    )


def requirements() -> list[str]:
    """Return the installed versions without their build (`2.13.0+cpu`), which an index may not have."""
    return [f"{name}=={importlib.metadata.version(name).split('+')[0]}" for name in NEEDED]


def _make(client: MlflowClient, name: str, description: str) -> None:
    """Create the registered model if it is missing, and set its description."""
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description=description)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
        client.update_registered_model(name, description)


def point_best(client: MlflowClient, name: str, by: Scorer, valid_set: str) -> None:
    """Move the alias `best` to the best version, if it is not there."""
    version = best(client.search_model_versions(f"name = '{name}'"), by, valid_set)
    aliases = client.get_registered_model(name).aliases
    if version is not None and str(aliases.get(BEST)) != str(version):
        client.set_registered_model_alias(name, BEST, version)


def best(versions: Sequence[ModelVersion], by: Scorer, valid_set: str) -> str | None:
    """Return the version with the highest score on the paper's validation set, never on a test set.

    That is newstest2013 (Table 3's protocol) or, for trees, section 22. Of equals, the first. While no version was
    scored there, the one with the highest score on `valid_set`: scores on different sets do not compare.
    """
    score = f"{by.key}_valid"
    for compared in (by.papers_set, valid_set):
        scored = [
            (float(version.tags[score]), -int(version.version))
            for version in versions
            if version.tags.get(f"{score}_set") == compared and score in version.tags
        ]
        if scored:
            return str(-max(scored)[1])
    return None
