"""`make serve` with real servers: who may use them, and what is left when they end in any way."""

from __future__ import annotations

import http.client
import os
import re
import signal
import stat
import subprocess
import sys
import time

import psutil
import pytest
from clones import SHRUNKEN, Clone
from orchestra import Orchestra, until

from pipeline.orchestration.services import SHORT

pytestmark = pytest.mark.timeout(900)

LONG = {**SHRUNKEN["training"], "updates": 100_000, "checkpoint_every": 50_000, "validate_every": 50_000}
SEARCH = ("POST", "/api/flow_runs/filter", b"{}")


@pytest.fixture(scope="module")
def orchestra(tmp_path_factory: pytest.TempPathFactory) -> Orchestra:
    clone = Clone(tmp_path_factory.mktemp("clone"))
    clone.params(overrides={**SHRUNKEN, "training": LONG})
    return Orchestra(clone, tmp_path_factory.mktemp("home"))


def status(port: int, request: tuple[str, str, bytes], **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        method, path, body = request
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        answer.read()
        assert answer.getheader("Access-Control-Allow-Origin") not in {"*", "null", "http://evil.example"}
        return answer.status
    finally:
        connection.close()


def typed_elsewhere(orchestra: Orchestra, *words: str) -> subprocess.CompletedProcess[str]:
    """`prefect` typed in another folder, in an environment that has the file which `make setup` installs there."""
    code = f"import site, sys; site.addsitedir({str(orchestra.clone.folder / 'infra')!r}); sys.argv[0] = 'prefect'\n"
    return subprocess.run(
        [sys.executable, "-c", code + "from prefect.cli import app; app()", *words],
        cwd=orchestra.home,
        env=orchestra.environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def test_who_may_use_them_and_a_second_ctrl_c_does_not_wait(orchestra: Orchestra) -> None:
    process = orchestra.start()
    try:
        login = orchestra.clone.folder / "work/prefect/login.json"
        assert stat.S_IMODE(login.stat().st_mode) == 0o600
        assert orchestra.login()["PREFECT_API_AUTH_STRING"] in orchestra.log.read_text()

        prefect, mlflow = orchestra.prefect, orchestra.mlflow
        known = {"Authorization": orchestra.authorization()}
        assert status(prefect, SEARCH, **known) == 200
        assert status(prefect, SEARCH, **known, Origin=f"http://localhost:{prefect}") == 200
        assert status(prefect, SEARCH) == 401
        assert status(prefect, SEARCH, Authorization="Basic d210OndybW9uZw==") == 401
        assert status(prefect, SEARCH, **known, Host="evil.example") == 400
        assert status(prefect, SEARCH, **known, Host=f"evil.example:{prefect}") == 400
        assert status(prefect, SEARCH, **known, Origin="http://evil.example") == 403
        assert status(prefect, SEARCH, **known, Origin="null") == 403
        asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        assert status(prefect, ("OPTIONS", SEARCH[1], b""), Origin="http://evil.example", **asked) == 403
        search = ("POST", "/api/2.0/mlflow/experiments/search", b'{"max_results": 1}')
        assert status(mlflow, search) == 200
        assert status(mlflow, search, Host="evil.example") == 403
        assert status(mlflow, search, Origin="http://evil.example") == 403

        again = orchestra.clone.run(sys.executable, "-m", "pipeline.cli", "ui")
        assert (again.returncode, again.stderr.count("\n")) == (1, 1)

        typed = typed_elsewhere(orchestra, "deployment", "run", "wmt-en-de", "-p", "row=sample", "-p", "target=train")
        assert typed.returncode == 0, typed.stdout + typed.stderr
        identity = re.findall(r"UUID: (\S+)", typed.stdout)[0]
        until(lambda: orchestra.trained(5), "training to begin")
        assert not list(orchestra.home.glob("prefect/*.db"))

        # It cannot save its state or report, so that nothing but the second Ctrl-C ends it for a minute and more.
        for pid in [*orchestra.at_work("-m nmt.training.trainer"), *orchestra.at_work("-m prefect.engine")]:
            psutil.Process(pid).suspend()

        def twice() -> None:
            process.send_signal(signal.SIGINT)
            until(lambda: not orchestra.at_work("prefect", "worker", "start", "-m prefect"), "the end of the worker")
            process.send_signal(signal.SIGINT)

        assert orchestra.ends(process, twice) == 0
        assert not login.exists()
        assert orchestra.on_disk(identity)[0] == "RUNNING"
        typed = typed_elsewhere(orchestra, "deployment", "run", "wmt-en-de")
        assert (typed.returncode, typed.stdout) == (1, "")
        assert re.fullmatch(r"prefect: no server answers: run `make serve` in .*\n", typed.stderr)
    finally:
        orchestra.kill(process)


def test_a_start_reports_what_died_a_worker_ends_its_runs_and_a_kill_leaves_nothing(orchestra: Orchestra) -> None:
    process = orchestra.start()
    try:
        (identity,) = [run["id"] for run in orchestra.call("flow_runs/filter", {})]
        run = orchestra.run(identity)
        assert (run["state_type"], run["state_name"]) == ("CRASHED", "Crashed")
        assert "resumes" in run["state"]["message"]

        (worker,) = orchestra.at_work("-m prefect worker start")
        identity = orchestra.deploy(target="train")
        until(lambda: orchestra.stages(identity), "the first stage")
        until(lambda: time.time() - psutil.Process(worker).create_time() > SHORT + 1, "a worker that lived for a while")
        os.kill(worker, signal.SIGTERM)
        assert orchestra.ended(identity)["state_type"] == "CRASHED"
        until(lambda: orchestra.at_work("-m prefect worker start") not in ([worker], []), "another worker")

        assert orchestra.ends(process, process.kill) == -signal.SIGKILL
    finally:
        orchestra.kill(process)
