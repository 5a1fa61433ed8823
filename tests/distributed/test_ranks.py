"""Several gloo processes on one machine: the same bits as one process, also where their number changes on the way."""

import json
import re
import signal
from pathlib import Path
from random import Random
from typing import Any

import pytest
import ranks
import yaml
from trainings import MakeJob, hashes, logged, run

from nmt.training import checkpoint
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.history import read_history
from pipeline.trainings.folder import outcome


def trained(job: dict[str, Any], folder: Path, size: int, store: str = "store") -> list[float]:
    """The losses of a training on so many ranks; one alone is this process."""
    if size == 1:
        assert run(job, folder)
    else:
        assert ranks.results(size, folder, ranks.training, job, str(folder), store=store) == [True] * size
    return logged(folder, "loss")


def result(folder: Path) -> dict[str, Any]:
    """All that must not depend on the processes: weights, moments, checkpoints, what was measured."""
    path = checkpoint.latest_resume(folder)
    files = [*path.glob("*.safetensors"), *checkpoint.checkpoints(folder / "checkpoints")]
    measured = ("update", "loss", "nll", "gradient_norm", "valid_loss", "padding", "tokens")
    done = json.loads((folder / "done.json").read_text())
    return {
        "update": path.name,
        "files": {file.name: file.read_bytes() for file in files},
        "chain": hashes(folder),
        "curve": [[record.get(key) for key in measured] for record in read_history(folder / "history.jsonl")],
        "done": {key: done[key] for key in ("updates", "pairs", "target_tokens", "valid_loss", "padding")},
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_any_number_of_processes_trains_the_same_bits(tmp_path: Path, tiny_job: MakeJob, precision: str) -> None:
    """With dropout and empty shards; also killed, stopped and resumed on another number of processes each time."""
    job = tiny_job(tokens=25, shards=4, precision=precision, r_drop=5.0 if precision == "bfloat16" else 0.0)
    job["model"] |= {"P_drop": 0.3, "attention_dropout": 0.1, "relu_dropout": 0.1}
    corpus = Corpus(train_files(Path(job["corpus"])))
    pairs = [update.sums.pairs for update in updates(corpus, 1, 25, 4, 0, 1, range(1, 31))]
    assert min(pairs) < 4 < max(pairs)
    assert len(trained(job, tmp_path / "1", 1)) == 30
    expected = result(tmp_path / "1")
    if precision == "float32":  # They are stopped and resumed in tests/nmt/training/test_loop.py.
        for size in (2, 4):
            trained(job, tmp_path / str(size), size)
            assert result(tmp_path / str(size)) == expected
        return

    job["training"]["resume_minutes"] = 1e-6  # a state after every update
    folder, choice = tmp_path / "disturbed", Random(precision)
    for size, number in [(2, signal.SIGKILL), (4, signal.SIGKILL), (1, signal.SIGTERM), (4, signal.SIGTERM)]:
        update, rank = checkpoint.last_saved_update(folder) + choice.randrange(2, 8), choice.randrange(size)
        given, store = (job, str(folder), update, rank, number), f"store-{update}"
        with ranks.ranks(size, folder, ranks.disturbed_training, *given, store=store) as processes:
            ends = ranks.finished(processes)
        # One that is asked to stop stops all, one that is killed fails the others.
        others = 1 if number == signal.SIGKILL else 0
        assert ends == [-number if number == signal.SIGKILL and one == rank else others for one in range(size)]
        assert 0 < checkpoint.last_saved_update(folder) < 30
    assert (folder / "lost-the-others").exists()
    trained(job, folder, 2, store="last")
    assert result(folder) == expected
    assert json.loads((folder / "done.json").read_text())["resumes"] == 4
    assert "weights will not be" not in ranks.output(folder)


def test_portable_arithmetic_has_the_same_bits_on_two_processes(tmp_path: Path, tiny_job: MakeJob) -> None:
    """The validation sample is the same, too, of which each process translates a part."""
    job = tiny_job(arithmetic="portable", updates=8, validate_every=8, validation_sample=3)
    for size in (1, 2):
        trained(job, tmp_path / str(size), size)
    assert result(tmp_path / "1") == result(tmp_path / "2")
    one, two = (logged(tmp_path / size, "sample") for size in "12")
    assert one == two
    assert len(one[0]) == 3


def test_in_no_fixed_order_sums_begin_in_the_backward_pass(tmp_path: Path, tiny_job: MakeJob) -> None:
    """They are the tree's but for rounding. Ranks with empty shards, too, begin them in the same order."""
    size = 4
    of_ranks = ranks.results(size, tmp_path, ranks.overlapped_gradients, tiny_job(shards=size, tokens=8))
    buckets = [[length for length in update if length] for update in of_ranks[0]]
    assert len(buckets[0]) >= 4
    assert max(buckets[0]) < sum(buckets[0]) / 2
    parameters = max(update.count(0) for done in of_ranks for update in done)
    full = 0
    for done in of_ranks:
        assert [[length for length in update if length] for update in done] == buckets
        for update in filter(None, done):
            if update.count(0) == parameters:
                full += 1
                first = next(place for place, length in enumerate(update) if length)
                assert first < len(update) - update[::-1].index(0) - 1, "before the last gradient"
    assert 0 < full < 10 * size, "updates with and without empty shards"


def test_ranks_with_different_states_do_not_train(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Their folders are of two machines here: one has the state after update 5, the other that after update 4."""
    for rank, until in enumerate((4, 5)):
        trained(tiny_job(updates=until), tmp_path / f"state-{rank}", 1)
    homes = [tmp_path / "state-0", tmp_path / "state-1"]
    with ranks.ranks(2, tmp_path, ranks.training, tiny_job(updates=9), ".", homes=homes) as processes:
        assert ranks.finished(processes) == [1, 1]
    for home, update in zip(homes, (4, 5), strict=True):
        told = f"RuntimeError: this rank would resume after update {update}, but another rank at a different one"
        assert told in ranks.output(tmp_path)
        assert len(logged(home, "loss")) == update


def test_a_rank_that_runs_out_of_memory_ends_all_and_its_sentence_is_kept(tmp_path: Path, tiny_job: MakeJob) -> None:
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(tiny_job()))
    given = (str(tmp_path), "memory", f"file://{tmp_path / 'own'}")
    with ranks.ranks(2, tmp_path, ranks.main_module_failing, *given) as processes:
        assert ranks.finished(processes) == [1, 1]
    assert len(logged(tmp_path, "loss")) == 2
    told = json.loads((tmp_path / "failed.json").read_text())
    assert told["state"] == "refused"
    assert re.fullmatch(r"a shard of \d+ source and \d+ target subwords does not fit into .*: raise .*", told["error"])
    of_each = [(tmp_path / f"rank-{rank}.log").read_text() for rank in range(2)]
    assert [f"train: {told['error']}" in text for text in of_each] == [False, True]
    assert "gloo" in of_each[0], "the other rank ends because it lost this one"
    assert not (tmp_path / "done.json").exists()


@pytest.mark.parametrize(("where", "size"), [("saving", 2), ("sum", 4), ("overlapped sum", 2)])
def test_the_first_failure_ends_all_ranks_and_is_told(tmp_path: Path, tiny_job: MakeJob, where: str, size: int) -> None:
    """Also where leaving the group waits for all ranks: then a rank that left would wait for those that wait for it."""
    job = tiny_job(shards=4, resume_minutes=1e-6)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    given = (str(tmp_path), where, f"file://{tmp_path / 'own'}")
    with ranks.ranks(size, tmp_path, ranks.main_module_failing, *given) as processes:
        assert ranks.finished(processes, 60) == [1] * size, ranks.output(tmp_path)
    assert str(outcome(tmp_path, 1)).startswith(f"a training process failed: OSError: no room in {where};")
