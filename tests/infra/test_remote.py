"""DVC's remote in an S3 store whose settings are wrong: what the user reads, as infra/README.md has it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from stores import BUCKET, SECRET, rclone

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
            (there, {"AWS_SECRET_ACCESS_KEY": WRONG}, 0, r"Forbidden: An error occurred \(403\)"),
            (there, {"AWS_SECRET_ACCESS_KEY": SECRET}, 1, r"Forbidden: An error occurred \(403\)"),
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
