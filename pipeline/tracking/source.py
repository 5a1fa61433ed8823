"""What a run's numbers rest on: commit and differences, libraries, hardware."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nmt.common import cpu
from nmt.common.files import read_yaml
from pipeline.config import machine
from pipeline.config.git import CODE, code, difference, git
from pipeline.config.paths import CONFIG
from pipeline.tracking import server
from pipeline.tracking.server import masked, masked_code

if TYPE_CHECKING:
    from mlflow import MlflowClient

LIBRARIES = (
    *("torch", "numpy", "pyarrow", "safetensors", "sacremoses", "subword-nmt", "sentencepiece", "sacrebleu"),
    *("dvc", "mlflow", "prefect"),
)


def tags() -> dict[str, str]:
    """Return the code and the libraries at hand as tags of a run."""
    versions = [f"python {platform.python_version()}"]
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            versions.append(f"{name} {importlib.metadata.version(name)}")
    code_tags, address = code(), ""
    with suppress(OSError):
        address = masked(git("remote", "get-url", "origin").decode().strip())
    return {
        **code_tags,
        "versions": ", ".join(versions),
        "mlflow.source.git.commit": code_tags["commit"],
        "mlflow.source.name": address or Path.cwd().name,
    }


def send(client: MlflowClient, run: str) -> None:
    """Send the patch where tracked files differ from the commit; then set the tags of code and libraries."""
    from mlflow.entities import RunTag

    with suppress(OSError):  # No repository, or no git.
        if patch := difference(*CODE):
            client.log_text(run, masked_code(patch.decode(errors="replace")), "differences.patch")
    client.log_batch(run, tags=[RunTag(key, value) for key, value in tags().items()])


def hardware() -> str:
    """Return this machine's cores, CPU, memory, GPUs and system."""
    gpus = "; ".join(f"{gpu.name}, {gpu.memory}" for gpu in machine.gpus()) or "none"
    cores = f"{os.cpu_count()} cores of {cpu.processor()}, {machine.main_memory() / 2**30:.1f} GiB"
    return f"{cores}; GPUs: {gpus}; {platform.platform()}"


def provenance() -> dict[str, str]:
    """Return what names the run: commit, experiment, Prefect's run, MLflow's page, files that differ, their patch."""
    code_tags = code()
    names = {
        "commit": code_tags["commit"][:12],
        "DVC experiment": os.environ.get("DVC_EXP_NAME", ""),
        "Prefect run": os.environ.get("PREFECT__FLOW_RUN_ID", ""),
        "all runs side by side:": server.link(read_yaml(CONFIG)["run"]["pair"]),
    }
    if code_tags["differing_files"] != "none":
        names["changed or new, and not in the commit:"] = code_tags["differing_files"]
    with suppress(OSError):
        names["patch"] = masked_code(difference(*CODE).decode(errors="replace"))
    return {what: name for what, name in names.items() if name}
