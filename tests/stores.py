"""S3 servers on loopback by rclone, which checks signatures and clocks."""

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agents import until

BUCKET = "states"
KEY, SECRET = "of-the-tests-access", "of-the-tests-secret"
ADDRESS = r"http://127\.0\.0\.1:\d+"


@contextmanager
def rclone(folder: Path) -> Iterator[dict[str, str]]:
    """`rclone serve s3` on a folder of buckets; yields the variables by which clients find it, without the user's."""
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    command = ["rclone", "serve", "s3", str(folder), "--addr", "127.0.0.1:0", "--auth-key", f"{KEY},{SECRET}"]
    command += ["--config", "/dev/null", "-v"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    try:
        match = until(lambda: re.search(ADDRESS, log.read_text()) or process.poll(), "an address of rclone", 120, 0.05)
        assert isinstance(match, re.Match), log.read_text()
        yield {
            "AWS_ENDPOINT_URL": match[0], "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent", "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip
    finally:
        process.kill()
        process.wait()
