"""The files of a run: what they hold after a kill, on a full disk, and of stages that DVC restored."""

from __future__ import annotations

import json
import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_line import wmt
from records import configure, run

from nmt.config import InputError
from pipeline.common.stage import Interrupted
from pipeline.runs import stage_tracker
from pipeline.runs.record import Record, append, current_record, read, records
from pipeline.runs.stage_tracker import StageTracker
from pipeline.tracking.publish import Server


@pytest.fixture(autouse=True)
def root(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without MLflow."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    return root


@contextmanager
def room(path: Path, count: int) -> Iterator[None]:
    """Let the file grow by `count` bytes: what is longer is written in part, as on a disk that is nearly full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("ending", [b"", b'{"half'])
def test_a_line_that_does_not_fit_is_not_there_at_all(tmp_path: Path, ending: bytes) -> None:
    path = tmp_path / "lines"
    append(path, {"number": 1})
    with path.open("ab") as file:
        file.write(ending)
    before = path.read_bytes()
    with pytest.raises(OSError, match="File too large"), room(path, 10):
        append(path, {"number": 2})
    assert path.read_bytes() == before
    append(path, {"number": 3})
    assert read(path)[0] == [{"number": 1}, {"number": 3}]


def test_a_line_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    append(path, {"a": "b\u2028c"})
    lines, offset = read(path)
    with path.open("ab") as file:
        file.write('{"time": 1, "name": "ü'.encode()[:-1])
    assert read(path, offset) == ([], offset)
    append(path, {"number": 2})
    assert (lines, read(path, offset)[0]) == ([{"a": "b\u2028c"}], [{"number": 2}])


def test_a_full_disk_is_reported_once_and_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with stage_tracker.open_run("train") as tracker:
        tracker.metrics({"loss": 1.0}, 1)
        record = current_record()
        assert record is not None
        with room(record.history, 10):
            tracker.metrics({"loss": 1.0}, 2)
            tracker.metrics({"loss": 1.0}, 3)
        tracker.metrics({"loss": 1.0}, 4)
    assert [line["update"] for line in read(record.history)[0]] == [1, 4]
    assert capsys.readouterr().err.count("the stage goes on without it") == 1


def test_results_and_the_curves_of_a_cached_training_come_from_the_files(root: Path) -> None:
    curves = Path("results/training.csv"), Path("results/validation.csv")
    curves[0].write_text("update,loss,ppl\n1,5.0,150.0\n2,4.0,55.0\n3,3.0,20.0\n")
    curves[1].write_text("update,valid_loss\n2,4.5\n")
    Path("results/scores.json").write_text('{"bleu": 27.3}')
    with stage_tracker.open_run("train") as tracker:
        tracker.metrics({"loss": 5.0, "ppl": 150.0}, 1)
        tracker.metrics({"loss": 4.0, "ppl": 55.0}, 2)
    for _ in range(2):
        with stage_tracker.open_run("score"):
            pass
    (record,) = records(root / "runs")
    lines = [(line["update"], line["values"]) for line in read(record.history)[0]]
    assert lines == [
        (1, {"loss": 5.0, "ppl": 150.0}),
        (2, {"loss": 4.0, "ppl": 55.0}),
        (2, {"valid_loss": 4.5}),
        (3, {"loss": 3.0, "ppl": 20.0}),
    ]
    Path("results/scores.json").unlink()
    assert json.loads((record.results / "scores.json").read_text()) == {"bleu": 27.3}


def test_results_of_another_run_that_are_still_there_are_not_collected(root: Path) -> None:
    """DVC removes them when their stage begins: until then they are those of an earlier configuration."""
    Path("results/scores.json").write_text('{"bleu": 27.3}')
    Path("results/training.csv").write_text("update,loss\n1,5.0\n")
    with stage_tracker.open_run("binarize"):
        pass
    (record,) = records(root / "runs")
    assert not (record.results / "scores.json").exists()
    assert not record.history.exists()


def test_a_run_whose_stages_were_all_cached_is_complete(root: Path) -> None:
    Path("results/scores.json").write_text('{"bleu": 27.3}')
    with pytest.raises(InputError), stage_tracker.open_run("train"):
        raise InputError("refused")  # And another run of the same configuration trained.
    (record,) = records(root / "runs")
    record.finish(["resolve", "train", "score", "report"])
    assert (record.status(), record.is_complete()) == ("FINISHED", True)
    assert {stage["status"] for stage in record.stages().values()} == {"cached"}
    assert "commit" in record.stages()["report"]["evidence"]["tags"]


def test_every_stage_says_how_it_ended_and_what_its_numbers_rest_on(root: Path) -> None:
    with stage_tracker.open_run("tokenize") as tracker:
        tracker.metrics({"pairs": 3})
        (record,) = records(root / "runs")
        assert (record.status(), record.stages()["tokenize"]["status"]) == ("RUNNING", "running")
    with pytest.raises(InputError), stage_tracker.open_run("binarize"):
        raise InputError("too few")
    tokenize, binarize = record.stages().values()
    assert (tokenize["status"], tokenize["metrics"]) == ("finished", {"pairs": 3})
    assert tokenize["seconds"] == (tokenize["end"] - tokenize["start"]) / 1000
    assert (binarize["status"], record.status()) == ("failed", "FAILED")
    assert {"commit", "version.torch", "hardware.cpu"} <= tokenize["evidence"]["tags"].keys()
    assert "pipeline/common" in tokenize["evidence"]["deps"]


def test_runs_are_named_by_row_corpus_and_seed_and_say_what_differs_from_the_row(root: Path) -> None:
    configure({"run": {"row": "C-N2", "pair": "en-de", "corpus": "wmt14", "seed": 3}, "model": {"N": 2, "h": 4}})
    with stage_tracker.open_run("tokenize"):
        pass
    (record,) = records(root / "runs")
    assert record.folder.name.startswith("C-N2-wmt14-s3-")
    described = record.description()
    assert described["name"] == "C-N2-wmt14-s3"
    assert (described["row"], described["corpus"], described["seed"]) == ("C-N2", "wmt14", 3)
    assert described["settings"] == {"model.h": 4}, "the row has N = 2 itself"


def test_before_there_is_a_configuration_nothing_is_tracked(root: Path) -> None:
    Path("results/config.yaml").unlink()
    with pytest.raises(ValueError, match="refused"), stage_tracker.open_run("resolve"):
        raise ValueError("refused")
    assert not (root / "runs").exists()


def test_a_run_is_named_by_its_orchestrator_where_there_is_one(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = current_record()
    monkeypatch.setenv("WMT_RUN", "../flow/1")
    named = current_record()
    assert named is not None
    assert named.folder == root / "runs/___flow_1"
    assert alone is not None
    assert alone.folder.parent == root / "runs"


def test_code_of_training_that_differs_is_another_run() -> None:
    """Not that of other stages, nor what all stages share: a new stage edits that."""
    train, decode = "{cmd: x, meta: {trains: true}, deps: [nmt/model.py, pipeline]}", "{cmd: x, deps: [nmt/search.py]}"
    Path("dvc.yaml").write_text(f"stages: {{train: {train}, decode: {decode}}}")
    for name in ("nmt", "pipeline"):
        Path(name).unlink()  # The link to this copy's code.
        Path(name).mkdir()
    for name in ("nmt/model.py", "nmt/search.py", "pipeline/paths.py"):
        Path(name).write_text("a = 1\n")

    def folder() -> Path:
        record = current_record()
        assert record is not None
        return record.folder

    before = folder()
    for name in ("nmt/search.py", "pipeline/paths.py"):
        Path(name).write_text("a = 2\n")
    assert folder() == before
    Path("nmt/model.py").write_text("a = 2\n")
    assert folder() != before


def test_recording_costs_little() -> None:
    with stage_tracker.open_run("decode") as tracker:
        assert isinstance(tracker, StageTracker)
        start = time.process_time()
        for update in range(1, 1001):
            tracker.metrics({"loss": 1.0, "nll": 1.0, "tokens_per_second": 1.0}, update)
        seconds = time.process_time() - start
    assert seconds < 1.0, "under a millisecond a record, where an update takes tenths of a second"


def test_without_mlflow_one_line_is_printed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    Path("results/scores.json").write_text('{"bleu": 27.3}')
    with stage_tracker.open_run("report"):
        pass
    lines = capfd.readouterr().err.strip().split("\n")
    assert len(lines) == 1
    assert lines[0].startswith("report: tracking: MLflow is not installed: the run is in ")
    (record,) = records(root / "runs")
    assert record.is_complete()
    assert Record(record.folder).published() == {}


def test_a_patience_that_is_no_number_is_refused_before_the_stage_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_TRACKING_PATIENCE", "a minute")
    with pytest.raises(InputError, match="WMT_TRACKING_PATIENCE is 'a minute'"), stage_tracker.open_run("score"):
        pytest.fail("the stage began")


def test_a_second_process_of_a_run_says_that_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = StageTracker("train"), StageTracker("train")
    first.open()
    assert first.record is not None
    with ThreadPoolExecutor(1) as other:
        opened = other.submit(second.open)
        said, end = "", time.monotonic() + 60
        while "\n" not in said and time.monotonic() < end:
            time.sleep(0.05)
            said += capsys.readouterr().err
        assert said == f"train: waiting for another process of this run ({first.record.folder.name})\n"
        assert not opened.done()
        first.close("finished")
        opened.result(60)
        second.close("finished")


def test_a_training_on_other_data_is_another_run(root: Path) -> None:
    """After a kill, a stage of the data was mended: training begins anew, and two curves must not become one."""
    folders = []
    for md5, updates in (("1" * 32, 800), ("1" * 32, 900), ("2" * 32, 300)):
        data = {"path": "data/binned", "md5": f"{md5}.dir"}
        Path("data/binned").mkdir(parents=True, exist_ok=True)
        Path("dvc.lock").write_text(json.dumps({"stages": {"binarize": {"outs": [data]}}}))
        with stage_tracker.open_run("binarize"):
            pass
        with suppress(Interrupted), stage_tracker.open_run("train") as tracker:
            tracker.metrics({"loss": 5.0}, updates)
            raise Interrupted
        record = current_record()
        assert record is not None
        folders.append(record.folder.name)
    killed, resumed, other = folders
    assert killed == resumed != other
    found = {record.folder.name: record for record in records(root / "runs")}
    assert [line["update"] for line in read(found[killed].history)[0]] == [800, 900]
    assert [line["update"] for line in read(found[other].history)[0]] == [300]
    assert list(found[other].stages()) == ["binarize", "train"]
    assert (found[killed].status(), found[killed].is_complete()) == ("KILLED", True)


@pytest.mark.parametrize(
    ("file", "content"), [("run.json", "{"), ("run.json", "{}"), ("stages/tokenize.json", '{"status": "failed"}')]
)
def test_a_damaged_record_is_in_the_way_of_no_other(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, file: str, content: str
) -> None:
    published: list[str] = []

    def publish(server: Server, record: Record, wait: bool = True) -> None:
        assert record.description()
        published.append(record.folder.name)

    monkeypatch.setattr(Server, "publish", publish)
    for row in ("base", "big"):
        configure(run(row))
        with pytest.raises(InputError), stage_tracker.open_run("tokenize"):
            raise InputError("refused")
    damaged, sound = records(root / "runs")
    (damaged.folder / file).write_text(content)
    capsys.readouterr()
    for command in ("runs", "publish"):
        assert wmt(command) == 0
        said = capsys.readouterr()
        assert [sound.folder.name in said.out, damaged.folder.name in said.out] == [True, False]
        assert said.err.startswith(f"{command}: {damaged.folder / file} ")
        assert said.err.endswith(f": restore it, or remove {damaged.folder}\n")
        assert said.err.count("\n") == 1
    Server(root).publish_waiting(root / "runs")
    assert published == [sound.folder.name] * 2
