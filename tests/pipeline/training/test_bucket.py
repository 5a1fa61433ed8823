"""The operations on an S3 bucket, and one sentence for everything that is wrong with it."""

from __future__ import annotations

import datetime
import io
import time
from pathlib import Path

import botocore.auth
import pytest
from s3transfer.exceptions import RetriesExceededError
from stores import BUCKET, SECRET, Store, rclone

from nmt.config import InputError
from pipeline.training import bucket as module
from pipeline.training.bucket import Bucket, StoreError


def test_objects_come_back(bucket: Bucket) -> None:
    assert bucket.read("a/small") is None
    assert bucket.write("a/small", b"text")
    large = bytes(range(256)) * 2**17  # in several parts
    bucket.upload("a/large", io.BytesIO(large))
    assert bucket.sizes("a/") == {"small": 4, "large": len(large)}
    found = bucket.read("a/small")
    assert found is not None
    assert found.content == b"text"
    assert 0 <= found.age < 60
    file = io.BytesIO()
    bucket.download("a/large", file)
    assert file.getvalue() == large
    bucket.delete("a/small")
    bucket.delete("a/never was")
    assert bucket.sizes("a/") == {"large": len(large)}
    with pytest.raises(FileNotFoundError):
        bucket.download("a/small", io.BytesIO())


def test_conditions_hold_where_the_store_knows_them(moto_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in moto_store.environment().items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(f"s3://{BUCKET}/conditions")
    assert bucket.write("lease", b"1", new=True)
    assert not bucket.write("lease", b"2", new=True)
    first = bucket.read("lease")
    assert first is not None
    assert bucket.write("lease", b"3", replaces=first.etag)
    assert not bucket.write("lease", b"4", replaces=first.etag)
    bucket.delete("lease")
    assert not bucket.write("lease", b"5", replaces=first.etag)
    with pytest.raises(InputError, match="no bucket `absent`"):
        Bucket("s3://absent/x").write("lease", b"1", new=True)


@pytest.mark.parametrize("url", ["s3://", "gs://bucket/x", "s3://key:secret@bucket/x", "s3://bucket?token=secret"])
def test_other_urls_are_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InputError, match=r"must read s3://bucket/prefix, without credentials") as refused:
        Bucket(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("AWS_SECRET_ACCESS_KEY", "a-wrong-secret-of-mine", "refuses the credentials .*SignatureDoesNotMatch"),
        ("AWS_ACCESS_KEY_ID", "an-unknown-key-of-mine", "refuses the credentials .*InvalidAccessKeyId"),
        ("AWS_ACCESS_KEY_ID", None, "refuses the credentials .*CredentialsError"),
        ("AWS_PROFILE", "nobody", "boto3 refuses its settings .*AWS_PROFILE"),
        ("AWS_ENDPOINT_URL", "no url", "boto3 refuses its settings .*AWS_ENDPOINT_URL"),
    ],
)
def test_wrong_settings_are_one_sentence_without_credentials(
    strict: Store, variable: str, value: str | None, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv(variable)
    else:
        monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=sentence) as refused:
        Bucket(f"s3://{BUCKET}/x").sizes("")
    text = str(refused.value)
    assert "\n" not in text
    assert SECRET not in text
    assert "of-mine" not in text


def test_a_missing_bucket_is_named(store: Store) -> None:
    with pytest.raises(InputError, match=r"no bucket `absent`: create it, or correct s3://absent/x"):
        Bucket("s3://absent/x").sizes("")


@pytest.mark.parametrize(("hours", "sentence"), [(1, "60 minutes ahead of"), (-1, "60 minutes behind")])
def test_a_wrong_clock_is_named(strict: Store, hours: int, sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signed, now = botocore.auth.get_current_datetime, time.time
    monkeypatch.setattr(
        botocore.auth, "get_current_datetime", lambda *given: signed(*given) + datetime.timedelta(hours=hours)
    )
    monkeypatch.setattr(module.time, "time", lambda: now() + 3600 * hours)
    with pytest.raises(InputError, match=f"clock is {sentence} the store's .*set the clock"):
        Bucket(f"s3://{BUCKET}/x").sizes("")


def test_a_store_that_is_away_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rclone(tmp_path / "buckets") as store:
        for name, value in store.environment().items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(f"s3://{BUCKET}/x")
        assert bucket.sizes("") == {}
    with pytest.raises(StoreError, match=r"does not answer \(EndpointConnectionError\)"):
        bucket.sizes("")


def test_a_download_that_breaks_off_too_often_may_succeed_later(strict: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket(f"s3://{BUCKET}/x")

    def broken(*_: object, **__: object) -> None:
        raise RetriesExceededError(OSError("the line is cut"))

    monkeypatch.setattr(bucket._client, "download_fileobj", broken)
    with pytest.raises(StoreError, match=r"does not answer \(RetriesExceededError\)"):
        bucket.download("key", io.BytesIO())


def test_refusals_by_other_stores(strict: Store) -> None:
    bucket = Bucket(f"s3://{BUCKET}/x")

    def refusal(status: int, code: str) -> InputError | StoreError:
        return bucket._refusal(
            {"ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}, "Error": {"Code": code}}
        )

    for status, code in ((507, "Whatever"), (403, "QuotaExceeded"), (500, "XMinioStorageFull")):
        full = refusal(status, code)
        assert isinstance(full, StoreError)
        assert "the store is full" in str(full.strerror)
    assert isinstance(refusal(403, "Whatever"), InputError)
    assert "status 503, SlowDown" in str(refusal(503, "SlowDown"))


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with rclone(tmp_path / "buckets", room=2**20) as full:
        for name, value in full.environment().items():
            monkeypatch.setenv(name, value)
        bucket = Bucket(f"s3://{BUCKET}/x")
        bucket.upload("small", io.BytesIO(b"text"))
        with pytest.raises(StoreError, match=r"failed \(status 500, InternalError\): its log says why; it may be full"):
            bucket.write("large", bytes(2**21))
        assert bucket.sizes("") == {"small": 4}
