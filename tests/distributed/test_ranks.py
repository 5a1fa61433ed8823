"""Several gloo processes on one machine: the same training as one, sums that every rank takes part in, exact resume."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
import yaml
from safetensors.torch import load_file

from nmt.common import tensors
from nmt.training import checkpoint
from nmt.training.batches import Corpus, train_files, updates
from nmt.training.history import read_history

MakeJob = Callable[..., dict[str, Any]]


def losses(folder: Path) -> list[float]:
    return [record["loss"] for record in read_history(folder / "history.jsonl") if "loss" in record]


def without_dropout(job: dict[str, Any]) -> dict[str, Any]:
    job["model"]["P_drop"] = 0.0
    return job


def trained(job: dict[str, Any], folder: Path, size: int, *given: Any, store: str = "store") -> list[float]:
    """The losses of a training on so many ranks."""
    assert ranks.results(size, folder, ranks.training, job, str(folder), *given, store=store) == [True] * size
    return losses(folder)


def final_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = checkpoint.latest_resume(folder / "resume")
    assert path is not None
    return tensors.load_tensors(path / tensors.WEIGHTS)


def test_what_ranks_agree_on(tmp_path: Path) -> None:
    assert ranks.results(3, tmp_path, ranks.agreements) == [
        {
            "rank": rank, "size": 3, "main": rank == 0, "device": "cpu", "sum": [6.0, 0.5 * 3], "started_sum": [3.0],
            "any_of_one": True, "any_of_none": False, "minimum": -5, "same": True, "differ": False,
            "one_differs": False, "large": True,
        }
        for rank in range(3)
    ]  # fmt: skip


def test_any_number_of_ranks_follows_the_same_losses(tmp_path: Path, tiny_job: MakeJob) -> None:
    """With dropout 0, on uneven updates of one to a dozen pairs: of eight ranks some often have no sentence."""
    job = without_dropout(tiny_job(updates=50, tokens=20, warmup_steps=400))
    curves = {size: trained(job, tmp_path / str(size), size) for size in (1, 2, 8)}
    assert len(curves[1]) == 50
    assert curves[2] == pytest.approx(curves[1], rel=1e-4)
    assert curves[8] == pytest.approx(curves[1], rel=1e-4)
    corpus = Corpus(train_files(Path(job["corpus"])))
    sizes = [update.sums.pairs for update in updates(corpus, 1, 20, lambda: 64, 0, 1, 1, 50)]
    assert min(sizes) < 8
    assert len(set(sizes)) > 3
    done = [json.loads((tmp_path / str(size) / "done.json").read_text()) for size in (1, 8)]
    assert done[0]["pairs"] == done[1]["pairs"]
    assert done[0]["ppl_valid"] == pytest.approx(done[1]["ppl_valid"], rel=1e-4)


@pytest.mark.parametrize(
    ("bucket", "room", "buckets"), [(50_000_000, None, 1), (2000, None, 11), (1, None, 43), (2000, 9, 11)]
)
def test_summed_gradients_are_those_of_one_rank(
    tmp_path: Path, tiny_job: MakeJob, bucket: int, room: int | None, buckets: int
) -> None:
    """In one bucket or many, one for each parameter; and where one rank runs out of memory in a backward pass."""
    job = without_dropout(tiny_job())
    (alone,) = ranks.results(1, tmp_path / "alone", ranks.gradients_of_an_update, job, str(tmp_path / "alone"))
    assert alone == {"buckets": 0, "begun": 0, "micro_tokens": 64}
    found = ranks.results(2, tmp_path / "two", ranks.gradients_of_an_update, job, str(tmp_path / "two"), bucket, room)
    assert [one["buckets"] for one in found] == [buckets] * 2
    # All sums began while the last backward pass went on.
    assert [one["begun"] for one in found] == [buckets] * 2
    assert found[0]["micro_tokens"] == 64
    assert found[1]["micro_tokens"] <= (room or 64)
    expected = load_file(tmp_path / "alone/gradients-0.safetensors")
    for rank in range(2):
        gradients = load_file(tmp_path / f"two/gradients-{rank}.safetensors")
        assert gradients.keys() == expected.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)


def test_a_training_goes_on_with_another_number_of_ranks(tmp_path: Path, tiny_job: MakeJob) -> None:
    alone = trained(without_dropout(tiny_job(updates=40)), tmp_path / "alone", 1)
    folder = tmp_path / "moved"
    for size, until in [(2, 15), (3, 30), (1, 40)]:
        trained(without_dropout(tiny_job(updates=until)), folder, size, 2000, store=f"store-{until}")
    assert losses(folder) == pytest.approx(alone, rel=1e-4)
    assert "the weights will not be bit-identical to an undisturbed run's: the state was saved with" in ranks.output(
        folder
    )
    assert json.loads((folder / "done.json").read_text())["resumes"] == 2


def test_ranks_in_bfloat16_follow_one_in_bfloat16(tmp_path: Path, tiny_job: MakeJob) -> None:
    job = without_dropout(tiny_job(updates=10, precision="bfloat16"))
    alone, two = (trained(job, tmp_path / str(size), size, 2000) for size in (1, 2))
    # A bfloat16 has 8 bits, the order of sums decides the last, and the differences grow.
    assert two == pytest.approx(alone, rel=5e-3)


def refused(tmp_path: Path, target: ranks.Target, *given: Any, homes: Any = ()) -> str:
    """The output of two ranks that both end with an error before the first update."""
    with ranks.ranks(2, tmp_path / "run", target, *given, homes=homes) as processes:
        assert ranks.finished(processes) == [1, 1]
    assert losses(tmp_path / "run") == []
    return ranks.output(tmp_path / "run")


def corpora(tmp_path: Path, job: dict[str, Any]) -> list[Path]:
    """Two machines' working directories, each with a folder of the corpus' name."""
    homes = [tmp_path / "first", tmp_path / "second"]
    for home in homes:
        shutil.copytree(job["corpus"], home / "corpus")
    job["corpus"] = "corpus"
    return homes


def test_ranks_with_different_corpora_do_not_train(
    tmp_path: Path, tiny_job: MakeJob, write_arrow: Callable[..., None]
) -> None:
    """One id of one pair differs, as another vocabulary would have it: all lengths are the same."""
    job = tiny_job(updates=5)
    homes = corpora(tmp_path, job)
    path = homes[1] / "corpus/train.00009.arrow"
    corpus = Corpus([path])
    pairs = [(source.tolist(), target.tolist()) for source, target in map(corpus.pair, range(len(corpus)))]
    pairs[-1][1][0] += 1
    write_arrow(path, pairs)
    told = refused(tmp_path, ranks.training, job, str(tmp_path / "run"), homes=homes)
    assert told.count("InputError: the machines' corpora differ: corpus must be the same folder on all of them") == 2


def test_ranks_with_different_weights_do_not_train(tmp_path: Path, tiny_job: MakeJob) -> None:
    told = refused(tmp_path, ranks.training_with_a_weight_changed, tiny_job(updates=5), str(tmp_path / "run"))
    assert told.count("InputError: the ranks' weights after update 0 differ: give all machines the same settings") == 2


def test_ranks_with_different_states_do_not_train(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Their folders are of two machines here: one has the state after update 5, the other that after update 4."""
    for rank, until in enumerate((4, 5)):
        trained(tiny_job(updates=until), tmp_path / f"state-{rank}", 1)
    told = refused(tmp_path, ranks.training_in_folders_of_their_own, tiny_job(updates=9), str(tmp_path / "state"))
    for update in (4, 5):
        assert f"RuntimeError: this rank would resume after update {update}, but another rank after another" in told


def test_ranks_that_remember_different_sizes_take_the_least(tmp_path: Path, tiny_job: MakeJob) -> None:
    """One was told, the other chooses: both must take part in agreeing on it."""
    given = (tiny_job(), str(tmp_path), [None, "77"])
    assert ranks.results(2, tmp_path, ranks.chosen_micro_tokens, *given) == [77, 77]


def test_means_of_an_interval_are_right_after_a_resume_on_fewer_ranks(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Stopped after 15 of an interval's 20 updates on two ranks, resumed on one: losses, norm and tokens go on."""
    job = without_dropout(
        tiny_job(
            updates=2000, validate_every=2000, checkpoint_every=2000, resume_minutes=10.0, learning_rate_scale=1e-9
        )
    )
    records = {}
    for name, attempts in (("two, then one", ((2, 15), (1, 21))), ("one", ((1, 21),))):
        folder = tmp_path / name
        for size, update in attempts:
            given, how = (job, str(folder), update, 0, signal.SIGTERM), {"store": f"store-{update}"}
            assert ranks.results(size, folder, ranks.disturbed_training, *given, **how) == [False] * size
        (records[name],) = read_history(folder / "history.jsonl")
    for key in ("loss", "nll", "gradient_norm", "tokens"):
        assert records["two, then one"][key] == pytest.approx(records["one"][key], rel=1e-4)


def test_two_ranks_killed_and_resumed_end_with_the_same_bits(tmp_path: Path, tiny_job: MakeJob) -> None:
    """One rank is killed, which ends the other; then one is asked to stop, and both do."""
    job = tiny_job(updates=60, resume_minutes=1e-6)
    trained(job, tmp_path / "undisturbed", 2)
    folder = tmp_path / "disturbed"
    given = (job, str(folder))
    with ranks.ranks(2, folder, ranks.disturbed_training, *given, 20, 1, signal.SIGKILL, store="killed") as processes:
        other, killed = ranks.finished(processes)
    assert killed == -signal.SIGKILL
    assert other == 1
    assert (folder / "lost-the-others").exists()
    how = {"store": "stopped"}
    assert ranks.results(2, folder, ranks.disturbed_training, *given, 45, 1, signal.SIGTERM, **how) == [False, False]
    assert checkpoint.latest_resume(folder / "resume") == folder / "resume/update-00000045"
    trained(job, folder, 2, store="finished")
    weights = [final_weights(tmp_path / name) for name in ("undisturbed", "disturbed")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((folder / "done.json").read_text())["resumes"] == 2


def test_what_torchrun_runs_leaves_word_of_how_it_ended(tmp_path: Path, tiny_job: MakeJob) -> None:
    def status(folder: Path, job: dict[str, Any] | None) -> int | None:
        folder.mkdir(exist_ok=True)
        if job is not None:
            (folder / "job.yaml").write_text(yaml.safe_dump(job))
        with ranks.ranks(1, folder, ranks.main_module, str(folder) if job is not None else "") as processes:
            return ranks.finished(processes)[0]

    done = tmp_path / "done"
    assert status(done, tiny_job(updates=3)) == 0
    assert json.loads((done / "done.json").read_text())["updates"] == 3
    assert not (done / "failed.json").exists()
    assert not (done / "interrupted").exists()

    refused = tmp_path / "refused"
    assert status(refused, tiny_job() | {"corpus": str(tmp_path)}) == 1
    told = f"{tmp_path} holds no train.*.arrow: run the stage binarize"
    assert json.loads((refused / "failed.json").read_text()) == {"state": "refused", "error": told}
    assert f"train: {told}" in ranks.output(refused)
    assert "Traceback" not in ranks.output(refused)

    failed = tmp_path / "failed"
    failed.mkdir()
    (failed / "history.jsonl").write_text("no JSON\n")
    assert status(failed, tiny_job()) == 1
    told = json.loads((failed / "failed.json").read_text())
    assert told["state"] == "failed"
    assert told["error"].startswith("JSONDecodeError: ")

    assert status(tmp_path / "usage", None) == 1
    assert "usage: python -m nmt.training.trainer JOB" in ranks.output(tmp_path / "usage")
