from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from clones import STAGES
from command_line import wmt

from nmt import flops
from nmt.config import InputError
from pipeline import machine
from pipeline.commands import plan
from pipeline.common.paths import CONFIG
from pipeline.common.settings import Configuration
from pipeline.config import graph, resolution
from pipeline.stages import train
from pipeline.training import launch

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def configuration(row: str, pair: str = "en-de", corpus: str = "wmt14") -> Configuration:
    return resolution.resolve({"row": row, "pair": pair, "corpus": corpus, "seed": 1, "overrides": {}})


def test_base_on_wmt14_is_what_the_paper_says_it_is() -> None:
    base = configuration("base")
    corpus = plan.corpus_size(base, prepared=False)
    assert (corpus.pairs, corpus.origin) == (4_508_785, "known")
    assert 36_000 < corpus.vocabulary < 38_000
    needs = plan.needs(base, corpus)
    # Six operations a weight and token pair: 6 * 65e6 * 25,000 * 100,000, and attention on top.
    assert needs.flops == pytest.approx(6 * 65e6 * 2.5e9, rel=0.1)
    assert needs.disk["downloads"] == 657632379 + 918311367 + 80418416 + 38654961
    assert 5e9 < sum(needs.disk.values()) < 20e9


def test_more_of_everything_needs_more() -> None:
    base, big = configuration("base", "en-fr"), configuration("big", "en-fr")
    corpus = plan.corpus_size(base, prepared=False)
    assert corpus.pairs == 40_836_715
    less, more = (plan.needs(row, corpus) for row in (base, big))
    assert more.flops > 8 * less.flops
    assert more.memory > 2 * less.memory
    assert more.disk["data/raw"] == less.disk["data/raw"]
    fewer = base.model_copy(update={"training": base.training.model_copy(update={"shards": 4})})
    assert plan.needs(fewer, corpus).memory > less.memory


def test_a_prepared_corpus_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps({"pairs": 100, "target_tokens": 1500, "vocabulary": 640}))
    monkeypatch.setattr(plan, "BINNED_STATS", stats)
    sample = configuration("sample", corpus="sample")
    counted = plan.corpus_size(sample, prepared=True)
    assert (counted.pairs, counted.subwords, counted.vocabulary) == (100, 15.0, 640)
    assert plan.corpus_size(sample, prepared=False).origin.startswith("guessed")


def test_the_sample_is_guessed_within_a_factor_of_three() -> None:
    guess = plan.corpus_size(configuration("sample", corpus="sample"), prepared=False)
    assert 8_000 < guess.pairs < 72_000


def test_the_rate_is_measured_by_real_updates() -> None:
    sample = configuration("sample", corpus="sample")
    rate, device = plan.measured_rate(sample, plan.corpus_size(sample, prepared=False), seconds=0.1)
    assert rate > 1e8
    assert device


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with this one's stages and their code, which DVC has on record as run on the sample."""
    folder = tmp_path_factory.mktemp("committed")
    with contextlib.chdir(ROOT):
        stages = graph.stages().values()
        code = {str(path) for stage in stages for path in stage.code}
    outs = {path for stage in stages for path in stage.outs}
    for name in ("dvc.yaml", "params.yaml", ".dvc/config", "pipeline/config/rows.yaml", *code):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("data/catalog", "data/local", "data/binned"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / plan.BINNED_STATS).write_text(
        json.dumps({"pairs": 24_000, "target_tokens": 480_000, "vocabulary": 4_000})
    )
    for path in outs:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (folder / path).exists():
            (folder / path).write_text(path)
    (folder / CONFIG).write_text(resolution.text(configuration("sample", corpus="sample")))
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    subprocess.run([sys.executable, "-m", "dvc", "commit", "--force", "--quiet"], cwd=folder, check=True)
    return folder


@pytest.fixture
def finished(committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """A repository in which every stage ran with the configuration returned, and nothing changed since."""
    asked = configuration("sample", corpus="sample")
    shutil.copytree(committed, tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "repository")
    return asked


def runs(asked: Configuration) -> dict[str, str]:
    return {name: reason for name, reason in plan.stages_to_run(asked).items() if reason}


def test_nothing_would_run_after_a_finished_run(finished: Configuration) -> None:
    assert "epsilon: 1e-09" in Path("dvc.lock").read_text(), "DVC's way to write it, which PyYAML takes for text"
    assert runs(finished) == {}
    shutil.rmtree("results")
    assert runs(finished) == {}, "DVC restores what it has on record"


def test_a_training_value_reruns_training_and_what_follows(finished: Configuration) -> None:
    training = finished.training.model_copy(update={"updates": 7})
    changed = finished.model_copy(update={"training": training})
    assert list(runs(changed)) == ["train", "average", "decode", "score", "certify", "attention", "report"]
    assert runs(changed)["train"] == "settings changed: training"


def test_code_of_search_reruns_decoding_and_what_follows(finished: Configuration) -> None:
    Path("nmt/inference/search.py").write_text("# Another.\n")
    shutil.rmtree("models")
    path = Path("dvc.yaml")
    path.write_text(path.read_text().replace("python -m pipeline score", "python -m pipeline score --again"))
    found = runs(finished)
    assert found == {
        "decode": "changed: nmt/inference",
        "score": "changed: the command",
        "attention": "changed: nmt/inference",
        "certify": "follows decode, score",
        "report": "follows attention, certify, decode, score",
    }


def test_adding_a_corpus_leaves_the_download_of_another_up_to_date(finished: Configuration) -> None:
    put("data/local/other/train.en", 1)
    put("data/catalog/other.yaml", 1)
    assert runs(finished) == {"resolve": "changed: data/catalog, data/local"}


def test_the_version_of_sacrebleu_decides_scores_and_their_certificate_alone(
    finished: Configuration, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    upgraded = finished.model_copy(update={"versions": finished.versions.model_copy(update={"sacrebleu": "0.0.1"})})
    assert list(runs(upgraded)) == ["score", "certify", "report"]
    monkeypatch.setattr(resolution, "read_params", dict)
    monkeypatch.setattr(resolution, "resolve", lambda _: upgraded)
    plan.report(measure=False)
    assert "a library changed: run `dvc repro --force --single-item resolve` first" in capsys.readouterr().out
    monkeypatch.setattr(resolution, "resolve", lambda _: finished)
    plan.report(measure=False)
    assert "a library changed" not in capsys.readouterr().out


def test_before_the_first_run_every_stage_would_run(finished: Configuration) -> None:
    Path("dvc.lock").unlink()
    assert list(runs(finished).values()) == ["never ran here"] * len(STAGES)


def test_outside_a_repository_dvc_has_no_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = configuration("sample", corpus="sample")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="dvc status fails"):
        plan.stages_to_run(asked)


@pytest.fixture
def wmt14(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configuration:
    """An empty repository with its state in state/, and what it is to run."""
    asked = configuration("base")
    for name in ("nmt", "pipeline", "dvc.yaml"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WMT_STATE", "state")
    return asked


VOCABULARY = 37_056


def left(asked: Configuration, *made_again: str) -> dict[str, int]:
    """What is still needed where these stages and those after them run."""
    corpus = plan.Corpus(1_000_000, 28, VOCABULARY, "known")
    needs = plan.needs(asked, corpus)
    reasons = {name: "changed" if name in made_again else "" for name in (*plan.MAKERS.values(), "train")}
    missing = plan.still_needed(needs, asked, corpus, reasons)
    assert missing.keys() == needs.disk.keys()
    return {name: needs.disk[name] - number for name, number in missing.items() if number != needs.disk[name]}


def put(path: str, size: int) -> None:
    """A file of that size; it takes no room."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with Path(path).open("wb") as file:
        file.truncate(size)


ALL = ("download", "tokenize", "binarize", "train", "average")


def test_what_other_runs_keep_is_not_taken_for_this_ones(wmt14: Configuration) -> None:
    put("state/train/0123456789ab-0123456789ab/resume/update-000009/model.safetensors", 100 * 2**30)
    put("state/mlflow.db", 2**30)
    put(f"state/downloads/{'0' * 64}", 2**40)
    put("data/raw/train.other.en", 2**40)
    put("models/average/model.safetensors", 2**40)
    assert left(wmt14, *ALL) == {}


def test_archives_at_hand_are_not_fetched_again(wmt14: Configuration) -> None:
    europarl, commoncrawl = wmt14.data.archives[:2]
    put(f"state/downloads/{europarl.sha256}", europarl.bytes or 0)
    put(f"state/downloads/{commoncrawl.sha256}.part", 1000)
    assert left(wmt14, *ALL) == {"downloads": (europarl.bytes or 0) + 1000}


def test_outputs_that_stay_take_no_more_room(wmt14: Configuration) -> None:
    disk = plan.needs(wmt14, plan.Corpus(1_000_000, 28, VOCABULARY, "known")).disk
    # Where no stage would run, what is not there has to be made or restored all the same.
    put("data/raw/train.europarl-v7.en", 1)
    assert left(wmt14, *ALL[1:]) == {name: disk[name] for name in ("downloads", "data/raw")}
    for name in plan.MAKERS:
        put(f"{name}/file", 1)
    assert left(wmt14) == disk
    assert left(wmt14, "average") == {name: disk[name] for name in disk if name != "models"}


def test_an_interrupted_training_has_its_state_already(wmt14: Configuration) -> None:
    put("data/binned/train.arrow", 100)
    CONFIG.parent.mkdir()
    CONFIG.write_text(resolution.text(wmt14))
    Path("data/binned/stats.json").write_text(json.dumps({"vocabulary": VOCABULARY}))
    begun: list[Path] = []
    nothing: Any = None  # Nothing is measured before a training begins.

    def begin(folder: Path, watch: object) -> int:
        begun.append(folder)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        train.run(nothing, begin, lambda updates: nullcontext(nothing))
    (state,) = begun
    (state / "job.yaml").unlink()
    put(f"{state}/checkpoints/update-000000500.safetensors", 1000)
    put(f"{state}/resume/update-000000500/model.safetensors", 3000)
    assert left(wmt14, "download", "tokenize", "train", "average")["training state"] == 4000
    # Other data make another state.
    assert "training state" not in left(wmt14, *ALL)
    put(f"{state}/resume/update-{wmt14.training.updates + 1:09}/model.safetensors", 3000)
    assert "training state" not in left(wmt14, "download", "tokenize", "train", "average")


def test_a_parser_is_counted_with_its_own_table_of_symbols(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    params = {"row": "parse-sample", "pair": "en-tree", "corpus": "sample-trees", "seed": 1, "overrides": {}}
    asked = resolution.resolve(params)
    assert plan.corpus_size(asked, prepared=False).target_vocabulary == 128
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WMT_STATE", "state")
    Path("data/binned").mkdir(parents=True)
    stats = {"pairs": 10, "target_tokens": 500, "vocabulary": 2048, "target_vocabulary": 64}
    Path("data/binned/stats.json").write_text(json.dumps(stats))
    corpus = plan.corpus_size(asked, prepared=True)
    assert plan.needs(asked, corpus).disk["models"] == 2 * 4 * flops.parameters(asked.model, 2048, 64)
    assert plan.measured_rate(asked, corpus, seconds=0.1)[0] > 0


def disk(**bytes_: int) -> plan.Needs:
    """Nothing but this needed."""
    names = ("downloads", *plan.MAKERS, "training state")
    return plan.Needs({name: bytes_.get(name.split("/")[-1].replace(" ", "_"), 0) for name in names}, 1, 1)


def test_too_little_room_is_told(wmt14: Configuration, capsys: pytest.CaptureFixture[str]) -> None:
    enough, much = disk(raw=1), disk(raw=2**60)
    assert plan.report_disk(enough, enough.disk, Path(".dvc/cache"))
    assert "NOT ENOUGH" not in capsys.readouterr().out
    assert not plan.report_disk(much, much.disk, Path(".dvc/cache"))
    output = capsys.readouterr().out
    assert output.count("NOT ENOUGH") == output.count("more are needed") == 1
    assert plan.report_disk(much, disk().disk, Path(".dvc/cache"))


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another disk than the repository."""
    if not Path("/dev/shm").is_dir() or Path("/dev/shm").stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("/dev/shm is no other disk here")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_every_disk_has_to_hold_its_own_share(
    wmt14: Configuration, other_disk: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WMT_STATE", str(other_disk / "state"))
    corpus = plan.Corpus(1_000_000, 28, VOCABULARY, "known")
    with monkeypatch.context() as together:
        together.setenv("WMT_STATE", "state")
        linked = plan.needs(wmt14, corpus).disk["models"]
    assert plan.needs(wmt14, corpus).disk["models"] > 3 * linked
    free = {path: shutil.disk_usage(path).free for path in (Path(), other_disk)}
    much = disk(training_state=free[other_disk] + 2**30)
    assert not plan.report_disk(much, much.disk, Path(".dvc/cache"))
    here, there = [line for line in capsys.readouterr().out.split("\n") if "more are needed" in line]
    assert ("NOT ENOUGH" in here, "NOT ENOUGH" in there) == ("training state" in here, "training state" in there)
    # What either has room for alone is no matter of their sum.
    both = disk(raw=free[Path()] // 2, downloads=free[other_disk] // 2)
    assert plan.report_disk(both, both.disk, Path(".dvc/cache"))
    # A cache on another disk holds copies.
    outputs = disk(binned=free[other_disk] + 2**30)
    assert not plan.report_disk(outputs, outputs.disk, other_disk / "cache")


def test_memory_of_the_machine_matters_where_it_trains_without_a_gpu(
    finished: Configuration, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 1, "overrides": {}}
    monkeypatch.setattr(resolution, "read_params", lambda: params)
    monkeypatch.setattr(resolution, "resolve", lambda _: finished)
    monkeypatch.setattr(machine, "memory", lambda: 2**20)
    for gpus in (0, 1):
        monkeypatch.setattr(launch, "count_gpus", lambda gpus=gpus: gpus)
        assert wmt("plan", "--no-measure") == (0 if gpus else 1)
        output = capsys.readouterr().out
        found = tuple(sentence in output for sentence in ("NOT ENOUGH", "in this machine", "of each GPU"))
        assert found == (not gpus, not gpus, gpus)


def test_a_link_to_a_text_that_is_gone_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = configuration("base")
    monkeypatch.chdir(tmp_path)
    Path("data/local/mine").mkdir(parents=True)
    Path("data/local/mine/train.en").symlink_to("/gone/train.en")
    with pytest.raises(InputError, match=r"train\.en leads to /gone/train\.en, which is not there.*: restore"):
        plan.stages_to_run(base)


def test_an_unknown_row_is_one_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"row": "bas", "pair": "en-de", "corpus": "wmt14", "seed": 1, "overrides": {}}
    monkeypatch.setattr(resolution, "read_params", lambda: params)
    assert wmt("plan", "--no-measure") == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("plan: ")
    assert printed.err.count("\n") == 1
