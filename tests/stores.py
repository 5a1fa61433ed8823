"""S3 servers on loopback: rclone's, which checks signatures and clocks, and moto's, which knows conditional writes."""

from __future__ import annotations

import logging
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3

BUCKET = "states"
KEY, SECRET = "of-the-tests-access", "of-the-tests-secret"


@dataclass
class Store:
    """A running server with an empty bucket."""

    endpoint: str
    process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """The variables with which boto3 finds it, and nothing else of the user's."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


IN_ROOM = 'mount -t tmpfs -o "size=$1" none "$2" && mkdir "$2/$3" && shift 3 && exec "$@"'
"""A server whose disk has so many bytes, in a namespace of its own: the disk ends with it."""


def start_rclone(folder: Path, port: int = 0, room: int | None = None) -> Store:
    """Start `rclone serve s3` on a folder, whose sub-folders are the buckets; on a disk of `room` bytes, if given."""
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    log = folder.with_suffix(".log")
    command = ["rclone", "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}", "--auth-key", f"{KEY},{SECRET}"]
    command += ["--config", "/dev/null", "-v"]
    if room is not None:
        private = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", IN_ROOM, "sh"]
        command = [*private, str(room), str(folder), BUCKET, *command]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file)
    deadline = time.monotonic() + 120
    while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
    return Store(found[0], process)


@contextmanager
def rclone(folder: Path, room: int | None = None) -> Iterator[Store]:
    """rclone's server, until the end."""
    store = start_rclone(folder, room=room)
    assert store.process is not None
    try:
        yield store
    finally:
        store.process.kill()
        store.process.wait()


@contextmanager
def moto() -> Iterator[Store]:
    """moto's server, in a thread, until the end."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    store = Store(f"http://{host}:{port}")
    client = boto3.client(
        "s3", endpoint_url=store.endpoint, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    client.create_bucket(Bucket=BUCKET)
    try:
        yield store
    finally:
        server.stop()
