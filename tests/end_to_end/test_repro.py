"""The whole `dvc repro` on a shrunken sample in a temporary clone: what runs, what stays, what is left on disk."""

import contextlib
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from clones import STAGES, Clone
from command_line import printed, wmt
from text_lines import write_lines
from tiny_run import OVERRIDES, prepare, run_stages
from tracked import connected
from trainings import train_here

from pipeline.trainings import launch
from pipeline.verify import check

TEXTS = ("train.tinytrain", "valid.tinyvalid", "test.tinytest")
pytestmark = pytest.mark.timeout(600)


def test_every_stage_leaves_exactly_its_files(finished: Clone) -> None:
    subwords = {"codes.bpe", "subwords.yaml", "vocabulary.txt", "words.txt"}
    folders = {f"models/{name}" for name in ("average", "last")}
    binned = finished.files("data/binned")
    assert {"data/binned/stats.json", "data/binned/valid.arrow"} < binned
    assert all(re.fullmatch(r"data/binned/(stats\.json|valid\.arrow|train\.\d{5}\.arrow)", path) for path in binned)
    assert finished.files("data/raw", "data/tokenized", "data/subwords", "models", "results") == {
        *(f"data/raw/{text}.{lang}" for text in TEXTS for lang in ("en", "de")),
        "data/raw/stats.json",
        *(f"data/tokenized/{split}.{lang}" for split in ("train", "valid") for lang in ("en", "de")),
        "data/tokenized/stats.json",
        *(f"data/subwords/{name}" for name in subwords),
        *(f"models/checkpoints/{name}.safetensors" for name in ("last", "update-00000008", "update-00000012")),
        *(f"{folder}/{name}" for folder in folders for name in ("config.yaml", "model.safetensors")),
        *(f"{folder}/subwords/{name}" for folder in folders for name in subwords),
        "results/config.yaml", "results/training.json", "results/training.csv", "results/metrics.json",
        "results/scores.json", "results/validation.csv", "results/validation.jsonl",
        "results/averaging.json", "results/chain.json", "results/certificate.json",
        "results/translations/tinyvalid.last.de", "results/translations/tinytest.average.de",
        "results/report.md", "results/report.html", "results/sentences.jsonl", "results/figures/training.svg",
        "results/attention/attention.npz", "results/attention/sentences.npz",
        *(f"results/{place}{kind}-layer-1.svg" for place in ("attention/", "figures/attention-")
          for kind in ("encoder", "decoder", "cross")),
    }  # fmt: skip
    lines = (finished.folder / "results/translations/tinytest.average.de").read_bytes().count(b"\n")
    assert lines == (finished.folder / "data/raw/test.tinytest.en").read_bytes().count(b"\n") == 4


def test_an_edited_report_or_lock_is_named(finished: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(finished.folder, tmp_path / "copy", symlinks=True)
    monkeypatch.chdir(folder)
    Path("data/catalog/another.yaml").write_text("description: which this run does not name\n")
    assert check.locked().status == "equal"
    for name in ("results/report.html", "results/report.md"):
        text = (folder / name).read_text()
        (folder / name).unlink()
        (folder / name).write_text(text.replace("BLEU", "BLUE"))
    found = check.locked()
    assert (found.status, found.detail) == ("differs", "results/report.html is modified; results/report.md is modified")
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    lock["stages"]["resolve"]["outs"][0]["md5"] = "0" * 32
    Path("dvc.lock").write_text(yaml.safe_dump(lock))
    assert "results/config.yaml is not in cache" in check.locked().detail


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_the_model_folder_translates_alone_and_the_best_registered_model_the_same(
    finished: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MLflow's server of a model: tests/pipeline/tracking/test_serving.py; its command: tests/soak/test_day.py."""
    import mlflow.pyfunc

    shutil.copytree(finished.folder / "models/average", tmp_path / "model")
    sentences = ["the old man sees a dog.", "She sleeps well."]
    (tmp_path / "in").write_text("\n".join(sentences))
    assert wmt("translate", tmp_path / "model", "--input", tmp_path / "in", "--output", tmp_path / "out") == 0
    expected = (tmp_path / "out").read_text().splitlines()
    with connected(finished.folder / "work/mlflow.db") as client:
        (run,) = client.search_runs([client.get_experiment_by_name("wmt-en-de").experiment_id])
        if run.info.status != "FINISHED":  # On a busy machine, the last stage does not wait until all is sent.
            assert finished.run(sys.executable, "-m", "pipeline.cli", "publish").returncode == 0
        assert client.get_run(run.info.run_id).info.status == "FINISHED"
        kept = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {"report.html", "figures", "dvc.lock"} <= kept
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{finished.folder}/work/mlflow.db")
    monkeypatch.setattr(sys, "path", [*sys.path])  # MLflow adds the model's copy of nmt.
    assert mlflow.pyfunc.load_model("models:/wmt-en-de@best").predict(sentences) == expected
    (registered,) = finished.folder.glob("work/mlartifacts/models/*/artifacts")
    assert (registered / "code/nmt/model.py").exists()
    assert not [path for path in registered.rglob("*") if path.suffix in {".pkl", ".pickle"}]


def test_french_with_word_pieces_and_two_test_sets_is_certified(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "torchrun", train_here)
    prepare(pair="en-fr", further=True, subwords={"vocabulary": 300}, training={**OVERRIDES["training"], "updates": 20})
    run_stages(*STAGES[STAGES.index("train") :])
    assert {path.name for path in Path("data/subwords").iterdir()} == {"subwords.yaml", "wordpieces.model", "words.txt"}
    assert len(Path("results/translations/tinytest.average.fr").read_text().splitlines()) == 4
    further = Path("results/translations/tinymedical.average.fr")
    outputs = further.read_text().splitlines()
    assert len(outputs) == len(Path("data/raw/test.tinymedical.fr").read_text().splitlines())
    metrics = json.loads(Path("results/scores.json").read_text())
    assert (list(metrics["sets"]), metrics["bleu_set"]) == (["tinymedical"], "tinytest, 4 lines"), "the first one"
    found = json.loads(printed("bleu", further, "data/raw/test.tinymedical.fr", "--lang", "fr", "--json"))
    assert metrics["sets"]["tinymedical"]["bleu"] == pytest.approx(found["bleu"])
    compared = json.loads(Path("results/metrics.json").read_text())
    assert compared["bleu.tinymedical"] == metrics["sets"]["tinymedical"]["bleu"]
    kept = [json.loads(line) for line in Path("results/sentences.jsonl").read_text().splitlines()]
    assert [(line.get("set"), line["output"]) for line in kept[4:]] == [("tinymedical", output) for output in outputs]
    report = Path("results/report.md").read_text()
    assert "Test: tinytest, tinymedical." in report
    shared = json.loads(Path("data/tokenized/stats.json").read_text())["overlap"]["test.tinymedical"]
    assert f"test.tinymedical set: source {shared['source']}, target {shared['target']}, pair " in report
    assert "\n| tinytest, 4 lines | " in report
    assert "\n| tinymedical, 4 lines | " in report
    assert "tinymedical, 4 lines; sacreBLEU" in printed("summary")
    further.unlink()
    write_lines(further, [f"{outputs[0]} x", *outputs[1:]])
    with contextlib.redirect_stdout(io.StringIO()) as said:
        assert wmt("verify", "--updates", "0:4") == 1
    assert said.getvalue().endswith("\nnot verified, these differ: decode\n"), "an edited translation of the second set"
    assert "inconclusive" not in said.getvalue()


def test_trees_run_the_same_way_and_are_scored_by_evalb(here: Path) -> None:
    prepare(pair="en-tree", row="parse-sample")
    assert Path("data/subwords/target/vocabulary.txt").exists()
    run_stages(*STAGES[STAGES.index("train") :])
    metrics = json.loads(Path("results/scores.json").read_text())
    assert metrics["f1_signature"].startswith("evalb|rules:COLLINS|tags:gold")
    assert 0 <= metrics["f1_malformed"] <= 1
    for name in ("data/raw/test.tinytest.tree", "results/translations/tinytest.average.tree"):
        assert Path(name).read_text().count("\n") == 4
    report = Path("results/report.md").read_text()
    assert "| F1 (95% interval) | tinytest, 4 lines; average |" in report
    assert "| words | sentences | F1 |" in report
    assert "## Parses of the test set" in report
    assert "wmt parse models/average" in report
    assert "F1      " in printed("summary")
    assert wmt("parse", "models/average", "--input", "data/raw/test.tinytest.en", "--output", "trees.mrg") == 0
    scores = json.loads(printed("evalb", "data/raw/test.tinytest.tree", "trees.mrg", "--gold-tags", "--json"))
    assert scores["all"]["sentences"] == 4
