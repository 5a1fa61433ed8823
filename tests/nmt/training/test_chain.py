"""The chain of hashes: a function of the training alone, unbroken by kills, changed by any change of it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import check_refusal
from trainings import CONDITIONS, MakeJob, hashes, run, stopped

from nmt.common import tensors
from nmt.common.files import link_or_copy
from nmt.training import chain, checkpoint, state
from nmt.training.settings import TrainingSettings
from nmt.training.trainer import Trainer


def links(folder: Path) -> list[chain.Link]:
    return chain.read_chain(folder / "chain.jsonl")


def test_chosen_updates_have_links_and_a_changed_one_breaks_the_chain(tmp_path: Path, tiny_job: MakeJob) -> None:
    assert run(tiny_job(updates=17, verify_every=4), tmp_path / "run")
    chain_links = links(tmp_path / "run")
    assert [link.update for link in chain_links] == [4, 5, 8, 10, 12, 15, 16, 17]
    assert chain.broken(chain_links) is None
    for path in checkpoint.checkpoints(tmp_path / "run/checkpoints"):
        (link,) = [link for link in chain_links if link.update == checkpoint.update_of(path)]
        assert tensors.digest(tensors.load_tensors(path)) == link.weights
    last = checkpoint.latest_resume(tmp_path / "run")
    assert chain.state_hashes(last) == (chain_links[-1].weights, chain_links[-1].moments)
    for key in ("weights", "moments", "losses", "link"):
        changed = [chain_links[0], chain_links[1].model_copy(update={key: "0" * 64}), *chain_links[2:]]
        assert chain.broken(changed) == changed[1]
    assert chain.broken(chain_links[1:]) == chain_links[1]
    (tmp_path / "run/chain.jsonl").write_text('{"update": 1}\n')
    check_refusal("holds no chain of hashes", links, tmp_path / "run")


def test_a_link_has_equal_conditions(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(tiny_job(updates=12, verify_every=5), tmp_path / "run", 8)
    monkeypatch.setattr(Trainer, "conditions", lambda self: CONDITIONS)
    assert run(tiny_job(updates=12, verify_every=5), tmp_path / "run")
    assert [link.update for link in links(tmp_path / "run")] == [5, 8, 10, 12]
    assert len({link.conditions["processor"] for link in links(tmp_path / "run")[:2]}) == 1


def test_the_last_update_has_a_link_after_a_kill_before_it_was_written(tmp_path: Path, tiny_job: MakeJob) -> None:
    assert run(tiny_job(updates=13, verify_every=7, checkpoint_every=20), tmp_path / "run")
    (tmp_path / "run/done.json").unlink()
    chain_file = tmp_path / "run/chain.jsonl"
    chain_file.write_text(chain_file.read_text().splitlines(keepends=True)[0])
    assert run(tiny_job(updates=13, verify_every=13, checkpoint_every=20), tmp_path / "run")
    assert [link.update for link in links(tmp_path / "run")] == [7, 13]


def test_a_kept_state_starts_the_training_again(tmp_path: Path, tiny_job: MakeJob) -> None:
    """Within an interval: then come a report of updates before and after it, and a link that hashes this report."""

    def trained(name: str, keep_states: int) -> list[tuple[int, str]]:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "last_update").write_text("13")
        settings = {"validate_every": 300, "checkpoint_every": 300, "verify_every": 5}
        assert run(tiny_job(updates=300, shards=1, keep_states=keep_states, **settings), tmp_path / name)
        return hashes(tmp_path / name)

    # Reports after updates 9 and 12, and a kept state after update 10.
    assert trained("run", 29) == trained("other", 0)
    kept, _ = checkpoint.states(tmp_path / "run")
    shutil.copytree(kept, tmp_path / "again/resume" / kept.name, copy_function=link_or_copy)
    shutil.copyfile(tmp_path / "run/chain.jsonl", tmp_path / "again/chain.jsonl")
    (whole,) = (link for link in links(tmp_path / "run") if link.update == 10)
    assert trained("again", 0) == hashes(tmp_path / "run")
    assert chain.state_hashes(kept) == (whole.weights, whole.moments), "shared by hard links, and still whole"
    assert state.read_state(kept).interval.updates == 1


def test_the_hash_of_losses_covers_numbers_and_not_times() -> None:
    interval = {"loss": 1.5, "nll": 1.0, "ppl": 2.7, "learning_rate": 1e-3, "gradient_norm": 0.5}
    records = [
        {"update": 2, "seconds": 1.0, **interval},
        {"update": 3, "seconds": 2.0, "valid_loss": 2.0, "valid_ppl": 7.4},
        {"update": 4, "seconds": 3.0, **interval},
    ]
    whole = chain.losses_hash(records, 0, 4)
    assert chain.losses_hash([{**record, "seconds": 9.0} for record in reversed(records)], 0, 4) == whole
    assert chain.losses_hash(records, 2, 4) != whole
    assert chain.losses_hash(records, 2, 4) == chain.losses_hash(records[1:], 0, 9)
    for number, record in enumerate(records):
        for key in record.keys() - {"update", "seconds"}:
            changed = [*records[:number], {**record, key: record[key] + 1e-9}, *records[number + 1 :]]
            assert chain.losses_hash(changed, 0, 4) != whole, key


def test_the_digest_of_tensors_covers_name_dtype_shape_and_bytes() -> None:
    one = {"a": torch.zeros(2, 3), "b": torch.ones(4)}
    same = {"b": torch.ones(4), "a": torch.zeros(3, 2).T.contiguous()}
    assert tensors.digest(one) == tensors.digest(same)
    others = [
        {"a": torch.zeros(3, 2), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "c": torch.ones(4)},
        {"a": torch.zeros(2, 3).to(torch.int32), "b": torch.ones(4)},
        {"a": torch.zeros(2, 3), "b": torch.nextafter(torch.ones(4), torch.zeros(4))},
    ]
    assert len({tensors.digest(variant) for variant in [one, *others]}) == 5
    # A view of every second value, as it is and copied.
    assert tensors.digest({"a": torch.arange(6.0)[::2]}) == tensors.digest({"a": torch.tensor([0.0, 2.0, 4.0])})


def test_states_are_kept_at_links(tiny_job: MakeJob) -> None:
    def every(**changes: Any) -> int | None:
        return chain.keep_every(TrainingSettings.model_validate(tiny_job(**changes)["training"]))

    assert every(updates=1450, verify_every=20, keep_states=3) == 380
    assert every(updates=100_000, verify_every=500, keep_states=3) == 25_000
    assert every(updates=30, keep_states=1) == 15
    assert every(updates=1100, verify_every=500, keep_states=3) == 500
    assert every(updates=30) is None
