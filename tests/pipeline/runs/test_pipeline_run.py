"""The names of runs and an example of their parameters; tests/end_to_end/test_flow.py has the runs themselves."""

from __future__ import annotations

import json
import subprocess
import uuid
from pathlib import Path

import pytest

from pipeline.config import resolution, rows
from pipeline.orchestration.parameters import EXAMPLE
from pipeline.runs.pipeline_run import unique_name

ROOT = Path(__file__).resolve().parents[3]
ONE, OTHER = (f"019aa123-4567-7abc-9def-0123{end}" for end in ("456789ab", "456789ac"))


@pytest.mark.parametrize(
    ("name", "unique"),
    [
        ("sample-en-de", "sample-en-de-456789ab"),
        ("D-pdrop0.0-en-fr", "D-pdrop0_0-en-fr-456789ab"),
        ("sample-en-de-456789ab", "sample-en-de-456789ab"),
        ("-rf ../a: b..lock.lock", "rf_a_b_lock_lock-456789ab"),
        ("--", "456789ab"),
        ("", "456789ab"),
        ("ü" * 300, "_-456789ab"),
        ("x" * 300, f"{'x' * 100}-456789ab"),
    ],
)
def test_a_name_is_one_of_an_experiment_and_no_other_runs(name: str, unique: str) -> None:
    assert unique_name(name, ONE) == unique
    assert unique_name(name, OTHER) != unique
    assert unique_name(unique, ONE) == unique
    subprocess.run(["git", "check-ref-format", f"refs/exps/ab/cdef/{unique}"], check=True)


def test_a_users_name_is_not_taken_for_one_that_prefect_drew() -> None:
    from prefect.utilities.names import generate_slug  # Prefect takes a second, which collecting tests need not.

    from pipeline.orchestration.flow import is_random_name

    assert all(is_random_name(generate_slug(2)) for _ in range(100))
    for name in ("base", "my-run", "big-en-de", f"sample-en-de-{uuid.uuid4().hex[-8:]}", "two words"):
        assert not is_random_name(name)


def test_the_example_of_overrides_succeeds_with_every_row() -> None:
    """Averaging has the checkpoints that it needs."""
    from pipeline.orchestration.flow import wmt_en_de

    assert EXAMPLE in wmt_en_de.parameters.properties["overrides"]["description"]
    assert f"overrides={EXAMPLE}" in (ROOT / "pipeline/README.md").read_text()
    for row in rows.table().rows:
        params = {"row": row, "pair": "en-de", "corpus": "sample", "seed": 1, "overrides": json.loads(EXAMPLE)}
        asked = resolution.resolve(params)
        assert asked.training.updates // asked.training.checkpoint_every >= asked.averaging.last, row
