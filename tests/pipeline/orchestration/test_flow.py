"""The flows' names and parameters, and the devices that a stage waits for; tests/end_to_end has the runs themselves."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from pipeline.config import graph
from pipeline.config.rows import Pair
from pipeline.orchestration import parameters
from pipeline.orchestration.parameters import Parameters

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def flow() -> Any:
    """The module of the flows. It imports Prefect, which takes a second that collecting tests need not."""
    from pipeline.orchestration import flow

    return flow


def test_every_pair_has_a_flow_and_every_deployment_one_of_them(flow: Any) -> None:
    from prefect.utilities.importtools import import_object

    assert [each.name for each in flow.FLOWS] == ["wmt-en-de", "wmt-en-fr", "parse-en"] == list(flow.PAIRS)
    assert tuple(flow.PAIRS.values()) == get_args(Pair)
    deployments = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["deployments"]
    for each, deployment in zip(flow.FLOWS, deployments, strict=True):
        assert deployment["name"] == each.name
        assert import_object(deployment["entrypoint"]) is each
        assert deployment["entrypoint"] == f"{each.fn.__module__}.{each.fn.__name__}"
        assert list(each.parameters.properties) == ["row", "corpus", "seed", "overrides", "target", "force"]
        assert all("description" in parameter for parameter in each.parameters.properties.values())


def test_the_form_offers_the_rows_corpora_and_stages_of_the_pair_and_has_defaults(flow: Any) -> None:
    translates, parses = (each.parameters.properties for each in (flow.wmt_en_fr, flow.parse_en))
    assert {"base", "big", "C-N2", "sample"} < set(translates["row"]["enum"])
    assert {"parse-wsj", "parse-semi", "parse-small", "parse-sample"} <= set(parses["row"]["enum"])
    assert not set(translates["row"]["enum"]) & set(parses["row"]["enum"])
    assert {"sample", "wmt14", "wmt16-t2t"} <= set(translates["corpus"]["enum"])
    assert {"sample-trees", "wsj", "semi"} <= set(parses["corpus"]["enum"])
    assert not set(translates["corpus"]["enum"]) & set(parses["corpus"]["enum"])
    assert translates["target"]["enum"] == list(graph.stages(ROOT / "dvc.yaml"))
    defaults = {name: parameter["default"] for name, parameter in parses.items()}
    assert defaults == {
        "row": "parse-sample",
        "corpus": "sample-trees",
        "seed": 1,
        "overrides": {},
        "target": "report",
        "force": False,
    }
    assert "big: Transformer (big)" in translates["row"]["description"]


@pytest.mark.parametrize("wrong", [{"row": "C-N3"}, {"corpus": "wsj"}, {"seed": -1}, {"target": "trian"}])
def test_a_wrong_value_is_refused_before_the_run_begins(flow: Any, wrong: dict[str, Any]) -> None:
    from prefect.exceptions import ParameterTypeError
    from prefect.utilities.callables import get_call_parameters

    with pytest.raises(ParameterTypeError):
        flow.wmt_en_de.validate_parameters(get_call_parameters(flow.wmt_en_de.fn, (), wrong))


def test_the_defaults_are_those_of_params_yaml_where_they_fit_the_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameters, "ROOT", tmp_path)
    (tmp_path / "data/catalog").mkdir(parents=True)
    for name, content in (
        ("sample", "pairs: {en-de: {}}"),
        ("mine", "extends: sample"),
        ("broken", "["),
        ("a", "extends: a"),
    ):
        (tmp_path / f"data/catalog/{name}.yaml").write_text(content)
    (tmp_path / "params.yaml").write_text("{row: base, pair: en-de, corpus: mine, seed: 7}")
    found = Parameters("en-de")
    assert (found.row, found.corpus, found.seed) == ("base", "mine", 7)
    assert list(found.corpora) == ["mine", "sample"]
    (tmp_path / "params.yaml").write_text("[")
    found = Parameters("en-de")
    assert (found.row, found.corpus, found.seed) == ("sample", "sample", 1)


def nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, ["GPU-1a", "GPU-2b"]), ("1", ["GPU-2b"]), ("GPU-1", ["GPU-1a"]), ("", []), ("0, 1", ["GPU-1a", "GPU-2b"])],
)
def test_the_gpus_are_those_that_cuda_shows(
    flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]
) -> None:
    nvidia_smi(tmp_path, "echo GPU-1a; echo GPU-2b")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert flow.gpu_ids() == found


@pytest.mark.parametrize("script", ["exec sleep 600", "exit 9"])
def test_without_an_answer_of_the_driver_there_is_no_gpu(
    flow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(flow, "NVIDIA_SMI_TIMEOUT", 0.5)
    started = time.monotonic()
    assert flow.gpu_ids() == []
    assert time.monotonic() - started < 60


class LostRun:
    """A run whose supervisor dies."""

    def __init__(self, events: list[str]) -> None:
        self.events, self.log = events, print

    def repro(self, name: str, force: bool, tick: Callable[[], None]) -> str:
        raise ChildProcessError("the process that runs DVC died, status -9")

    def close(self) -> None:
        self.events.append("ended")


def test_a_device_is_free_after_the_processes_of_a_failed_stage_have_ended(
    flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    @contextmanager
    def slots(run: object, name: str) -> Iterator[None]:
        events.append("taken")
        try:
            yield
        finally:
            events.append("free")

    monkeypatch.setattr(flow, "slots_for", slots)
    monkeypatch.setattr(flow.artifacts, "progress", lambda *_: nullcontext())
    monkeypatch.setattr(flow, "get_run_logger", lambda: logging.getLogger("flow"))
    lost: Any = LostRun(events)
    state = flow.stage_task(lost, "train", force=False).fn()
    assert (state.type.value, state.message) == ("FAILED", "train: the process that runs DVC died, status -9")
    assert events == ["taken", "ended", "free"]
