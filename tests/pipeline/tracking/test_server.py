from __future__ import annotations

import base64
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from browser import PATIENCE, chromium
from clones import ROOT
from command_line import refused
from orchestra import until
from ports import free_port
from refusals import check_refusal
from tracked import connected, write_results

from nmt.errors import InputError
from pipeline.flows import services
from pipeline.tracking import server, view


def test_a_run_is_found_by_its_name_its_full_name_or_the_beginning_of_its_id(root: Path, tmp_path: Path) -> None:
    Path("scores.json").write_text("{}")
    with connected(root / "mlflow.db") as client:
        experiment = client.create_experiment("wmt-en-de", (root / "mlartifacts").as_uri())
        one, *same = (client.create_run(experiment, run_name=name).info.run_id for name in ("one", "same", "same"))
        client.log_artifact(one, "scores.json")
        client.log_artifact(one, "scores.json", "other")
        client.set_tag(one, "DVC_EXP_NAME", "lippy-duct")
    for number, name in enumerate(("one", f"one-{one[:8]}", one[:12], "lippy-duct")):
        full, (scores, lines) = server.fetch_artifacts(name, ["scores.json", "sentences.jsonl"], tmp_path / str(number))
        assert (full, scores.read_text(), lines.exists()) == (f"one-{one[:8]}", "{}", False)
        assert [path.name for path in (tmp_path / str(number)).iterdir()] == ["scores.json"], "what was asked for"
    said = check_refusal(r"^'same' names 2 runs \(same-", server.fetch_artifacts, "same", [], tmp_path / "same")
    assert all(run[:8] in said for run in same)
    all_runs = rf"MLflow has same-\w+, same-\w+, one-{one[:8]}$"
    check_refusal(f"^'' names 0 runs: {all_runs}", server.fetch_artifacts, "", [], tmp_path / "none")


LOGIN = {"MLFLOW_TRACKING_USERNAME": "wmt", "MLFLOW_TRACKING_PASSWORD": "secret"}
OWNER = {"Authorization": f"Basic {base64.b64encode(b'wmt:secret').decode()}"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, store: Path) -> Iterator[tuple[str, Path]]:
    """The address of MLflow's server as `make ui` starts it, and its state root."""
    port, state_root = free_port(), tmp_path_factory.mktemp("served")
    shutil.copyfile(store, state_root / "mlflow.db")
    address = f"http://127.0.0.1:{port}"
    variables = {
        **os.environ,
        **LOGIN,
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": f"{address},http://localhost:{port}",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "PYTHONPATH": str(ROOT),
        "WMT_STATE": str(state_root),
    }
    options = f"--host 127.0.0.1 --port {port} --log-level warning --factory pipeline.tracking.server:mlflow_app"
    with subprocess.Popen([sys.executable, "-m", "uvicorn", *options.split()], env=variables) as process:

        def answers() -> bool:
            assert process.poll() is None
            try:
                return httpx.get(f"{address}/health", headers=OWNER).is_success
            except httpx.TransportError:
                return False

        try:
            until(answers, "MLflow", every=0.2)
            yield address, state_root
        finally:
            process.kill()


STRANGER = """
import json, os, sys, urllib.error, urllib.request
address, folder = sys.argv[1:]

def call(path, body=None):
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    request = urllib.request.Request(address + path, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        print(error.code)
        return b""

call("/health")  # Imports what it needs, which the other user may not read.
os.setgroups([]), os.setgid(65534), os.setuid(65534)
api = "/ajax-api/2.0/mlflow/"
made = json.loads(call(api + "experiments/create", {"name": "x", "artifact_location": "file://" + folder}) or "{}")
run = json.loads(call(api + "runs/create", {"experiment_id": made.get("experiment_id", "0")}) or "{}")
run_id = run["run"]["info"]["run_id"] if run else "0"
if run:
    os.mkdir(f"{folder}/{run_id}")
    os.symlink(os.environ["SECRETS"], f"{folder}/{run_id}/artifacts")
print(call(f"/get-artifact?path=id_rsa&run_uuid={run_id}").decode())
call(f"{api}upload-artifact?run_uuid={run_id}&path=authorized_keys", b"mine")
call("/ajax-api/3.0/mlflow/assistant/config")
"""


def test_mlflow_answers_only_the_owner_and_its_own_pages(served: tuple[str, Path], tmp_path: Path) -> None:
    """Another user would read files by an experiment whose artifacts are their folder, with a link to the owner's."""
    address, state_root = served

    def status(**headers: str) -> int:
        search = f"{address}/api/2.0/mlflow/experiments/search"
        return httpx.post(search, json={"max_results": 1}, headers=headers).status_code

    assert status(**OWNER) == 200
    assert status(**OWNER, Origin=address.replace("127.0.0.1", "localhost")) == 200
    assert status() == status(Authorization="Basic d210OndybW9uZw==") == 401
    for origin in ("http://localhost:8888", "http://127.0.0.1:8888", "null", "http://evil.example"):
        assert status(**OWNER, Origin=origin) == 403
    kept = [stat.S_IMODE((state_root / name).stat().st_mode) for name in ("mlflow.db", "mlartifacts")]
    assert kept == [0o600, 0o700]
    if os.getuid() != 0:
        pytest.skip("not tried as a second user: only root can become one")
    owners, others = tmp_path / "owners", Path(f"/tmp/stranger-{os.getpid()}")
    owners.mkdir()
    (owners / "id_rsa").write_text("private")
    (owners / "id_rsa").chmod(0o600)
    others.mkdir()
    try:
        os.chown(others, 65534, 65534)
        command = [sys.executable, "-c", STRANGER, address, str(others)]
        environment = {**os.environ, "SECRETS": str(owners)}
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    finally:
        shutil.rmtree(others)
    assert "private" not in result
    assert not (owners / "authorized_keys").exists()
    assert result.split() == ["401"] * 6


@pytest.mark.parametrize("given", ["sqlite:///{original}/own.db", "sqlite:///own.db", "", "a link"])
def test_records_in_a_copy_outlive_it(root: Path, tmp_path: Path, given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queued experiment of DVC works in a copy, and the experiment's folder of artifacts is kept for ever.

    A copy that others made may have a link to the folder `work`.
    """
    shutil.copyfile(root / "mlflow.db", tmp_path / "own.db")
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "results", copy / "results")
    monkeypatch.chdir(copy)
    monkeypatch.setenv("WMT_STATE", "")
    if given == "a link":
        (copy / "work").symlink_to(root)
        given = ""
    else:
        monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", given.format(original=tmp_path))
    with server.session() as client:
        run = server.open_run(client, "state")
        client.log_text(run.info.run_id, "kept", "file")
    shutil.rmtree(copy)
    monkeypatch.chdir(tmp_path)
    with connected((tmp_path if given else root) / ("own.db" if given else "mlflow.db")) as client:
        stored = client.get_run(run.info.run_id)
    kept = Path(stored.info.artifact_uri.removeprefix("file://")) / "file"
    assert kept.read_text() == "kept"
    assert kept.is_relative_to(tmp_path / "work/mlartifacts")


def test_a_fault_of_ours_is_not_called_mlflows(root: Path) -> None:
    with pytest.raises(KeyError), server.session():
        raise KeyError("ours")
    with pytest.raises(InputError), server.session() as client:
        client.get_run("0" * 32)


@pytest.mark.parametrize("character", "?%#")
def test_a_path_that_no_address_of_a_database_allows_is_refused(
    tmp_path: Path, character: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"a{character}20b").mkdir()
    monkeypatch.chdir(tmp_path / f"a{character}20b")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    check_refusal("addresses of databases allow no", server.uri)
    check_refusal("", services.serve, worker=False)


def test_a_deleted_experiment_and_tables_of_another_version_are_told_with_the_command(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connected(root / "mlflow.db") as client:
        number = client.create_experiment("wmt-en-de", (root / "mlartifacts").as_uri())
        client.delete_experiment(number)
    write_results()
    message = refused("publish")
    assert f"wmt-en-de is deleted: restore it with `MLFLOW_TRACKING_URI=sqlite:///{root}/mlflow.db mlflow" in message
    assert f"mlflow gc --backend-store-uri sqlite:///{root}/mlflow.db --experiment-ids {number}`" in message
    assert f"experiments restore --experiment-id {number}`" in message
    old = root / "old/mlflow.db"  # MLflow checks a database once in a process.
    old.parent.mkdir()
    shutil.copyfile(root / "mlflow.db", old)
    with sqlite3.connect(old) as database:
        database.execute("UPDATE alembic_version SET version_num = '451aebb31d03'")
    monkeypatch.setenv("WMT_STATE", str(old.parent))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")  # MLflow has set it.
    assert f"then run `mlflow db upgrade sqlite:///{old}`" in refused("publish")


def test_the_first_page_compares_runs(served: tuple[str, Path]) -> None:
    address, state_root = served
    with connected(state_root / "mlflow.db") as client:
        experiment = client.create_experiment("wmt-en-de", (state_root / "mlartifacts").as_uri())
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
        assert view.show(client, "en-fr") == "/"
    with chromium() as browser:
        login: Any = {"username": "wmt", "password": "secret"}
        page = browser.new_context(viewport={"width": 2400, "height": 900}, http_credentials=login).new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{address}/wmt-en-de")
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
        page.goto(f"{address}/wmt-en-de?charts")
        page.wait_for_selector("text=Loss, perplexity, score")
        cards = page.get_by_test_id("experiment-view-compare-runs-card")
        cards.nth(2).wait_for()
        assert [card.split("\n")[0] for card in cards.all_inner_texts()][:3] == ["loss", "valid_ppl", "bleu"]


@pytest.mark.parametrize(
    ("address", "user", "expected"),
    [
        ("", "", "http://127.0.0.1:5000/wmt-en-de (while `make ui` runs)"),
        ("http://127.0.0.1:5001", "wmt", "http://127.0.0.1:5001/wmt-en-de"),
        ("https://me:secret@mlflow.example.org/", "", "https://mlflow.example.org/#/experiments"),
        ("postgresql://wmt:secret@db/mlflow", "", "postgresql://***@db/mlflow"),
    ],
)
def test_where_runs_are(root: Path, monkeypatch: pytest.MonkeyPatch, address: str, user: str, expected: str) -> None:
    for name, value in (("TRACKING_URI", address), ("TRACKING_USERNAME", user), ("PORT", "")):
        monkeypatch.setenv(f"MLFLOW_{name}", value)
    assert server.link("en-de") == expected
