"""The flows' names and parameters, and the devices that a stage waits for; tests/end_to_end has the runs themselves."""

import json
import logging
import os
import shutil
import signal
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from clones import ROOT

from pipeline.config import graph, resolution, rows


@pytest.fixture(scope="module")
def flow() -> Any:
    """The module of the flows. It imports Prefect, which takes a second that collecting tests need not."""
    from pipeline.flows import flow

    return flow


def test_every_pair_has_a_flow_and_every_deployment_one_of_them(flow: Any) -> None:
    from prefect.utilities.callables import get_call_parameters
    from prefect.utilities.importtools import import_object

    assert [one_flow.name for one_flow in flow.FLOWS] == ["wmt", "wmt-en-de", "wmt-en-fr", "parse-en"]
    text = (ROOT / "infra/prefect.yaml").read_text().replace("# schedules:", "schedules:")
    deployments = yaml.safe_load(text)["deployments"]
    for one_flow, deployment in zip(flow.FLOWS, deployments, strict=True):
        assert deployment["name"] == one_flow.name
        assert import_object(deployment["entrypoint"]) is one_flow
        assert deployment["entrypoint"] == f"{one_flow.fn.__module__}.{one_flow.fn.__name__}"
        assert list(one_flow.parameters.properties) == ["pair", "row", "corpus", "seed", "overrides", "target", "force"]
        assert all("description" in parameter for parameter in one_flow.parameters.properties.values())
        (schedule,) = deployment["schedules"]
        one_flow.validate_parameters(get_call_parameters(one_flow.fn, (), schedule["parameters"]))


def test_the_form_offers_the_rows_corpora_and_stages_of_the_pair_and_has_defaults(flow: Any) -> None:
    translates, parses = (one_flow.parameters.properties for one_flow in (flow.wmt_en_fr, flow.parse_en))
    for key, text, trees in (("row", "big", "parse-wsj"), ("corpus", "wmt14", "wsj")):
        assert {text, "sample"} < set(translates[key]["enum"])
        assert trees in parses[key]["enum"]
        assert set(translates[key]["enum"]).isdisjoint(parses[key]["enum"])
    assert translates["target"]["enum"] == list(graph.stages(ROOT / "dvc.yaml"))
    # In the order of the test above.
    defaults = [parameter["default"] for parameter in parses.values()]
    assert defaults == ["en-tree", "parse-sample", "sample-trees", 1, {}, "report", False]


@pytest.mark.parametrize(
    "wrong",
    [
        *({"row": "C-N3"}, {"corpus": "wsj"}, {"seed": -1}, {"target": "trian"}),
        *({"overrides": {"training": 5}}, {"overrides": {"trainin": {}}}),
    ],
)
def test_a_wrong_value_is_refused_before_the_run_begins(flow: Any, wrong: dict[str, Any]) -> None:
    from prefect.exceptions import ParameterTypeError
    from prefect.utilities.callables import get_call_parameters

    with pytest.raises(ParameterTypeError):
        flow.wmt_en_de.validate_parameters(get_call_parameters(flow.wmt_en_de.fn, (), wrong))


def test_params_yaml_gives_the_defaults_that_fit(flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "ROOT", tmp_path)
    (tmp_path / "data/catalog").mkdir(parents=True)
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copy(ROOT / "data/catalog/sample.yaml", tmp_path / "data/catalog")
    for name, content in (("mine", "extends: sample"), ("broken", "["), ("a", "extends: a")):
        (tmp_path / f"data/catalog/{name}.yaml").write_text(content)
    (tmp_path / "params.yaml").write_text("{row: base, pair: en-de, corpus: mine, seed: 7}")
    types, defaults = flow.form("en-de")
    assert defaults == {"pair": "en-de", "row": "base", "corpus": "mine", "seed": 7, "target": "report"}
    assert get_args(types["corpus"]) == ("mine", "sample")
    types, defaults = flow.form(None)
    assert get_args(types["pair"]) == ("de-en", "en-de", "en-fr", "fr-en")
    assert defaults["pair"] == "en-de"
    (tmp_path / "params.yaml").write_text("overrides: {model: {N: 3}}")
    assert flow.of_params() == '{"model": {"N": 3}}'
    (tmp_path / "params.yaml").write_text("[")
    assert flow.of_params() == "{}"
    _, defaults = flow.form("en-de")
    assert defaults == {"pair": "en-de", "row": "sample", "corpus": "sample", "seed": 1, "target": "report"}


def test_the_example_of_overrides_succeeds_with_every_row(flow: Any) -> None:
    """Averaging has the checkpoints that it needs."""
    said = flow.wmt_en_de.parameters.properties["overrides"]["description"]
    assert flow.EXAMPLE in said
    assert f"those of params.yaml, which were {flow.of_params()} when this was deployed." in said
    assert f"overrides={flow.EXAMPLE}" in (ROOT / "pipeline/README.md").read_text()
    for name, row in rows.table().rows.items():
        corpus = "sample-trees" if row.pair == "en-tree" else "sample"
        params = {"row": name, "pair": row.pair, "corpus": corpus, "seed": 1, "overrides": json.loads(flow.EXAMPLE)}
        asked = resolution.resolve(params)
        assert asked.training.updates // asked.training.checkpoint_every >= asked.averaging.last, name


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        (0, "done", ("COMPLETED", "Ran", None)),
        (0, None, ("COMPLETED", "Cached", None)),
        (255, None, ("FAILED", "Failed", "train: the log has the reason")),
        (255, "running", ("FAILED", "Died", "train: the log has the reason")),
        (255, "done", ("FAILED", "Not saved", "train: the log has the reason")),
        (255, "refused", ("FAILED", "Refused", "train: why")),
        (-9, "failed", ("FAILED", "Failed", "train: why")),
    ],
)
def test_a_stages_state_is_what_it_reported_in_this_attempt(
    flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, status: str | None, expected: tuple[Any, ...]
) -> None:
    file = tmp_path / ".dvc/tmp/status/train.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"state": "failed", "message": "an earlier attempt"}')

    def run(copy: Path, command: list[str], log: object) -> int:
        assert command[-4:] == ["repro", "--single-item", "--force", "train"]
        if status is not None:
            message = "" if status in {"running", "done"} else "why"
            file.write_text(json.dumps({"state": status, "message": message}))
        return code

    monkeypatch.setattr(flow.copies, "run", run)
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("flow"))
    task = flow.run_stage
    state = task.fn(tmp_path, "train", force=True)
    assert (state.type.value, state.name, state.message) == expected
    assert task.retry_condition_fn(task, None, state) is (state.name != "Refused")
    assert (task.retries, task.retry_delay_seconds) == (3, [10.0, 60.0, 300.0])


def test_nothing_interrupts_the_report_of_a_flow_whose_worker_was_killed(flow: Any) -> None:
    """The kernel may tell it twice: once for each thread of the worker."""
    from prefect.exceptions import TerminationSignal

    process = os.fork()
    if process == 0:
        flow.end_with_worker()
        try:
            os.kill(os.getpid(), signal.SIGUSR1)
        except TerminationSignal:
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(3)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 3
