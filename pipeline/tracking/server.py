"""The MLflow store: where it is, its experiments, and the one run of a configuration and a training.

`$MLFLOW_TRACKING_URI` names the store; the default is mlflow.db in the state root, with artifacts in mlartifacts.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import re
import secrets
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from nmt.common.files import read_yaml, sha256_of
from nmt.errors import InputError, tell
from nmt.task import task_of
from pipeline.config import resolution
from pipeline.config.errors import nearest
from pipeline.config.paths import CONFIG, state_root
from pipeline.tracking import view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from starlette.requests import Request
    from starlette.responses import HTMLResponse
    from starlette.types import ASGIApp, Receive, Scope, Send

PATIENCE = 30.0  # seconds that a stage waits for MLflow in its end
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of MLflow, where the environment has no others."""
CONFIGURATION_TAG, TRAINING_TAG = "wmt.configuration", "wmt.training"
"""Tags by which a run is found again: the hash of results/config.yaml, and the name of the training's state."""

_SECRET = re.compile(r"(?<=://)(?!/)\S*(?=@)|(?<=\?)\S+")
"""User and password of a URI, which may hold an unescaped slash, and its query."""
_SECRET_IN_CODE = re.compile(
    r"(://)(?:[^\s/@\"']+|[^\s/:@\"']*:[^\s@\"']+)(?=@)|(://[^\s?]*\?)[^\s\"']+|"
    r"((?:password|passwd|passphrase|secret|credential|api_?key|access_?key|private_?key|auth_string)[\w-]*"
    r"(?:[\"']\]?\s*[:=,]|\s*[:=])\s*|(?<![a-z])(?:pass|pwd|authorization)(?:[\"']\]?\s*[:=,]|\s*[:=])\s*|"
    r"(?<![a-z])token(?!s)[\w-]*(?:[\"']\]?\s*[:=,]|\s*:[^=\n\"']*=|\s*[:=])\s*(?![\d_]+\b)"
    r"(?=[a-z]{0,2}[\"'(]*[^\s\"'()]{6})(?=[^\s()\[]*\d|[^\n]*[\"']|[^\s()\[.]*[a-z]{12}))"
    r"(?:\"{3}[^\n]*|'{3}[^\n]*|\"[^\"\n]*|'[^'\n]*|[^\n]+)",
    re.IGNORECASE,
)
"""The same in code, where `?` and `@` mean more, and the values of names such as `AWS_SECRET_ACCESS_KEY`. Of names
such as `bos_token`, values of six characters or more that have a digit, quotes or twelve letters in a row."""


def masked(text: str) -> str:
    """Replace users, passwords and queries by `***` in every URI of a text: a URI alone, or a message."""
    return _SECRET.sub("***", text)


def masked_code(patch: str) -> str:
    """Replace credentials by `***` in a patch of code and settings."""
    return _SECRET_IN_CODE.sub(lambda match: f"{match[1] or match[2] or match[3] or ''}***", patch)


def local_uri() -> str:
    # Resolved: a copy of the repository may have a link to the original's state root.
    path = state_root().resolve() / "mlflow.db"
    if re.search("[?%#]", str(path)):
        raise InputError(
            f"{path}: addresses of databases allow no `?`, `%` and `#`: move it, or set WMT_STATE elsewhere"
        )
    return f"sqlite:///{path}"


def uri() -> str:
    """Return the store's address; a relative path of SQLite is below the repository, not below a copy of it."""
    original = Path(os.environ.get("DVC_ROOT", ".")).resolve()
    return re.sub("^sqlite:///(?!/)", f"sqlite:///{original}/", os.environ.get("MLFLOW_TRACKING_URI") or local_uri())


def link(pair: str) -> str:
    """Return the address that shows all runs of a pair. Asks no server."""
    try:
        store = uri()
    except InputError:
        return ""  # what stores the run says so
    if store.startswith("http"):
        scheme, _, rest = store.partition("://")
        ours = os.environ.get("MLFLOW_TRACKING_USERNAME") == "wmt"
        return f"{scheme}://{rest.rpartition('@')[2].rstrip('/')}/{f'wmt-{pair}' if ours else '#/experiments'}"
    if store != local_uri():
        return masked(store)  # `make ui` does not show it
    return f"http://127.0.0.1:{os.environ.get('MLFLOW_PORT') or 5000}/wmt-{pair} (while `make ui` runs)"


def problem(error: BaseException) -> str:
    """Return the first line of an error, with the store's address, for a message."""
    if isinstance(error, InputError):
        return str(error)
    first, *_ = str(error).strip().split("\n")
    return f"MLflow at {masked(uri())}: {masked(first)[:300]}"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep MLflow's own messages out of a stage's output, and its requests short."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


@contextlib.contextmanager
def beside(stage: str, work: Callable[[Callable[[str], None]], object]) -> Iterator[None]:
    """Do `work` in a thread while the block runs; at the end of the block wait for it, `PATIENCE` seconds at most.

    An error of `work` is printed as a warning and stops no stage. `work` gets a function that prints a warning; only
    the first warning is printed.
    """
    warned = False

    def warn(what: str) -> None:
        nonlocal warned
        if not warned:
            # A queued experiment is trained in a copy of the repository.
            copied = Path(os.environ.get("DVC_ROOT", ".")).resolve() != Path.cwd()
            first = f"`dvc exp apply {os.environ.get('DVC_EXP_NAME')}`, then " if copied else ""
            tell(f"{stage}: tracking: {what}; {first}`wmt publish` completes the run")
        warned = True

    def run() -> None:
        with quiet():
            try:
                work(warn)
            except Exception as error:
                warn(problem(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join(PATIENCE)
        if thread.is_alive():
            warn(masked(f"MLflow at {uri()} did not take everything in {PATIENCE:g} s"))


@contextlib.contextmanager
def opening() -> Iterator[None]:
    """Let one process at a time open the store or add to it. The first makes its tables; only its user may read it."""
    root = state_root().resolve()
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / "mlflow.lock"):
        if uri() == local_uri():
            (root / "mlflow.db").touch()
            (root / "mlflow.db").chmod(0o600)
            (root / "mlartifacts").mkdir(exist_ok=True)
            (root / "mlartifacts").chmod(0o700)
        yield


def connect() -> MlflowClient:
    from mlflow import MlflowClient, set_tracking_uri

    # The model registry reads the address of the whole process.
    set_tracking_uri(uri())
    client = MlflowClient()
    with opening():
        client.search_experiments(max_results=1)
    return client


def mlflow_app() -> ASGIApp:
    """Return MLflow's server of the local store behind a login: an ASGI factory, for `uvicorn --factory`.

    User and password are those of MLflow's clients in the environment. MLflow's own basic-auth app would need a
    database of users, and accepts requests from the pages of all ports of this machine.
    """
    from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
    from mlflow.server.handlers import initialize_backend_stores
    from starlette.datastructures import Headers
    from starlette.responses import Response
    from starlette.routing import Route

    store, artifacts = local_uri(), str(state_root().resolve() / "mlartifacts")
    os.environ |= {"MLFLOW_TRACKING_URI": store, BACKEND_STORE_URI_ENV_VAR: store, ARTIFACT_ROOT_ENV_VAR: artifacts}
    with quiet(), opening():
        try:
            initialize_backend_stores(store, default_artifact_root=artifacts)
        except Exception as error:
            sys.exit(problem(error))
        from mlflow.server.fastapi_app import app
    app.router.routes.insert(0, Route("/wmt-{pair}", _run_table))
    user, password = (os.environ[f"MLFLOW_TRACKING_{name}"] for name in ("USERNAME", "PASSWORD"))
    login = b"Basic " + base64.b64encode(f"{user}:{password}".encode())
    origins = os.environ["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        answer = app
        if scope["type"] != "lifespan":
            headers = Headers(scope=scope)
            if headers.get("origin", origins[0]) not in origins:
                answer = Response("this page may not use MLflow", 403)
            elif not secrets.compare_digest(headers.get("authorization", "").encode(), login):
                answer = Response("`make ui` prints the password", 401, {"WWW-Authenticate": 'Basic realm="MLflow"'})
        await answer(scope, receive, send)

    return guarded


def _run_table(request: Request) -> HTMLResponse:
    """Lead to the run table. MLflow's assistant would open beside it at a browser's first visit, over the columns."""
    from mlflow import MlflowClient
    from starlette.responses import HTMLResponse

    page = view.show(MlflowClient(local_uri()), request.path_params["pair"])
    address = json.dumps(page + (view.CHARTS if "charts" in request.query_params else ""))
    opened = 'localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")'
    return HTMLResponse(f"<script>{opened}; location.replace({address})</script>")


@contextlib.contextmanager
def session() -> Iterator[MlflowClient]:
    """Yield a client of the store for a command; raise InputError where MLflow fails."""
    with quiet():
        try:
            yield connect()
        except (AttributeError, LookupError, TypeError):  # ours
            raise
        except Exception as error:
            raise InputError(problem(error)) from error


def _experiment(client: MlflowClient, pair: str) -> str:
    """Return the id of a pair's experiment, made where it is missing."""
    if experiment := client.get_experiment_by_name(f"wmt-{pair}"):
        if experiment.lifecycle_stage == "deleted":
            store, number = f"MLFLOW_TRACKING_URI={masked(uri())}", experiment.experiment_id
            raise InputError(
                f"MLflow's experiment wmt-{pair} is deleted: restore it with `{store} mlflow experiments restore "
                f"--experiment-id {number}`, or delete it for good with `{store} mlflow gc --backend-store-uri "
                f"{masked(uri())} --experiment-ids {number}`"
            )
        return str(experiment.experiment_id)
    # A server chooses itself. MLflow's own choice for a database is the working directory, perhaps a copy's.
    artifacts = None if uri().startswith(("http", "databricks")) else (state_root().resolve() / "mlartifacts").as_uri()
    tags = {
        "mlflow.experimentKind": "custom_model_development",  # Model training, not GenAI.
        "mlflow.experiment.primaryMetric.name": f"valid_{task_of(pair).key}",  # until `view.show` knows better
    }
    return str(client.create_experiment(f"wmt-{pair}", artifacts, tags))


def _identity(training: str) -> dict[str, str]:
    return {CONFIGURATION_TAG: sha256_of(CONFIG)[:16], TRAINING_TAG: training}


def find_run(client: MlflowClient, training: str) -> Run | None:
    """Return the run of results/config.yaml and of a training, named by its state; None where there is none."""
    query = " and ".join(f"tags.`{key}` = '{value}'" for key, value in _identity(training).items())
    return next(iter(runs(client, query)), None)


def open_run(client: MlflowClient, training: str) -> Run:
    """Return the run of results/config.yaml and of a training, made where it is missing."""
    with opening():
        if existing := find_run(client, training):
            return existing
        configuration = read_yaml(CONFIG)
        run = configuration["run"]
        named = os.environ.get("DVC_EXP_NAME")
        tags = {
            **_identity(training),
            "row": run["row"],
            "mlflow.user": os.environ.get("USER"),
            "DVC_EXP_NAME": named,
            "prefect.flow_run_id": os.environ.get("PREFECT__FLOW_RUN_ID"),
        }
        tags = {key: value for key, value in tags.items() if value}
        name = " ".join(filter(None, (resolution.name(configuration), named)))
        return client.create_run(_experiment(client, run["pair"]), tags=tags, run_name=name)


def runs(client: MlflowClient, query: str = "") -> list[Run]:
    """Return the runs of all pairs that fit a query, the newest first."""
    experiments = [one.experiment_id for one in client.search_experiments(filter_string="name LIKE 'wmt-%'")]
    return list(client.search_runs(experiments, query, max_results=50_000)) if experiments else []


def fetch_artifacts(name: str, files: Sequence[str], folder: Path) -> tuple[str, list[Path]]:
    """Fetch artifacts of the run that `name` names into `folder`; return the run's full name, and where they are.

    A file that the run does not have is not there. Raises InputError where no run or several have this name, in MLflow
    or in DVC, or an id that begins with it, and where MLflow cannot be reached.
    """
    folder.mkdir(parents=True)
    with session() as client:
        named = {f"{run.info.run_name}-{run.info.run_id[:8]}": run for run in runs(client)}

        def fits(full: str, run: Run) -> bool:
            names = {full, run.info.run_name, run.data.tags.get("DVC_EXP_NAME")}
            return name in names or run.info.run_id.startswith(name)

        fitting = [full for full, run in named.items() if name and fits(full, run)]
        if len(fitting) != 1:
            raise InputError(f"{name!r} names {len(fitting)} of MLflow's runs: {nearest(name, fitting or named)}")
        run_id = named[fitting[0]].info.run_id
        for file in {file.path for file in client.list_artifacts(run_id)}.intersection(files):
            client.download_artifacts(run_id, file, str(folder))
    return fitting[0], [folder / file for file in files]
