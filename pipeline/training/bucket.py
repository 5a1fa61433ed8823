"""An S3 bucket: the few operations that saved states need. Errors are one sentence and never hold credentials."""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import IO, Any
from urllib.parse import urlsplit

from nmt.config import InputError

SKEW = 900.0
"""Seconds that a machine's clock may differ from the store's: S3 refuses requests beyond it."""
CREDENTIALS = frozenset(
    (
        *("AccessDenied", "AuthorizationHeaderMalformed", "ExpiredToken", "Forbidden", "InvalidAccessKeyId"),
        *("InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"),
    )
)
"""S3's error codes for credentials that are wrong, expired or lack a permission."""
FULL = frozenset(("InsufficientStorage", "QuotaExceeded", "StorageFull", "XMinioStorageFull"))
"""Error codes of stores without space, beside HTTP status 507."""
UNMET = frozenset((404, 409, 412))
"""HTTP statuses of a conditional write whose condition does not hold, or that another write overtook."""


class StoreError(OSError):
    """The store did not do what was asked, and may do it later: it is away, or full."""


@dataclass(frozen=True)
class Stored:
    """A small object's content, its version, and its age in seconds by the store's own clock."""

    content: bytes
    etag: str
    age: float


class Bucket:
    """The objects under `s3://bucket/prefix`. All keys are relative to the prefix.

    Endpoint, region and credentials are boto3's: `AWS_ENDPOINT_URL`, `AWS_ACCESS_KEY_ID` and the others, or a profile.
    Methods raise InputError for what the user must change (credentials, bucket, clock), else StoreError.
    """

    def __init__(self, url: str) -> None:
        """Raises InputError if `url` is no such URL, or boto3 is not installed."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.hostname or parts.netloc != parts.hostname or parts.query:
            raise InputError(
                "the store of training states must read s3://bucket/prefix, without credentials: set WMT_STATE, or "
                "WMT_STATE_STORE, to such a URL"
            )
        self.url, self.name, self._prefix = url.rstrip("/"), parts.hostname, parts.path.strip("/")
        try:
            import boto3
            from boto3.s3.transfer import TransferConfig
            from botocore.config import Config
            from botocore.exceptions import BotoCoreError
        except ImportError as error:
            raise InputError(f"{self.url} needs boto3: run `pip install -e '.[s3]'`") from error
        config = Config(
            connect_timeout=10,
            read_timeout=60,
            retries={"mode": "standard", "max_attempts": 3},
            # Every object's sha256 is checked anyway, and not every store knows S3's newer checksums.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        # Few threads: the cores are for training.
        self._transfer = TransferConfig(max_concurrency=4, multipart_chunksize=16 * 2**20)
        try:
            self._client = boto3.Session().client("s3", config=config)
        except (BotoCoreError, ValueError) as error:
            raise InputError(
                f"{self.url}: boto3 refuses its settings ({type(error).__name__}): check AWS_PROFILE and "
                "AWS_ENDPOINT_URL"
            ) from error

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the sizes in bytes of the objects whose keys begin with `prefix`, by what follows it in the key."""
        found: dict[str, int] = {}
        whole = self._key(prefix)
        with self._explained():
            for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=whole):
                found |= {each["Key"].removeprefix(whole): each["Size"] for each in page.get("Contents", ())}
        return found

    def read(self, key: str) -> Stored | None:
        """Return a small object, or None if it does not exist."""
        from botocore.exceptions import ClientError

        with self._explained():
            try:
                found = self._client.get_object(Bucket=self.name, Key=self._key(key))
            except ClientError as error:
                if error.response["Error"].get("Code") == "NoSuchKey":
                    return None
                raise
            content = found["Body"].read()
        now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        return Stored(content, found["ETag"], (now - found["LastModified"]).total_seconds())

    def write(self, key: str, content: bytes, *, new: bool = False, replaces: str | None = None) -> bool:
        """Write a small object; return False if a condition does not hold.

        `new`: only if it does not exist. `replaces`: only if this is its version. Stores that do not know conditional
        writes ignore both.
        """
        from botocore.exceptions import ClientError

        condition = {"IfNoneMatch": "*"} if new else {"IfMatch": replaces} if replaces else {}
        with self._explained():
            try:
                self._client.put_object(Bucket=self.name, Key=self._key(key), Body=content, **condition)
            except ClientError as error:
                status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                if condition and status in UNMET and error.response["Error"].get("Code") != "NoSuchBucket":
                    return False
                raise
        return True

    def upload(self, key: str, file: IO[bytes]) -> None:
        """Upload an open file from its position to its end."""
        with self._explained():
            self._client.upload_fileobj(file, self.name, self._key(key), Config=self._transfer)

    def download(self, key: str, file: IO[bytes]) -> None:
        """Download an object into an open file. Raises FileNotFoundError if it does not exist."""
        from botocore.exceptions import ClientError

        with self._explained():
            try:
                self._client.download_fileobj(self.name, self._key(key), file, Config=self._transfer)
            except ClientError as error:
                if error.response["Error"].get("Code") in {"404", "NoSuchKey"}:
                    raise FileNotFoundError(errno.ENOENT, "the store lacks an object", f"{self.url}/{key}") from error
                raise

    def delete(self, key: str) -> None:
        """Delete an object, if it exists."""
        with self._explained():
            self._client.delete_object(Bucket=self.name, Key=self._key(key))

    def _key(self, key: str) -> str:
        return f"{self._prefix}/{key}" if self._prefix else key

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise boto3's errors as sentences of our own: theirs may hold requests with their signatures."""
        from boto3.exceptions import Boto3Error
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            NoCredentialsError,
            PartialCredentialsError,
        )
        from s3transfer.exceptions import RetriesExceededError

        try:
            yield
        except ClientError as error:
            raise self._refusal(error.response) from None
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise self._wrong_credentials(type(error).__name__) from None
        except (BotoCoreError, Boto3Error, RetriesExceededError) as error:
            raise StoreError(errno.EIO, f"the store does not answer ({type(error).__name__})", self.url) from None

    def _wrong_credentials(self, code: str) -> InputError:
        return InputError(
            f"the store refuses the credentials for {self.url} ({code}): check AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or the profile or role, and that they may list, read, write and delete there"
        )

    def _refusal(self, response: dict[str, Any]) -> InputError | StoreError:
        """Return the error for a response that S3 refused a request with."""
        status = int(response["ResponseMetadata"]["HTTPStatusCode"])
        code = str(response["Error"].get("Code", status))
        if date := response["ResponseMetadata"]["HTTPHeaders"].get("date"):
            # Stores give several codes for a wrong clock, and their answers have the right time.
            skew = time.time() - parsedate_to_datetime(date).timestamp()
            if abs(skew) > SKEW or code == "RequestTimeTooSkewed":
                return InputError(
                    f"this machine's clock is {abs(skew) / 60:,.0f} minutes {'ahead of' if skew > 0 else 'behind'} the "
                    f"store's ({self.url}), which refuses more than {SKEW / 60:.0f}: set the clock"
                )
        if code == "NoSuchBucket":
            return InputError(f"the store has no bucket `{self.name}`: create it, or correct {self.url}")
        if code in FULL or status == 507:
            return StoreError(errno.EIO, f"the store is full ({code}): free space there", self.url)
        if code in CREDENTIALS or status in {401, 403}:
            return self._wrong_credentials(code)
        reason = f"the store failed (status {status}, {code}): its log says why; it may be full"
        return StoreError(errno.EIO, reason, self.url)
