"""The whole `dvc repro` on a shrunken sample in a temporary clone: what runs, what stays, what is left on disk."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from clones import ROOT, SHRUNKEN, STAGES, Clone

TEXTS = ("train.sample", "valid.sampledev", "test.sampletest")
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone after its first `dvc repro`."""
    clone = Clone(tmp_path_factory.mktemp("clone"))
    clone.params(overrides=SHRUNKEN)
    assert clone.repro() == STAGES
    return clone


def test_every_stage_leaves_exactly_its_files(finished: Clone) -> None:
    subwords = {"codes.bpe", "subwords.yaml", "vocabulary.txt"}
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
        "results/translations/sampledev.last.de", "results/translations/sampletest.average.de",
        "results/report.md", "results/report.html", "results/figures/training.svg", "results/figures/cost.svg",
        "results/attention/attention.npz",
        *(f"results/attention/{kind}-{what}.svg" for kind in ("encoder", "decoder", "cross")
          for what in ("all-heads", "layer-1")),
    }  # fmt: skip
    lines = (finished.folder / "results/translations/sampletest.average.de").read_bytes().count(b"\n")
    assert lines == (finished.folder / "data/raw/test.sampletest.en").read_bytes().count(b"\n") == 500


def test_metrics_name_set_and_scorer(finished: Clone) -> None:
    metrics = json.loads((finished.folder / "results/metrics.json").read_text())
    assert {
        "bleu", "bleu_signature", "bleu_set", "bleu_paper_way", "bleu_valid", "ppl_valid", "params", "updates",
        "train_seconds", "train_flops_paper", "train_flops_counted",
    } <= metrics.keys()  # fmt: skip
    assert metrics["updates"] == 12
    assert metrics["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert metrics["ppl_valid"] > 1


def test_a_second_run_does_nothing(finished: Clone) -> None:
    assert finished.repro() == []


def test_the_model_folder_translates_alone(finished: Clone, tmp_path: Path) -> None:
    shutil.copytree(finished.folder / "models/average", tmp_path / "model")
    result = subprocess.run(
        [sys.executable, "-m", "nmt.translate", str(tmp_path / "model")],
        cwd=ROOT, input="The old man sees a dog.\n\nShe sleeps.\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 3
    assert result.stdout.split("\n")[1] == ""


def test_a_comment_in_the_search_reruns_decoding_and_an_edit_of_the_model_trains_anew(finished: Clone) -> None:
    for module, stages in [
        ("search", {"decode", "attention"}),
        ("model", {"train", "average", "decode", "attention"}),
    ]:
        path = finished.folder / f"nmt/{module}.py"
        before = path.read_text()
        path.write_text(before + "\n# A comment.\n")
        assert finished.changed() == stages
        path.write_text(before)
    assert finished.changed() == set()


def test_an_edit_of_a_training_value_runs_training_and_what_follows(finished: Clone) -> None:
    training = {**SHRUNKEN["training"], "warmup_steps": 50}
    finished.params(overrides={**SHRUNKEN, "training": training})
    states = finished.folder / "work/train"
    before = set(states.iterdir())
    ran = finished.repro()
    # The configuration is merged anew; what it left as it was runs nothing.
    assert ran[:3] == ["resolve", "train", "average"]
    assert set(ran) <= {"resolve", *STAGES[STAGES.index("train") :]}
    assert len(set(states.iterdir()) - before) == 1
    # A finished training goes on where it ended, to the same weights as one that was never stopped there.
    finished.params(overrides={**SHRUNKEN, "training": {**training, "updates": 16}})
    assert finished.repro()[:3] == ["resolve", "train", "average"]
    assert json.loads((finished.folder / "results/training.json").read_text())["resumes"] == 1


def test_french_runs_the_same_way_with_word_pieces(finished: Clone, tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.params(pair="en-fr", overrides={**SHRUNKEN, "subwords": {"vocabulary": 600}})
    assert clone.repro() == STAGES
    assert clone.files("data/subwords") == {"data/subwords/subwords.yaml", "data/subwords/wordpieces.model"}
    assert (tmp_path / "results/translations/sampletest.average.fr").exists()


def test_queued_rows_run_and_compare(finished: Clone) -> None:
    """`dvc exp run --queue -S row=C-N2,C-N4`, `dvc queue start`, `dvc exp show`."""
    model = {key: value for key, value in SHRUNKEN["model"].items() if key != "N"}
    overrides = {
        **SHRUNKEN, "model": model, "subwords": {"merges": 4000},
        "training": {**SHRUNKEN["training"], "precision": "float32", "updates": 4, "checkpoint_every": 2},
    }  # fmt: skip
    finished.params(overrides=overrides)
    queued = finished.run("dvc", "exp", "run", "--queue", "-S", "row=C-N2,C-N4")
    assert queued.returncode == 0, queued.stderr
    assert finished.run("dvc", "queue", "start").returncode == 0
    deadline = time.monotonic() + 400
    while (status := finished.run("dvc", "queue", "status").stdout).count("Success") < 2:
        assert "Failed" not in status, finished.run("dvc", "queue", "logs", status.split()[6]).stdout
        assert time.monotonic() < deadline, status
        time.sleep(2)
    shown = json.loads(finished.run("dvc", "exp", "show", "--json").stdout)
    runs = [revision["data"] for entry in shown[1]["experiments"] for revision in entry["revs"]]
    layers = {run["params"]["params.yaml"]["data"]["row"]: run["params"]["results/config.yaml"] for run in runs}
    assert {row: config["data"]["model"]["N"] for row, config in layers.items()} == {"C-N2": 2, "C-N4": 4}
    assert all(run["metrics"]["results/metrics.json"]["data"]["bleu"] >= 0 for run in runs)
    # Both trained in the state root of the repository that they were queued in.
    assert len(list((finished.folder / "work/train").iterdir())) >= 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"row": "C-N3"}, "C-N"),
        ({"corpus": "wmt41"}, "wmt14"),
        ({"pair": "en-es"}, "en-de"),
        ({"overrides": {"training": {"update": 3}}}, "updates"),
        ({"overrides": {"model": {"P_drop": 1.5}}}, "P_drop"),
    ],
)
def test_a_mistake_in_params_is_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    clone = Clone(tmp_path)
    clone.params(**change)
    result = clone.run(sys.executable, "-m", "pipeline.resolve")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert not (tmp_path / "results/config.yaml").exists()
