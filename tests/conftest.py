import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import jaxtyping
import pytest

# Threads gain nothing on tiny models, and spin for each other where the machine is busy; before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What a shell sets for runs, stores and proxies must not reach the tests.
for name in list(os.environ):
    if name.startswith(("WMT_", "DVC_", "AWS_")) or name.lower().endswith("_proxy"):
        del os.environ[name]

# Tests compare with what CPUs compute; `make bench-gpu` compares GPUs with CPUs.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

# sacrebleu imports portalocker, which imports redis if it is there: more than half a second in every process.
sys.modules["portalocker.redis"] = None  # type: ignore[assignment] # an import of it fails, as without redis

# Under nohup, or in the background of a shell, this process ignores these signals, and so would the processes under
# test. They do not inherit a handler.
for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# The shapes and types in nmt's signatures are checked while its own tests run; the hook must come before nmt is
# imported.
jaxtyping.install_import_hook("nmt", "shared.checked")

hypothesis.settings.register_profile("deterministic", derandomize=True, deadline=None, database=None, max_examples=50)
# A mutant that fails is killed; the smallest example that shows it is not searched for.
hypothesis.settings.register_profile(
    "mutants",
    parent=hypothesis.settings.get_profile("deterministic"),
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
hypothesis.settings.load_profile("deterministic")

HERE = Path(__file__).parent
FIRST = (
    *("end_to_end/test_flows.py", "end_to_end/test_repro.py", "distributed/test_nodes.py"),
    *("pipeline/verify/test_verify.py", "distributed/test_ranks.py"),
)
"""The files that take longest, of which many wait. Whatever comes late among them, all others would wait for it.

A process of pytest-xdist is given its next file when two tests of a file are left: what follows a file of one or two
tests is run by the same process.
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What collecting imports stays until the end: to look through it for garbage took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, so that the short ones fill the processors while these wait."""
    ranks = {HERE / name: rank for rank, name in enumerate(FIRST)}
    assert all(path.exists() for path in ranks), "a file that was renamed would lose its place"
    items.sort(key=lambda item: ranks.get(item.path, len(ranks)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Check shapes and types in nmt's own tests alone: the others call the same functions, at half the speed."""
    jaxtyping.config.update("jaxtyping_disable", not item.path.is_relative_to(HERE / "nmt"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    # Triton, which torch's fused Adam imports, would report what is frozen as leaks.
    gc.unfreeze()
    atexit.unregister(gc.freeze)  # of commands that ran in this process


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test works."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def copy_corpus(tmp_path: Path) -> Path:
    """A binned corpus whose targets repeat their sources: a task that a tiny model learns."""
    from trainings import write_arrow  # It imports torch, which takes seconds that other tests need not.

    random = Random(1)
    sentences = [[random.randrange(4, 16) for _ in range(random.randrange(1, 9))] + [2] for _ in range(240)]
    folder = tmp_path / "copy"
    folder.mkdir()
    for low, high in ((0, 4), (4, 9)):
        inside = [(ids, ids) for ids in sentences[:200] if low < len(ids) <= high]
        write_arrow(folder / f"train.{high:05d}.arrow", inside)
    write_arrow(folder / "valid.arrow", [(ids, ids) for ids in sentences[200:]])
    return folder


@pytest.fixture
def tiny_job(copy_corpus: Path) -> Callable[..., dict[str, Any]]:
    """A training job of a tiny model on the copy task; arguments change its model's and its training's settings."""
    from model_folders import model_settings  # It imports torch, too.

    def job(model: Mapping[str, Any] = {}, **training: Any) -> dict[str, Any]:
        return {
            "model": model_settings(**{"N": 1, **model}).model_dump(),
            "training": {
                "updates": 30, "tokens": 120, "shards": 2, "warmup_steps": 20, "learning_rate_scale": 1.0, "beta1": 0.9,
                "beta2": 0.98, "epsilon": 1e-9, "eps_ls": 0.1, "precision": "float32", "seed": 1,
                "validate_every": 10, "checkpoint_every": 5, "keep_checkpoints": 3, "resume_minutes": 10.0,
                **training,
            },
            "vocabulary": 16,
            "corpus": str(copy_corpus),
        }  # fmt: skip

    return job
