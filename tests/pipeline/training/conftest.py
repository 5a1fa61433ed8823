"""The stores that tests of mirrored training use."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stores import BUCKET, Store, moto, rclone

from pipeline.training.bucket import Bucket

NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def rclone_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with rclone(tmp_path_factory.mktemp("rclone") / "buckets") as store:
        yield store


@pytest.fixture(scope="session")
def moto_store() -> Iterator[Store]:
    with moto() as store:
        yield store


@pytest.fixture(params=["rclone", "moto"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Each of the stores, named by this process' environment."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    use(found, monkeypatch)
    return found


@pytest.fixture
def strict(rclone_store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store that checks who asks, and when."""
    use(rclone_store, monkeypatch)
    return rclone_store


def use(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in store.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "WMT_STATE", "WMT_STATE_STORE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bucket(store: Store) -> Bucket:
    """A prefix of its own in the bucket of a store."""
    return Bucket(f"s3://{BUCKET}/tests/{next(NUMBERS)}")


@pytest.fixture
def training_folder(tmp_path: Path) -> Callable[[str], Path]:
    """Makes folders of a training, empty but for its job."""

    def make(name: str) -> Path:
        folder = tmp_path / name / "0123-4567"
        folder.mkdir(parents=True)
        (folder / "job.yaml").write_text(f"corpus: {name}\ntraining: {{updates: 100}}\n")
        return folder

    return make
