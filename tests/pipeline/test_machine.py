"""Facts about the machine, from the text that Linux gives."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline import machine
from pipeline.config import resolution, rows

EPYC = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu sse4_2 avx2 avx512f{}\n\nprocessor\t: 1\n"
PARAMS = {"row": "small", "pair": "en-de", "corpus": "sample", "seed": 1}


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine is described, of rows that are read anew."""
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(rows, "table", rows.table.__wrapped__)
    return tmp_path / "cpuinfo"


def test_the_name_of_the_processor(described: Path) -> None:
    described.write_text(EPYC.format(""))
    assert machine.processor() == "AMD EPYC 9R14"


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("", "float32"), (" avx512_bf16 avx512_vnni", "bfloat16"), (" amx_bf16", "bfloat16"), (" avx512_vnni", "float32")],
)
def test_rows_for_cpus_multiply_in_what_the_processor_is_fastest_in(
    described: Path, flags: str, precision: str
) -> None:
    described.write_text(EPYC.format(flags))
    assert resolution.resolve(PARAMS).training.precision == precision
    # The row is the same everywhere: its settings differ nowhere from the configuration.
    assert rows.settings("small", "en-de")["training"]["precision"] == precision
    assert resolution.resolve({**PARAMS, "row": "base"}).training.precision == "bfloat16"
    asked = {**PARAMS, "overrides": {"training": {"precision": "float32"}}}
    assert resolution.resolve(asked).training.precision == "float32"


def test_without_a_description_the_precision_is_float32(described: Path) -> None:
    assert not described.exists()
    assert machine.fastest_precision() == "float32"


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    assert machine.available_cores() == 3


@pytest.mark.parametrize(("counted", "cores"), [(8, 8), (None, 1)])
def test_where_the_system_has_no_affinity_all_cores_count(
    counted: int | None, cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS."""
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: counted)
    assert machine.available_cores() == cores
