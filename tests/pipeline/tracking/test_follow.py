"""A training that MLflow is told of while it works, whatever the server does meanwhile."""

import json
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import DEFAULT, Mock

import pytest
from agents import wait_for
from command_line import printed, wmt
from data_stages import data_section, write_sides
from filelock import FileLock
from model_folders import folder_of
from tracked import STATE, configure, connected, history, recorded, write_results

from nmt.codec import Codec
from nmt.common.processes import Interrupted
from nmt.errors import InputError
from nmt.text.settings import TokenizerSettings
from pipeline.config import rows
from pipeline.tracking import follow as following
from pipeline.tracking import publish, registry, sample, server, source
from pipeline.tracking.follow import follow


@pytest.fixture
def state(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(following, "INTERVAL", 0.2)
    monkeypatch.setattr(following, "RETRY", 0.2)
    monkeypatch.setattr(registry, "register", lambda *_: None)
    folder = root / "train" / STATE
    folder.mkdir(parents=True)
    return folder


def measure(state: Path, *updates: int, seconds: float = 1.0) -> None:
    """What a training process writes."""
    with (state / "history.jsonl").open("a") as file:
        for update in updates:
            file.write(json.dumps({"update": update, "seconds": seconds * update, "loss": 1 / update}) + "\n")
            if update % 10 == 0:
                values = {"valid_loss": 2 / update, "valid_ppl": float("nan")}
                for record in (values, {"outputs": {"1": [5]}}):
                    file.write(json.dumps({"update": update, "seconds": seconds * update + 0.5, **record}) + "\n")


def status(root: Path) -> list[str]:
    return [run.info.status for run in recorded(root)]


def test_a_training_is_followed_and_then_completed(root: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.2")
    with follow(state):
        measure(state, *range(1, 1201))
        wait_for(lambda: any("loss" in run.data.metrics for run in recorded(root)))
        wait_for(lambda: "system/cpu_utilization_percentage" in recorded(root)[0].data.metrics)
        assert status(root) == ["RUNNING"]
        measure(state, 1201)
    (run,) = recorded(root)
    assert run.info.status == "SCHEDULED", "stages follow"
    assert wmt("publish") == 0
    assert status(root) == ["SCHEDULED"], "no training was killed"
    assert {"hardware", "versions", "commit"} <= run.data.tags.keys()
    assert history(root, run, "loss") == [(update, 1 / update) for update in range(1, 1202)]
    assert [step for step, _ in history(root, run, "valid_loss")] == list(range(10, 1201, 10))
    assert "seconds" not in run.data.metrics
    with connected(root / "mlflow.db") as client:
        last = max(point.timestamp for point in client.get_metric_history(run.info.run_id, "loss"))
    assert last == run.info.start_time + 1_201_000, "a training's own time, without interruptions"
    write_results()
    publish.finish("report")
    (run,) = recorded(root)
    assert (run.info.status, run.data.metrics["bleu"]) == ("FINISHED", 27.3)
    assert len(history(root, run, "loss")) == 1201, "the tables' points are there already"


def test_a_resumed_training_is_the_same_run_without_a_second_point(root: Path, state: Path) -> None:
    measure(state, *range(1, 16))
    with pytest.raises(Interrupted), follow(state):
        raise Interrupted
    assert status(root) == ["KILLED"]
    # Resumed from update 8: the rest is measured again, at other times.
    (state / "history.jsonl").unlink()
    measure(state, *range(1, 9))
    measure(state, *range(9, 21), seconds=1.5)
    with follow(state):
        wait_for(lambda: status(root) == ["RUNNING"])
    (run,) = recorded(root)
    assert history(root, run, "loss") == [(update, 1 / update) for update in range(1, 21)]
    assert [step for step, _ in history(root, run, "valid_loss")] == [10, 20]


@pytest.mark.parametrize(("error", "expected"), [(InputError("wrong"), "FAILED"), (KeyboardInterrupt(), "KILLED")])
def test_a_training_that_ends_badly_says_how(root: Path, state: Path, error: BaseException, expected: str) -> None:
    with pytest.raises(type(error)), follow(state):
        raise error
    assert status(root) == [expected]


def test_a_run_that_no_process_trains_is_killed_for_the_next_publication(root: Path, state: Path) -> None:
    with connected(root / "mlflow.db") as client:
        server.open_run(client, STATE)
    with FileLock(state / "lock"):
        assert printed("publish").startswith("nothing to publish: ")
    assert status(root) == ["RUNNING"], "a process is at it"
    assert printed("publish") == "P_drop=0.2 · base-wmt14-s1: killed\n"
    assert status(root) == ["KILLED"]
    with connected(root / "mlflow.db") as client:
        server.open_run(client, "of-another-machine")
    assert printed("publish").startswith("nothing to publish: ")
    assert status(root) == ["KILLED", "RUNNING"]


def test_a_server_that_is_down_is_told_once_and_delays_nothing(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    # Nothing listens on this port: connections are refused.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    problem = Mock(wraps=server.problem)
    monkeypatch.setattr(server, "problem", problem)
    with follow(state):
        wait_for(lambda: problem.call_count > 1)
        start = time.monotonic()
        measure(state, 1)
    assert time.monotonic() - start < 30
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith("train: tracking: MLflow at http://127.0.0.1:9: ")


def test_the_code_is_sent_again_where_that_failed(root: Path, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "send", Mock(wraps=source.send, side_effect=[ConnectionResetError, *[DEFAULT] * 9]))
    with follow(state):
        measure(state, 1)
        wait_for(lambda: any("loss" in run.data.metrics for run in recorded(root)))
    assert "commit" in recorded(root)[0].data.tags


def test_a_server_that_is_away_for_a_while_loses_and_repeats_nothing(
    root: Path, state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where it has taken what it could not confirm."""
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    send = MlflowClient.log_batch

    def cut_off(*arguments: Any, metrics: list[Any]) -> None:
        send(*arguments, metrics=metrics[:-1])  # A batch may end within a record.
        raise ConnectionResetError("cut off")

    with follow(state):
        measure(state, *range(1, 51))
        wait_for(lambda: any("loss" in run.data.metrics for run in recorded(root)))
        with monkeypatch.context() as away:
            away.setattr(MlflowClient, "log_batch", cut_off)
            measure(state, *range(51, 101))
            wait_for(lambda: len(history(root, recorded(root)[0], "loss")) >= 99)
            measure(state, 101)
        measure(state, 102)
    (run,) = recorded(root)
    assert [step for step, _ in history(root, run, "loss")] == list(range(1, 103))
    for name in ("valid_loss", "valid_ppl"):
        assert [step for step, _ in history(root, run, name)] == list(range(10, 101, 10))
    assert capfd.readouterr().err.count("cut off; `wmt publish` completes the run\n") == 1


# A curve of BLEU and chrF from what a training wrote for some validation lines.

LINES = ["the old man sees a dog .", "She sleeps well , and we do !", "He did not see it ."]
TOKENIZER: dict[str, Any] = {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": False}


@pytest.fixture
def texts(root: Path) -> list[dict[str, Any]]:
    """A repository with a validation set; records of its lines 3 and 2, written badly, then well."""
    preparation = {**rows.settings("sample", "en-de")["preparation"], "tokenizer": TOKENIZER}
    data = data_section("t", valid="news13", test="news14")
    configure({"data": data, "preparation": preparation, "scoring": {"tokenize": None}})
    folder_of(Path("model"))
    write_sides(Path("data/raw/valid.news13"), [(line, line) for line in LINES])
    Path("model.subwords").rename("data/subwords")
    codec = Codec(Path("data/subwords"), "en", "de", TokenizerSettings(**TOKENIZER))
    ids = [codec.encode(line)[:-1] for line in LINES]
    bad, well = {"2": ids[0], "1": ids[0]}, {"2": ids[2], "1": ids[1]}
    return [{"update": update, "seconds": 1.5, "outputs": {}, "sample": ids} for update, ids in ((10, bad), (20, well))]


def test_a_line_is_compared_with_its_own_reference(texts: list[dict[str, Any]]) -> None:
    first, last = sample.scored([{"update": 5, "loss": 1.0}, *texts])
    assert (last["update"], last["seconds"], last[sample.CHRF]) == (20, 1.5, pytest.approx(100))
    assert first[sample.BLEU] < 30
    assert last[sample.BLEU] == pytest.approx(100)


def test_without_the_libraries_or_the_text_there_is_no_curve_and_one_line_says_so(
    texts: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sample.report.cache_clear()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "nmt.evaluation.bleu", raising=False)
        patch.delattr("nmt.evaluation.bleu", raising=False)
        patch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
        for _ in range(2):
            assert not list(sample.scored(texts))
    assert capsys.readouterr().err.startswith("tracking: no BLEU of the validation sample: import of sacrebleu")
    Path("data/raw/valid.news13.de").unlink()
    assert not list(sample.scored(texts))
    assert capsys.readouterr().err.count("\n") == 1
    configure({})
    assert not list(sample.scored([{"update": 5, "outputs": {}}])), "nothing was sampled"


def test_the_curve_is_followed_and_completed_from_results(root: Path, state: Path, texts: list[dict[str, Any]]) -> None:
    with follow(state):
        measure(state, *range(1, 11))
        with (state / "history.jsonl").open("a") as file:
            file.write(json.dumps(texts[0]) + "\n")
    (run,) = recorded(root)
    assert [step for step, _ in history(root, run, sample.CHRF)] == [10]
    (first,) = history(root, run, sample.BLEU)
    write_results()
    write_sides(Path("data/raw/valid.news13"), [(line, line) for line in LINES])
    kept = [{key: value for key, value in record.items() if key != "seconds"} for record in texts]
    Path("results/validation.jsonl").write_text("".join(json.dumps(record) + "\n" for record in kept))
    for _ in range(2):
        assert wmt("publish") == 0
    (run,) = recorded(root)
    assert history(root, run, sample.BLEU) == [first, (20, pytest.approx(100))]
    assert run.data.metrics["valid_bleu"] == 25.8, "of the whole set, by beam search, is another number"
