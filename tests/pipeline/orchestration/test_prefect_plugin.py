"""The names of deployments on Prefect's command line."""

from __future__ import annotations

import json
import logging
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.orchestration import services
from pipeline.orchestration.services import LOGIN


@pytest.fixture(scope="module")
def plugin() -> Any:
    """The module under test. It imports Prefect, which takes a second that collecting tests need not."""
    from pipeline.orchestration import prefect_plugin

    return prefect_plugin


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("deployment run wmt-en-de -p row=big", "deployment run wmt-en-de/wmt-en-de -p row=big"),
        (
            "deployment run parse-en -p row=parse-sample -p corpus=sample-trees",
            "deployment run parse-en/parse-en -p row=parse-sample -p corpus=sample-trees",
        ),
        ("deployment run -p row=big wmt-en-fr", "deployment run -p row=big wmt-en-fr/wmt-en-fr"),
        ("deployment inspect wmt-en-de", "deployment inspect wmt-en-de/wmt-en-de"),
        ("deployment run wmt-en-de/nightly", "deployment run wmt-en-de/nightly"),
        ("deployment run --flow-run-name wmt-1 wmt-en-de", "deployment run --flow-run-name wmt-1 wmt-en-de/wmt-en-de"),
        ("deployment run --watch wmt-en-de", "deployment run --watch wmt-en-de/wmt-en-de"),
        ("deployment run --no-watch wmt-en-de", "deployment run --no-watch wmt-en-de/wmt-en-de"),
        ("deployment run --param=row=big wmt-en-de", "deployment run --param=row=big wmt-en-de/wmt-en-de"),
        ("deployment run --params - wmt-en-de", "deployment run --params - wmt-en-de/wmt-en-de"),
        ("deployment run --name wmt-en-de", "deployment run --name wmt-en-de/wmt-en-de"),
        ("--no-prompt deployment run wmt-en-de", "--no-prompt deployment run wmt-en-de/wmt-en-de"),
        ("-p work deployment run wmt-en-de", "-p work deployment run wmt-en-de/wmt-en-de"),
        ("deployment schedule clear -y wmt-en-de", "deployment schedule clear -y wmt-en-de/wmt-en-de"),
        ("deployment run other", "deployment run other"),
        ("deployment ls", "deployment ls"),
        ("flow-run inspect wmt-en-de", "flow-run inspect wmt-en-de"),
        ("", ""),
    ],
)
def test_a_short_name_is_written_out(plugin: Any, typed: str, meant: str) -> None:
    assert plugin.long_name(["prefect", *typed.split()]) == ["prefect", *meant.split()]


@pytest.fixture
def answering(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The login of a server that answers, in the state root."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"http://127.0.0.1:{server.getsockname()[1]}/api"
        settings = {"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": "wmt:secret"}
        path = tmp_path / LOGIN
        path.parent.mkdir()
        path.write_text(json.dumps(settings))
        yield settings


def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str | None, command: str) -> Any:
    from prefect.plugins import HookContext

    from pipeline.orchestration import prefect_plugin

    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setattr(services, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", command.split())
    return prefect_plugin.setup_environment(ctx=HookContext("3", url, logging.getLogger))


@pytest.mark.parametrize("command", ["/bin/prefect flow-run ls", "pipeline/orchestration/flow.py serve"])
def test_commands_find_the_server_that_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answering: dict[str, str], command: str
) -> None:
    for url in (None, answering["PREFECT_API_URL"]):
        result = hook(monkeypatch, tmp_path, url, command)
        assert result is not None
        assert result.env == answering


def test_another_server_gets_no_password(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answering: dict[str, str]
) -> None:
    assert hook(monkeypatch, tmp_path, "http://example.org/api", "prefect deployment run wmt-en-de") is None
    assert sys.argv[-1] == "wmt-en-de/wmt-en-de"
    assert hook(monkeypatch, tmp_path, None, "python -m pytest") is None


def test_no_server_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where one was killed, and has left its login."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/api"
    said = f"prefect: no server answers: run `make serve` in {tmp_path} first, or set PREFECT_API_URL"
    for _ in range(2):
        with pytest.raises(SystemExit) as error:
            hook(monkeypatch, tmp_path, None, "prefect deployment run wmt-en-de")
        assert error.value.code == said
        (tmp_path / LOGIN).parent.mkdir(exist_ok=True)
        (tmp_path / LOGIN).write_text(json.dumps({"PREFECT_API_URL": address}))
    assert hook(monkeypatch, tmp_path, None, "prefect server start") is None


def test_prefects_options_are_those_we_know(plugin: Any) -> None:
    """Those that take no value, and those whose value is a deployment."""
    from prefect.cli.deployment import deployment_app

    schedule = deployment_app["schedule"]
    known = [deployment_app[name] for name in plugin.COMMANDS if name != "schedule"]
    known += [schedule[name] for name in schedule if not name.startswith("-")]
    flags, names = {"--prompt"}, set()
    for command in known:
        for argument in command.assemble_argument_collection():
            positive = {name for name in argument.names if not name.startswith("--no-")}
            if argument.is_flag():
                flags |= positive
            elif argument.index == 0:
                names |= positive
    assert flags == set(plugin.FLAGS)
    assert names == set(plugin.NAMES)
