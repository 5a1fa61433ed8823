import json
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from ports import free_port

from pipeline.flows import services


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("deployment run wmt-en-de -p row=big", "deployment run wmt-en-de/wmt-en-de -p row=big"),
        ("deployment run -p row=big parse-en", "deployment run -p row=big parse-en/parse-en"),
        ("--no-prompt deployment run wmt-en-fr", "--no-prompt deployment run wmt-en-fr/wmt-en-fr"),
        ("deployment run mine/mine --tag parse-en", "deployment run mine/mine --tag parse-en"),
        ("deployment schedule clear -y wmt-en-de", "deployment schedule clear -y wmt-en-de/wmt-en-de"),
        *((same, same) for same in ("deployment run wmt-en-de/nightly", "deployment run other", "deployment ls", "")),
        ("flow-run inspect wmt-en-de", "flow-run inspect wmt-en-de"),
    ],
)
def test_a_short_name_is_written_out(typed: str, meant: str) -> None:
    from pipeline.flows import flow, prefect_plugin  # Prefect takes a second, which collecting tests need not.

    assert prefect_plugin.long_names(["prefect", *typed.split()]) == ["prefect", *meant.split()]
    assert tuple(one_flow.name for one_flow in flow.FLOWS) == prefect_plugin.NAMES


def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str | None, command: str) -> Any:
    from prefect.plugins import HookContext

    from pipeline.flows import prefect_plugin

    monkeypatch.setenv("WMT_STATE", str(tmp_path))
    monkeypatch.setattr(services, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", command.split())
    return prefect_plugin.setup_environment(ctx=HookContext("3", url, logging.getLogger))


def test_commands_find_the_server_and_others_get_no_password(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}/api"
        settings = {"PREFECT_API_URL": address, "PREFECT_API_AUTH_STRING": "wmt:secret"}
        (tmp_path / services.LOGIN).parent.mkdir()
        (tmp_path / services.LOGIN).write_text(json.dumps(settings))
        for url in (None, address):
            assert hook(monkeypatch, tmp_path, url, "/bin/prefect flow-run ls").env == settings
        cloud = "https://api.prefect.cloud/api/accounts/1"
        assert hook(monkeypatch, tmp_path, cloud, "prefect deployment run wmt-en-de").env == settings, "of a profile"
        assert hook(monkeypatch, tmp_path, cloud, "prefect flow-run ls") is None
        monkeypatch.setenv("PREFECT_API_URL", "http://example.org/api")
        assert hook(monkeypatch, tmp_path, "http://example.org/api", "prefect deployment run wmt-en-de") is None
        assert sys.argv[-1] == "wmt-en-de/wmt-en-de"
        assert hook(monkeypatch, tmp_path, None, "python -m pytest") is None


def test_no_server_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where one was killed, and has left its login."""
    address = f"http://127.0.0.1:{free_port()}/api"
    said = f"prefect: no server answers: run `make serve` in {tmp_path} first, or set PREFECT_API_URL"
    for _ in range(2):
        with pytest.raises(SystemExit) as error:
            hook(monkeypatch, tmp_path, None, "prefect deployment run wmt-en-de")
        assert error.value.code == said
        (tmp_path / services.LOGIN).parent.mkdir(exist_ok=True)
        (tmp_path / services.LOGIN).write_text(json.dumps({"PREFECT_API_URL": address}))
    assert hook(monkeypatch, tmp_path, None, "prefect server start") is None
