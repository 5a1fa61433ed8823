"""Facts about the machine, from the text that Linux gives."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nmt.common import cpu
from pipeline.config import machine, resolution, rows

EPYC = "processor\t: 0\nmodel name\t: AMD EPYC 9R14\nflags\t\t: fpu sse4_2 avx2 avx512f{}\n\nprocessor\t: 1\n"
PARAMS = {"row": "small", "pair": "en-de", "corpus": "sample", "seed": 1}


@pytest.fixture(autouse=True)
def gpus_listed_anew() -> Iterator[None]:
    machine.gpus.cache_clear()
    yield
    machine.gpus.cache_clear()


@pytest.fixture
def described(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the machine is described, of rows that are read anew."""
    monkeypatch.setattr(cpu, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(rows, "table", rows.table.__wrapped__)
    return tmp_path / "cpuinfo"


@pytest.mark.parametrize(
    ("flags", "precision"),
    [("", "float32"), (" avx512_bf16 avx512_vnni", "bfloat16"), (" amx_bf16", "bfloat16"), (" avx512_vnni", "float32")],
)
def test_rows_for_cpus_multiply_in_the_fastest_precision(described: Path, flags: str, precision: str) -> None:
    assert machine.fastest_precision() == "float32", "without a description"
    described.write_text(EPYC.format(flags))
    assert cpu.processor() == "AMD EPYC 9R14"
    assert resolution.resolve(PARAMS).training.precision == precision
    # The row is the same everywhere: its settings differ nowhere from the configuration.
    assert rows.settings("small", "en-de")["training"]["precision"] == precision
    assert resolution.resolve({**PARAMS, "row": "base"}).training.precision == "bfloat16"
    asked = {**PARAMS, "overrides": {"training": {"precision": "float32"}}}
    assert resolution.resolve(asked).training.precision == "float32"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the control groups; the file `cgroup` beside it says which are this process'."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "groups")
    return tmp_path / "groups"


def test_cores_are_those_that_the_process_may_use_or_all(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    assert machine.available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    for counted, cores in ((8, 8), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda counted=counted: counted)
        assert machine.available_cores() == cores


DOCKER = "12:memory:/docker/1a\n4:cpu,cpuacct:/docker/1a\n1:name=systemd:/docker/1a\n0::/system.slice"


def version_1(memory: int, quota: int) -> dict[str, str]:
    """The limits of control groups of version 1."""
    cpu = {"cpu,cpuacct/cpu.cfs_quota_us": str(quota), "cpu,cpuacct/cpu.cfs_period_us": "100000"}
    return {"memory/memory.limit_in_bytes": str(memory), **cpu}


@pytest.mark.parametrize(
    ("own", "limits", "cores", "gigabytes"),
    [
        ("0::/", {"cpu.max": "150000 100000", "memory.max": "1500000000"}, 1, 1.5),  # a container of version 2
        ("0::/job/1", {"job/cpu.max": "max 100000", "job/1/memory.max": "max", "job/memory.max": "2000000000"}, 7, 2),
        ("0::/job", {"job/cpu.max": "350000 100000", "cpu.max": "250000 100000"}, 2, None),
        ("0::/", {"cpu.max": "50000 100000"}, 1, None),
        (DOCKER, version_1(memory=3_000_000_000, quota=400_000), 4, 3),
        ("12:memory:/\n4:cpu,cpuacct:/", version_1(memory=2**63 - 4096, quota=-1), 7, None),  # without limits
        (None, {}, 7, None),
    ],
)
def test_the_limits_of_a_container_are_those_of_the_machine(
    groups: Path, own: str | None, limits: dict[str, str], cores: int, gigabytes: float | None,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(7)), raising=False)
    monkeypatch.setattr(machine, "gpus", list)
    if own is not None:
        machine.CGROUP.write_text(f"{own}\n")
    for name, limit in limits.items():
        (groups / name).parent.mkdir(parents=True, exist_ok=True)
        (groups / name).write_text(f"{limit}\n")
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert machine.available_cores() == cores
    assert machine.memory() == (physical if gigabytes is None else int(gigabytes * 1e9))


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The script that is run as nvidia-smi."""
    path = tmp_path / "nvidia-smi"
    path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return path


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, ["GPU-1a", "GPU-2b"]), ("1", ["GPU-2b"]), ("GPU-1", ["GPU-1a"]), ("", []),
        ("0, 1", ["GPU-1a", "GPU-2b"]), ("MIG-3c", ["MIG-3c"]),
    ],
)  # fmt: skip
def test_gpus_are_those_that_cuda_shows(
    nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    nvidia_smi.write_text("#!/bin/sh\necho 'GPU-1a, A100, 40960 MiB, 8.0'; echo 'GPU-2b, H100 80GB, 81559 MiB, 9.0'\n")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.id for gpu in machine.gpus()] == expected
    if expected[1:]:
        assert machine.gpus()[1] == machine.Gpu("GPU-2b", "H100 80GB", "81559 MiB", "9.0")


@pytest.mark.parametrize(("second", "precision"), [("8.0", "bfloat16"), ("10.0", "bfloat16"), ("7.5", "float32")])
def test_precision_and_memory_are_those_of_the_gpus_that_train(
    nvidia_smi: Path, described: Path, second: str, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described.write_text(EPYC.format(" amx_bf16" if precision == "float32" else ""))
    nvidia_smi.write_text(f"#!/bin/sh\necho 'GPU-1, H100, 81559 MiB, 9.0'; echo 'GPU-2, V100, 16384 MiB, {second}'\n")
    assert resolution.resolve(PARAMS).training.precision == precision
    assert machine.memory() == 2**34
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    machine.gpus.cache_clear()
    assert (machine.fastest_precision(), machine.memory()) == ("bfloat16", 81559 * 2**20)


@pytest.mark.parametrize("script", ["exec sleep 600", "exit 9", "echo No devices were found"])
def test_without_an_answer_there_is_no_gpu(nvidia_smi: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    nvidia_smi.write_text(f"#!/bin/sh\n{script}\n")
    monkeypatch.setattr(machine, "NVIDIA_SMI_TIMEOUT", 0.5)
    started = time.monotonic()
    assert machine.gpus() == []
    assert time.monotonic() - started < 60
