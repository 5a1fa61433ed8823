"""DVC's remote in an S3 store whose settings are wrong: what the user reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from clones import ROOT
from stores import BUCKET, rclone

FORBIDDEN = "Forbidden: An error occurred (403)"
WRONG = "a-wrong-secret-of-mine"
PUSHES = f"""
import sys
from dvc.cli import main
for words in ("init --no-scm --quiet", "add result --quiet", "remote add --default store s3://{BUCKET}/dvc --quiet"):
    assert main(words.split()) == 0
sys.exit(main(["push"]))
"""
"""Pushes by DVC's command line in one process: it takes longer to import than to run."""


def test_dvc_answers_a_wrong_secret_with_a_403_that_recover_explains(tmp_path: Path) -> None:
    (tmp_path / "result").write_text("of a run")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "AWS_"))}
    with rclone(tmp_path / "buckets") as store:
        environment |= {**store.environment(), "AWS_SECRET_ACCESS_KEY": WRONG}
        result = subprocess.run(
            [sys.executable, "-c", PUSHES], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
    assert result.returncode == 255
    assert FORBIDDEN in result.stderr
    assert WRONG not in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("call", "done"),
    [
        ("fetch", ["remote", "fetch"]),
        ("push", ["remote", "fetch", "repro", "push"]),
    ],
)
def test_recover_names_both_causes_of_a_403(tmp_path: Path, call: str, done: list[str]) -> None:
    """With a `dvc` that prints what DVC prints; what it fetches on a first machine is an error as well."""
    dvc = tmp_path / "dvc"
    said = f"ERROR: unexpected error - {FORBIDDEN} when calling the HeadObject operation: Forbidden"
    refused = f'if [ "$1" = {call} ]; then echo "{said}" >&2; exit 255; fi'
    dvc.write_text(f'#!/bin/sh\necho "$1" >> calls\n{refused}\n[ "$1" != fetch ]\n')
    dvc.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [ROOT / "infra/recover", "s3://bucket/folder"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    cause = "recover: s3://bucket/folder answers 403: the key or the secret is wrong, or this machine's clock, which is"
    assert cause in result.stderr
    assert (tmp_path / "calls").read_text().split() == done
    assert ("not everything was fetched, as on a first machine" in result.stderr) == (call == "push")
