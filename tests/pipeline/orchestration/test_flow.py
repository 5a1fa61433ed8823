"""The flows' names and parameters, and the devices that a stage waits for; tests/end_to_end has the runs themselves."""

from __future__ import annotations

import inspect
import time
from pathlib import Path
from typing import get_args

import pytest
import yaml
from prefect.utilities.importtools import import_object

from pipeline.config.rows import Pair
from pipeline.orchestration import flow

ROOT = Path(__file__).resolve().parents[3]


def test_every_pair_has_a_flow_and_every_deployment_one_of_them() -> None:
    assert [each.name for each in flow.FLOWS] == ["wmt-en-de", "wmt-en-fr", "parse-en"] == list(flow.PAIRS)
    assert tuple(flow.PAIRS.values()) == get_args(Pair)
    deployments = yaml.safe_load((ROOT / "infra/prefect.yaml").read_text())["deployments"]
    for each, deployment in zip(flow.FLOWS, deployments, strict=True):
        assert deployment["name"] == each.name
        assert import_object(deployment["entrypoint"]) is each
        assert deployment["entrypoint"] == f"{each.fn.__module__}.{each.fn.__name__}"
        assert list(each.parameters.properties) == ["row", "overrides", "target", "force", "corpus", "seed"]
        assert all("description" in parameter for parameter in each.parameters.properties.values())
        assert not inspect.signature(each.fn).parameters["force"].default


def nvidia_smi(folder: Path, script: str) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("visible", "found"),
    [(None, ["GPU-1a", "GPU-2b"]), ("1", ["GPU-2b"]), ("GPU-1", ["GPU-1a"]), ("", []), ("0, 1", ["GPU-1a", "GPU-2b"])],
)
def test_the_gpus_are_those_that_cuda_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: list[str]
) -> None:
    nvidia_smi(tmp_path, "echo GPU-1a; echo GPU-2b")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert flow.gpu_ids() == found


@pytest.mark.parametrize("script", ["exec sleep 600", "exit 9"])
def test_without_an_answer_of_the_driver_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    nvidia_smi(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(flow, "NVIDIA_SMI_TIMEOUT", 0.5)
    started = time.monotonic()
    assert flow.gpu_ids() == []
    assert time.monotonic() - started < 60
