import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from clones import ROOT, STAGES, Clone
from command_line import printed, wmt
from model_folders import folder_of
from refusals import check_refusal

from nmt import flops
from nmt.common.files import sha256_of
from nmt.common.tensors import WEIGHTS
from pipeline.cli import plan
from pipeline.cli import runs as cli_runs
from pipeline.config import graph, machine, resolution
from pipeline.config.paths import BINNED_STATS, CONFIG
from pipeline.config.settings import Configuration
from pipeline.stages import resolve
from pipeline.trainings import cost


@pytest.fixture(autouse=True)
def in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def configuration(row: str, pair: str = "en-de", corpus: str = "wmt14") -> Configuration:
    with contextlib.chdir(ROOT):
        return resolution.resolve({"row": row, "pair": pair, "corpus": corpus, "seed": 1, "overrides": {}})


def test_base_on_wmt14_is_what_the_paper_says_it_is() -> None:
    base = configuration("base")
    corpus = cost.corpus_size(base, prepared=False)
    assert (corpus.pairs, corpus.origin) == (4_508_785, "known")
    assert 36_000 < corpus.vocabulary < 38_000
    disk, _, operations = cost.needs(base, corpus)
    # Six operations a weight and token pair: 6 * 65e6 * 25,000 * 100,000, and attention on top.
    assert operations == pytest.approx(6 * 65e6 * 2.5e9, rel=0.1)
    archives, text = 657632379 + 918311367 + 80418416 + 38654961, 2 * 150 * 4_508_785
    assert disk["download"] == (archives, text)
    assert 5e9 < sum(map(sum, disk.values())) < 20e9


def test_more_of_everything_needs_more() -> None:
    base, big = configuration("base", "en-fr"), configuration("big", "en-fr")
    corpus = cost.corpus_size(base, prepared=False)
    assert corpus.pairs == 40_836_715
    (less, small, quick), (more, large, slow) = (cost.needs(row, corpus) for row in (base, big))
    assert slow > 8 * quick
    assert large > 2 * small
    assert more["tokenize"] == less["tokenize"]
    fewer = base.model_copy(update={"training": base.training.model_copy(update={"shards": 4})})
    assert cost.needs(fewer, corpus)[1] > small
    twice = base.model_copy(update={"training": base.training.model_copy(update={"r_drop": 5.0})})
    _, larger, slower = cost.needs(twice, corpus)
    assert (larger > small, slower) == (True, 2 * quick)
    averaged = base.model_copy(update={"training": base.training.model_copy(update={"ema_decay": 0.99})})
    disk, larger, as_quick = cost.needs(averaged, corpus)
    assert (larger > small, disk["train"] > less["train"], as_quick) == (True, True, quick)


def counted(folder: Path, monkeypatch: pytest.MonkeyPatch, **numbers: int) -> None:
    """Let the stage binarize have counted these."""
    (folder / "stats.json").write_text(json.dumps(numbers))
    monkeypatch.setattr(cost, "BINNED_STATS", folder / "stats.json")


def test_a_prepared_corpus_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted(tmp_path, monkeypatch, pairs=100, target_tokens=1500, vocabulary=640)
    sample = configuration("sample", corpus="sample")
    corpus = cost.corpus_size(sample, prepared=True)
    assert (corpus.pairs, corpus.subwords, corpus.vocabulary) == (100, 15.0, 640)
    guess = cost.corpus_size(sample, prepared=False)
    assert guess.origin.startswith("guessed")
    assert 8_000 < guess.pairs < 72_000


@pytest.fixture(scope="module")
def committed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this repository, which DVC has on record as run on the sample."""
    from dvc.repo import Repo  # It takes a second, which each of pytest's processes would spend on collecting.

    clone = Clone(tmp_path_factory.mktemp("committed"))
    made = {str(BINNED_STATS): "{}", str(CONFIG): resolution.text(configuration("sample", corpus="sample"))}
    with contextlib.chdir(clone.folder), Repo() as repo:
        made |= {path: path for stage in graph.stages().values() for path in stage.outs if path not in made}
        for path in map(Path, made):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists():  # A folder has a file.
                path.write_text(made[str(path)])
        repo.commit(force=True)
    return clone.folder


@pytest.fixture
def finished(committed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A repository in which every stage ran, and nothing changed since."""
    shutil.copytree(committed, tmp_path / "repository")
    monkeypatch.chdir(tmp_path / "repository")


def runs(asked: Configuration | None = None) -> dict[str, str]:
    asked = asked or resolution.resolve(resolution.read_params())
    return {name: reason for name, reason in plan.stages_to_run(asked).items() if reason}


def test_nothing_would_run_after_a_finished_run_and_every_stage_before_the_first(finished: None) -> None:
    assert "epsilon: 1e-09" in Path("dvc.lock").read_text(), "DVC's way to write it, which PyYAML takes for text"
    assert runs() == {}
    assert printed("plan", "--no-measure").endswith(": nothing to do, nothing has changed\n")
    shutil.rmtree("results")
    assert runs() == {}, "DVC restores what it has on record"
    Path("dvc.lock").unlink()
    assert list(runs().values()) == ["never ran here"] * len(STAGES)


def test_a_training_value_reruns_training_and_what_follows(finished: None) -> None:
    changed = {**resolution.read_params(), "overrides": {"training": {"updates": 7}}}
    Path("params.yaml").write_text(json.dumps(changed))
    reasons = runs()
    assert (reasons["resolve"], reasons["train"]) == ("changed: overrides", "changed: training")
    assert reasons.keys() >= {"train", "average", "decode", "score", "certify", "attention", "report"}
    assert not reasons.keys() & {"download", "tokenize", "learn_subwords", "binarize"}


def test_code_of_search_reruns_decoding_and_what_follows(finished: None) -> None:
    Path("nmt/inference/search.py").write_text("# Another.\n")
    shutil.rmtree("models")
    path = Path("dvc.yaml")
    path.write_text(path.read_text().replace("python -m pipeline score", "python -m pipeline score --again"))
    reasons = runs()
    search = dict.fromkeys(("decode", "attention"), "changed: nmt/inference")
    others = {"score": "changed: the command", "certify": "follows decode, score"}
    assert reasons.items() >= {**search, **others}.items()
    assert reasons["report"].startswith("follows attention, certify, decode, score")
    assert not reasons.keys() & {"binarize", "train", "average"}


def test_adding_a_corpus_leaves_another_up_to_date(finished: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (Path("data/local/other/train.en"), Path("data/catalog/other.yaml")):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert runs() == {"resolve": "changed: data/catalog, data/local", "report": "changed: data/catalog"}
    description = yaml.safe_load(Path("data/catalog/sample.yaml").read_text())["description"]
    for told in (description, "another"):
        Path("results/report.md").unlink()
        Path("results/report.md").write_text(told.replace(",", "\\,"))  # As Markdown escapes some.
        assert resolve.is_current({"report": [{"changed deps": {"data/catalog": "modified"}}]}) == (told == description)
    Path("params.yaml").write_text(Path("params.yaml").read_text().replace("seed: 1", "seed: 2"))
    assert not cli_runs._up_to_date()
    monkeypatch.setattr(resolve, "configuration_here", None)  # It reads local files; a call would be an error.
    assert resolve.is_current({})


def test_the_version_of_sacrebleu_decides_scores_and_their_certificate_alone(finished: None) -> None:
    asked = resolution.resolve(resolution.read_params())
    upgraded = asked.model_copy(update={"versions": asked.versions.model_copy(update={"sacrebleu": "0.0.1"})})
    assert runs(upgraded) == {}, "DVC does not see that a library changed"
    Path("params.yaml").write_text(json.dumps({**resolution.read_params(), "overrides": {"model": None}}))
    reasons = runs(upgraded)
    assert reasons.keys() >= {"resolve", "score", "certify", "report"}
    assert not reasons.keys() & {"binarize", "train", "average", "decode", "attention"}


def test_what_dvc_cannot_say_is_refused(here: Path) -> None:
    asked = configuration("sample", corpus="sample")
    check_refusal("", plan.stages_to_run, asked)
    Path("dvc.yaml").write_text("stages: {}")
    Path("dvc.lock").write_text("<<<<<<< HEAD\n")
    check_refusal(r"^dvc.lock has conflict markers: ", plan.stages_to_run, asked)


def test_a_parser_is_counted_with_its_own_table_of_symbols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = configuration("parse-sample", "en-tree", "sample-trees")
    assert cost.corpus_size(asked, prepared=False).target_vocabulary == 128
    counted(tmp_path, monkeypatch, pairs=10, target_tokens=500, vocabulary=2048, target_vocabulary=64)
    corpus = cost.corpus_size(asked, prepared=True)
    assert cost.needs(asked, corpus)[0]["average"] == (0, 2 * 4 * flops.parameters(asked.model, 2048, 64))
    assert cost.measured_rate(asked, corpus, seconds=0.1) > 1e8


def test_disk_is_summed_over_the_stages_that_would_run_and_memory_is_that_of_the_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "stages_to_run", lambda _: {"download": "", "tokenize": "", "train": "x", "average": "x"})
    disk = {"download": (2**40, 0), "tokenize": (0, 2**40), "train": (3 * 2**20, 0), "average": (0, 2**20)}
    monkeypatch.setattr(plan, "needs", lambda *_: (disk, 2**20, 1))
    monkeypatch.setattr(plan, "running_stage", lambda: "tokenize")
    settings = resolution.resolve({**resolution.read_params(), "overrides": {"training": {"shards": 2}}})
    monkeypatch.setattr(resolution, "resolve", lambda _: settings)
    monkeypatch.setattr(plan.launch, "process_count", lambda *_: 2)
    monkeypatch.setattr(plan, "measured_rate", None)  # A call would be an error.
    arithmetic: list[str] = []
    monkeypatch.setattr(machine, "hide_gpus_if_portable", arithmetic.append)
    for free, memory, gpus in ((4 * 2**20, 2**20, 0), (4 * 2**20 - 1, 2**20, 1), (4 * 2**20, 2**20 - 1, 2)):
        monkeypatch.setattr(machine, "memory", lambda memory=memory: memory)
        monkeypatch.setattr(machine, "gpus", lambda gpus=gpus: [None] * gpus)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free))
        enough = free == 4 * 2**20 and memory == 2**20
        assert wmt("plan", "--no-measure") == (not enough)
        output = capsys.readouterr().out
        assert "A run is going on in this folder, at its stage tokenize;" in output
        assert "4.0 MiB are written, 4.0 MiB are free" in output
        assert f"1.0 MiB for {'the process that trains' if gpus else 'each of the 2 processes that train'}," in output
        sentences = ("NOT ENOUGH", "in this machine", "of each GPU")
        assert tuple(one in output for one in sentences) == (not enough, not gpus, gpus > 0)
        if memory < 2**20:
            assert wmt("plan") == 1, "updates that do not fit in memory are not measured"
            capsys.readouterr()
    assert {*arithmetic} == {"ordinary"}


def test_another_disk_has_its_own_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WMT_STATE", "/dev/shm/state")
    monkeypatch.setattr(plan, "stages_to_run", lambda _: {"download": "x", "average": ""})
    monkeypatch.setattr(plan, "needs", lambda *_: ({"download": (2**20, 2**21), "average": (1, 1)}, 0, 1))
    free = {Path(): 2**21, Path("/dev/shm"): 2**20 - 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    assert wmt("plan", "--no-measure") == 1
    output = capsys.readouterr().out
    assert "disk            2.0 MiB are written, 2.0 MiB are free\n" in output
    assert "disk            1.0 MiB are written, 1.0 MiB are free in /dev/shm NOT ENOUGH\n" in output


def test_the_model_that_a_training_starts_from_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp_path / "parent", **configuration("sample").model.model_dump())
    params = {**resolution.read_params(), "overrides": {"training": {"start_from": str(folder)}}}
    monkeypatch.setattr(resolution, "read_params", lambda: params)
    monkeypatch.setattr(plan, "stages_to_run", lambda _: {"resolve": "x"})
    monkeypatch.setattr(plan, "needs", lambda *_: ({"resolve": (0, 0)}, 0, 1))
    assert f"It starts from {folder}, weights {sha256_of(folder / WEIGHTS)}.\n" in printed("plan", "--no-measure")
