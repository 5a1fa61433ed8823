"""What is printed and written of a URI."""

from __future__ import annotations

import pytest

from pipeline.runs.credentials import masked


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://user:secret@host:5000/path", "http://***@host:5000/path"),
        ("postgresql+psycopg2://user:secret@host/mlflow", "postgresql+psycopg2://***@host/mlflow"),
        ("https://secret@host", "https://***@host"),
        ("https://:secret@host", "https://***@host"),
        ("postgresql://user:se@cret@host/mlflow", "postgresql://***@host/mlflow"),
        ("postgresql://user:secret/secret@host/mlflow", "postgresql://***@host/mlflow"),
        ("postgresql://host/mlflow?user=me&password=secret&x=1", "postgresql://host/mlflow?user=me&password=***&x=1"),
        ("https://host/a?access_token=secret", "https://host/a?access_token=***"),
        ("https://host/a?x=1&api_key=secret&y=2", "https://host/a?x=1&api_key=***&y=2"),
        ("postgresql://host/mlflow?sslpassword=secret", "postgresql://host/mlflow?sslpassword=***"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
        ("a file", "a file"),
    ],
)
def test_credentials_are_masked_and_nothing_else(uri: str, expected: str) -> None:
    assert masked(uri) == expected
    assert masked(f"request to {uri} failed: see http://a/b") == f"request to {expected} failed: see http://a/b"
