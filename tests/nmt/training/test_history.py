"""The files of JSON lines that a training appends to, read while it works and after a kill."""

import math
import os
from pathlib import Path

import pytest
from trainings import CONDITIONS, MakeJob

from nmt.flops import LengthSums
from nmt.training.history import HistoryReader, interval_record, perplexity, read_history
from nmt.training.settings import Job
from nmt.training.state import Interval, TrainState


def test_the_utilisation_is_that_of_all_gpus(tiny_job: MakeJob) -> None:
    job, gpu = Job.model_validate(tiny_job()), CONDITIONS.model_copy(update={"device": "NVIDIA H100 80GB HBM3"})
    interval = Interval(updates=1, seconds=2.0, sums=LengthSums(1, 4, 5, 16, 25, 20))
    here = {"conditions": gpu, "update": 3}
    states = [TrainState(**here, updates=3, validate_every=3, processes=count) for count in (1, 2)]
    one, two = (interval_record(job, state, interval) for state in states)
    assert two["utilisation"] == one["utilisation"] / 2 > 0


def test_the_gradient_norm_is_the_mean_of_the_finite_ones(tiny_job: MakeJob) -> None:
    sums = {"norm": 6.0, "updates": 4, "seconds": 2.0, "sums": LengthSums(1, 4, 5, 16, 25, 20)}
    state = TrainState(update=3, updates=3, validate_every=3, processes=1, conditions=CONDITIONS)
    job, counts = Job.model_validate(tiny_job()), (0, 1, 4)
    records = [interval_record(job, state, Interval(**sums, skipped=skipped)) for skipped in counts]
    assert [record["gradient_norm"] for record in records[:2]] == [1.5, 2.0]
    assert math.isfinite(records[2]["gradient_norm"]), "none was finite"


def test_the_perplexity_of_a_model_that_knows_nothing_is_a_number() -> None:
    assert perplexity(math.log(7.0)) == pytest.approx(7.0)
    assert perplexity(1e6) == perplexity(99.0) == pytest.approx(math.exp(99.0))


def test_new_records_are_read_once_and_a_replaced_history_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history = HistoryReader(path)
    assert history.new() == []
    path.write_text('{"update": 1}\n{"update": 2}\n{"upd')
    assert history.new() == [{"update": 1}, {"update": 2}]
    assert history.new() == []
    with path.open("a") as file:
        file.write('ate": 3}\n')
    assert history.new() == [{"update": 3}]
    path.write_text('{"update": 1}\n')
    assert history.new() == [{"update": 1}]
    # After a power failure, until the training resumes and writes it anew.
    with path.open("a") as file:
        file.write("\0\0\n")
    assert history.new() == history.new() == []
    path.write_text('{"update": 1}\n{"update": 2}\n')
    assert history.new() == [{"update": 2}]
    (tmp_path / "anew").write_text('{"update": 1}\n{"update": 2}\n{"update": 3}\n')
    os.replace(tmp_path / "anew", path)
    assert [record["update"] for record in history.new()] == [1, 2, 3], "longer than before, but another file"


@pytest.mark.parametrize("rest", [b'{"upd', b'{"upd\n', bytes(50), bytes(50) + b'\n{"update": 3}\n', b"\xff\xfe\n"])
def test_a_history_is_read_up_to_what_a_kill_or_a_power_failure_left(tmp_path: Path, rest: bytes) -> None:
    (tmp_path / "h").write_bytes(b'{"update": 1}\n' + rest)
    assert read_history(tmp_path / "h") == [{"update": 1}]
    assert read_history(tmp_path / "none") == []
