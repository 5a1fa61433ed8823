"""DVC's remote in an S3 store whose settings are wrong: what the user reads, as infra/README.md has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import pytest
from clones import ROOT
from stores import BUCKET, SECRET, rclone

FORBIDDEN = "Forbidden: An error occurred (403)"
WRONG = "a-wrong-secret-of-mine"
PUSHES = """
import datetime, json, os, sys
import botocore.auth
from dvc.cli import main
from s3fs import S3FileSystem
signed = botocore.auth.get_current_datetime
for words in (["init", "--no-scm"], ["add", "result"], ["remote", "add", "--default", "store", "s3://x"]):
    assert main([*words, "--quiet"]) == 0
for url, environment, hours in json.loads(sys.argv[1]):
    os.environ |= environment
    ahead = datetime.timedelta(hours=hours)
    botocore.auth.get_current_datetime = lambda *given: signed(*given) + ahead
    assert main(["remote", "modify", "store", "url", url]) == 0
    print(f"status {main(['push'])};", file=sys.stderr)
    S3FileSystem.clear_instance_cache()
"""
"""Pushes to several remotes by DVC's command line in one process: it takes longer to import than to run."""


def test_what_is_wrong_with_a_remote_is_said_without_credentials(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "result").write_bytes(os.urandom(2**21))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("DVC_", "AWS_"))}
    with rclone(tmp_path / "buckets") as store, rclone(tmp_path / "small", room=2**20) as full:
        there = f"s3://{BUCKET}/dvc"
        cases = [
            (there, {"AWS_SECRET_ACCESS_KEY": WRONG}, 0, re.escape(FORBIDDEN)),
            (there, {"AWS_SECRET_ACCESS_KEY": SECRET}, 1, re.escape(FORBIDDEN)),
            ("s3://absent/dvc", {}, 0, "The specified bucket does not exist"),
            (there, {"AWS_ENDPOINT_URL": full.endpoint}, 0, "failed to transfer .* Internal Error"),
            (there, {"AWS_ENDPOINT_URL": store.endpoint}, 0, None),
        ]
        result = subprocess.run(
            [sys.executable, "-c", PUSHES, json.dumps([case[:3] for case in cases])],
            cwd=repository,
            env={**environment, **store.environment()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stdout + result.stderr
    said = re.findall(r"(.*?)status (\d+);", result.stderr, re.DOTALL)
    assert len(said) == len(cases)
    for (text, status), (*_, sentence) in zip(said, cases, strict=True):
        assert (int(status) == 0) == (sentence is None), text
        assert re.search(sentence or "", text), text
        assert WRONG not in text
        assert SECRET not in text


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


CLOCKS = "curl --silent --head http://127.0.0.1:9000 | grep -i ^date; date -u"


def test_the_clocks_of_store_and_machine_are_shown_beside_each_other(tmp_path: Path) -> None:
    assert CLOCKS in (ROOT / "infra/README.md").read_text()
    with rclone(tmp_path / "buckets") as store:
        words = ["bash", "-c", CLOCKS.replace("http://127.0.0.1:9000", store.endpoint)]
        result = subprocess.run(words, capture_output=True, text=True, check=True)
    header, mine = result.stdout.splitlines()
    stores = parsedate_to_datetime(header.partition(": ")[2].strip())
    assert abs(stores - datetime.now(UTC)) < timedelta(minutes=2)
    assert "UTC" in mine
