"""The flows with a real Prefect server, worker and MLflow, as `make serve` starts them: who may use them, a run on a
tiny corpus, one that is cancelled, and what is left when the servers end.

All tests share the servers. The training that is cancelled has no end, so that this does not come too late; those of
tests/soak end, with the right bits.
"""

import base64
import json
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
from agents import until
from browser import PATIENCE, chromium
from clones import STAGES, TINY, Clone, write_tiny_corpus
from orchestra import Orchestra
from tracked import connected, recorded

from pipeline.tracking import view

pytestmark = pytest.mark.timeout(900)

ENDLESS = {"training": {"updates": 100_000, "checkpoint_every": 50_000, "validate_every": 50_000}}
TRAINER = "nmt.training.loop"


@pytest.fixture(scope="module")
def orchestra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orchestra]:
    """With the services, which a test ends."""
    clone = Clone(tmp_path_factory.mktemp("clone"))
    # A change that is not committed travels with the runs; this one says where their code stands.
    clone.params(overrides=TINY)
    path = clone.folder / "pipeline/tracking/publish.py"
    path.write_text(path.read_text() + '\n\nprint("code of", __file__)\n')
    # Git does not track the catalog, and the flows' form offers it.
    write_tiny_corpus(clone.folder)
    clone.run("git", "add", "data/tiny.tar")
    orchestra = Orchestra(clone, tmp_path_factory.mktemp("home"))
    process = orchestra.start()
    try:
        yield orchestra
    finally:
        orchestra.kill(process)


@pytest.fixture(scope="module")
def first(orchestra: Orchestra, request: pytest.FixtureRequest) -> str:
    """The id of a run that `prefect` began by a short name, in another folder, with a file of `make setup`."""
    # Not an argument: of the session, it would be made before the servers start.
    finished: Clone = request.getfixturevalue("finished")
    local = orchestra.clone.folder / ".dvc/config.local"
    local.write_text(f"[cache]\n    dir = {finished.folder / '.dvc/cache'}\n")
    words = ("deployment", "run", "-p", "row=sample", "-p", "corpus=tiny", "wmt-en-de")
    code = f"import site, sys; site.addsitedir({str(orchestra.clone.folder / 'infra')!r}); sys.argv[0] = 'prefect'\n"
    command = [sys.executable, "-c", code + "from prefect.cli import app; app()", *words]
    home, variables = orchestra.home, orchestra.environment()
    typed = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, check=False)
    assert typed.returncode == 0, typed.stdout + typed.stderr
    return re.findall(r"UUID: (\S+)", typed.stdout)[0]


def status(port: int, request: tuple[str, str, bytes], **headers: str) -> int:
    method, path, body = request
    headers = {"Content-Type": "application/json", **headers}
    answer = httpx.request(method, f"http://127.0.0.1:{port}{path}", content=body, headers=headers, timeout=60)
    assert answer.headers.get("Access-Control-Allow-Origin") not in {"*", "null", "http://evil.example"}
    return answer.status_code


def test_only_this_machine_with_the_password_and_its_own_pages_may_use_them(orchestra: Orchestra, first: str) -> None:
    assert orchestra.login()["PREFECT_API_AUTH_STRING"] in orchestra.log.read_text()
    search = ("POST", "/api/flow_runs/filter", b"{}")
    prefect, mlflow = orchestra.prefect, orchestra.mlflow
    known = {"Authorization": orchestra.authorization()}
    assert status(prefect, search, **known) == 200
    assert status(prefect, search, **known, Origin=f"http://localhost:{prefect}") == 200
    assert status(prefect, search) == 401
    assert status(prefect, search, Authorization="Basic d210OndybW9uZw==") == 401
    # Prefect lets other pages send, but their browser may not give them the answer, and they lack the password.
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin in ("http://evil.example", "null"):
        assert status(prefect, ("OPTIONS", search[1], b""), Origin=origin, **asked) == 400
    search = ("POST", "/api/2.0/mlflow/experiments/search", b'{"max_results": 1}')
    assert status(mlflow, search) == status(mlflow, search, Authorization="Basic d210OndybW9uZw==") == 401
    assert status(mlflow, search, **known) == 200
    assert status(mlflow, search, **known, Origin=f"http://localhost:{mlflow}") == 200
    for host in ("evil.example", f"10.evil.example:{mlflow}"):
        assert status(mlflow, search, **known, Host=host) == 403
    for origin in (f"http://localhost:{prefect}", "http://localhost:8888", "http://evil.example", "null"):
        assert status(mlflow, search, **known, Origin=origin) == 403
    # Another user would read files by an experiment whose artifacts are their folder, with a link to the owner's.
    api = "/ajax-api/2.0/mlflow"
    for method, path in (
        ("GET", "/health"), ("POST", f"{api}/experiments/create"), ("POST", f"{api}/runs/create"),
        ("GET", "/get-artifact?path=id_rsa&run_uuid=0"), ("POST", f"{api}/upload-artifact?path=id_rsa&run_uuid=0"),
        ("GET", "/ajax-api/3.0/mlflow/assistant/config"),
    ):  # fmt: skip
        assert status(mlflow, (method, path, b"{}")) == 401, path
    assert not list(orchestra.home.glob("prefect/*.db"))
    work = orchestra.clone.folder / "work"
    modes = [stat.S_IMODE((work / name).stat().st_mode) for name in ("mlflow.db", "mlartifacts", "prefect")]
    assert modes == [0o600, 0o700, 0o700]


def test_prefects_pages_ask_no_other_host(orchestra: Orchestra) -> None:
    with chromium() as browser:
        page, asked = browser.new_page(), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"http://127.0.0.1:{orchestra.prefect}/")
        login = base64.b64encode(orchestra.login()["PREFECT_API_AUTH_STRING"].encode()).decode()
        page.evaluate("(login) => localStorage.setItem('prefect-password', login)", login)
        for path in ("dashboard", "deployments"):
            page.goto(f"http://127.0.0.1:{orchestra.prefect}/{path}", wait_until="networkidle")
        assert page.get_by_text("wmt-en-de").count()
    others = [url for url in asked if not url.startswith((f"http://127.0.0.1:{orchestra.prefect}/", "data:", "blob:"))]
    assert others == []


def test_the_first_page_compares_runs(orchestra: Orchestra) -> None:
    """Of French, as the flows here translate into German."""
    work = orchestra.clone.folder / "work"
    with connected(work / "mlflow.db") as client:
        experiment = client.create_experiment("wmt-en-fr", (work / "mlartifacts").as_uri())
        for name, bleu in (("lower", 22.1), ("higher", 89.2)):
            run = client.create_run(experiment, run_name=name).info.run_id
            for key, value in {"row": "sample", "corpus": "sample", "seed": "2", "updates": name}.items():
                client.log_param(run, key, value)
            client.log_param(run, "settings.model.N", "3" if name == "lower" else "2")
            client.log_param(run, "settings.model.h", "4")
            for update in (10, 20):
                for key in ("loss", "valid_ppl", "grad_norm"):
                    client.log_metric(run, key, 1 / update, step=update)
            client.log_metric(run, "bleu", bleu, step=20)
            for key in ("train_hours", "train_flops_counted"):
                client.set_tag(run, key, "0.03")
            client.set_terminated(run)
        assert view.show(client, "en-cs") == "/"
    user, _, password = orchestra.login()["PREFECT_API_AUTH_STRING"].partition(":")
    with chromium() as browser:
        login: Any = {"username": user, "password": password}
        page = browser.new_context(viewport={"width": 2400, "height": 900}, http_credentials=login).new_page()
        page.set_default_timeout(PATIENCE)
        address = f"http://127.0.0.1:{orchestra.mlflow}/wmt-en-fr"
        page.goto(address)
        page.wait_for_selector("[col-id='metrics.`bleu`'] >> text=89.2")
        headers = page.locator("[role=columnheader][col-id*='.`']")
        headers.nth(9).wait_for()
        columns = headers.evaluate_all("(all) => all.map((one) => one.getAttribute('col-id'))")
        assert {name for name in columns if not name.startswith("attributes.")} == {
            *("metrics.`bleu`", "metrics.`valid_ppl`", "params.`corpus`", "params.`row`", "params.`seed`"),
            *("params.`settings.model.N`", "params.`updates`", "tags.`train_flops_counted`", "tags.`train_hours`"),
        }, "h is the same in both runs"
        names = page.locator("[role=row] [col-id='attributes.`Run Name`'] a").all_text_contents()
        assert names == ["higher", "lower"]
        assert page.get_by_text("Ask questions about your").count() == 0, "MLflow's assistant is closed"
        page.goto(f"{address}?charts")
        page.wait_for_selector("text=Loss, perplexity, score")
        cards = page.get_by_test_id("experiment-view-compare-runs-card")
        cards.nth(2).wait_for()
        assert [card.split("\n")[0] for card in cards.all_inner_texts()][:3] == ["loss", "valid_ppl", "bleu"]


def test_every_stage_is_a_task_and_the_results_come_back_as_an_experiment(orchestra: Orchestra, first: str) -> None:
    """The same BLEU in metrics.json, Prefect and MLflow; the copy is gone."""
    run = orchestra.ended(first, 600)
    assert run["state_type"] == "COMPLETED", orchestra.messages(first)
    name = f"sample-en-de-{first[-8:]}"
    assert run["name"] == name
    assert list(orchestra.how(first).items()) == [(stage, "Cached") for stage in STAGES]
    until(lambda: "dvc exp apply" in orchestra.messages(first), "the last line of the log")
    clone = orchestra.clone
    copy = clone.folder / "work/copies" / name
    assert set(re.findall(r"code of (\S+)", orchestra.messages(first))) == {str(copy / "pipeline/tracking/publish.py")}
    assert not copy.exists()
    # `dvc exp show` takes seconds; Git has the experiments as references.
    assert f"/{name}\n" in clone.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout
    applied = clone.run("dvc", "exp", "apply", name)
    assert applied.returncode == 0, applied.stderr
    metrics = json.loads((clone.folder / "results/metrics.json").read_text())
    assert f" {metrics['bleu']:.1f} (" in orchestra.artifacts(first)["wmt-en-de-sample-bleu"]["data"]
    (mlflow_run,) = (run for run in recorded(clone.folder / "work") if run.data.tags.get("DVC_EXP_NAME") == name)
    assert mlflow_run.info.status == "FINISHED"
    assert mlflow_run.data.metrics["bleu"] == round(metrics["bleu"], 2)


def slots(orchestra: Orchestra) -> tuple[int, int]:
    """The limit of this machine's device, and how many slots are taken."""
    limits = orchestra.call("v2/concurrency_limits/filter", {})
    (limit,) = (limit for limit in limits if limit["name"].startswith("cpu-"))
    return limit["limit"], limit["active_slots"]


def test_a_cancelled_run_stops_its_training_and_a_killed_worker_ends_all(orchestra: Orchestra, first: str) -> None:
    """Runs that wait for each other, and the report of one whose worker is killed: tests/soak/test_flows.py."""
    run = orchestra.deploy(row="sample", corpus="tiny", target="train", overrides=ENDLESS)
    state = until(lambda: orchestra.trained(5), "updates of a training")
    how = [("resolve", "Ran"), *((stage, "Cached") for stage in STAGES[1 : STAGES.index("train")])]
    assert list(orchestra.how(run).items()) == [*how, ("train", "Running")]
    assert slots(orchestra) == (1, 1)
    orchestra.cancel(run)
    assert orchestra.ended(run)["state_type"] == "CANCELLED"
    until((state / "interrupted").exists, "the end of the cancelled training")
    until(lambda: not orchestra.at_work(TRAINER, state.name), "the end of its processes")
    until(lambda: slots(orchestra) == (1, 0), "the slot of the cancelled training")
    assert orchestra.ends(orchestra.process, psutil.Process(orchestra.worker()).kill) == 1
    said = orchestra.log.read_text().strip().split("\n")[-1]
    assert said == "serve: the worker ended with status 137: its output is above, and all others end too"
    assert not (orchestra.clone.folder / "work/prefect/login.json").exists()
