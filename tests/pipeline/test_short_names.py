"""The names of deployments on Prefect's command line."""

from __future__ import annotations

import pytest

from pipeline.short_names import COMMANDS, FLAGS, NAMES, long_name


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("deployment run wmt-en-de -p row=big", "deployment run wmt-en-de/wmt-en-de -p row=big"),
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
def test_a_short_name_is_written_out(typed: str, meant: str) -> None:
    assert long_name(["prefect", *typed.split()]) == ["prefect", *meant.split()]


def test_prefects_options_are_those_we_know() -> None:
    """Those that take no value, and those whose value is a deployment."""
    from prefect.cli.deployment import deployment_app

    schedule = deployment_app["schedule"]
    known = [deployment_app[name] for name in COMMANDS if name != "schedule"]
    known += [schedule[name] for name in schedule if not name.startswith("-")]
    flags, names = {"--prompt"}, set()
    for command in known:
        for argument in command.assemble_argument_collection():
            positive = {name for name in argument.names if not name.startswith("--no-")}
            if argument.is_flag():
                flags |= positive
            elif argument.index == 0:
                names |= positive
    assert flags == set(FLAGS)
    assert names == set(NAMES)
