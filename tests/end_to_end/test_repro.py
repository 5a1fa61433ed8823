"""The whole `dvc repro` on a shrunken sample in a temporary clone: what runs, what stays, what is left on disk."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from clones import ROOT, SHRUNKEN, STAGES, Clone
from ports import free_port

from pipeline.config.scorer import BLEU
from pipeline.tracking import names

TEXTS = ("train.sample", "valid.sampledev", "test.sampletest")
pytestmark = pytest.mark.timeout(600)

if TYPE_CHECKING:
    from mlflow import MlflowClient


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
        "results/scores.json",
        "results/validation.csv", "results/averaging.json", "results/chain.json", "results/certificate.json",
        "results/translations/sampledev.last.de", "results/translations/sampletest.average.de",
        "results/report.md", "results/report.html", "results/sentences.jsonl", "results/figures/training.svg",
        "results/figures/loss.svg", "results/attention/attention.npz", "results/attention/sentences.npz",
        *(f"results/{place}{kind}-{what}.svg" for place in ("attention/", "figures/attention-")
          for kind in ("encoder", "decoder", "cross") for what in ("all-heads", "layer-1")),
    }  # fmt: skip
    lines = (finished.folder / "results/translations/sampletest.average.de").read_bytes().count(b"\n")
    assert lines == (finished.folder / "data/raw/test.sampletest.en").read_bytes().count(b"\n") == 500


def test_scores_name_set_and_scorer(finished: Clone) -> None:
    metrics = json.loads((finished.folder / "results/scores.json").read_text())
    assert {
        "bleu", "bleu_signature", "bleu_set", "bleu_paper_way", "bleu_valid", "ppl_valid", "params", "updates",
        "train_seconds", "train_flops_paper", "train_flops_counted",
    } <= metrics.keys()  # fmt: skip
    assert metrics["updates"] == 12
    assert metrics["bleu_signature"].startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp")
    assert metrics["ppl_valid"] > 1


def test_the_summary_is_that_of_the_scores(finished: Clone) -> None:
    metrics = json.loads((finished.folder / "results/scores.json").read_text())
    result = finished.run(sys.executable, "-m", "pipeline.cli", "summary")
    assert result.returncode == 0, result.stderr
    bleu, *paths = result.stdout.splitlines()
    assert bleu.startswith(f"BLEU    {metrics['bleu']:.1f} (95% interval {metrics['bleu_low']:.1f} to ")
    assert all((finished.folder / line.split()[1]).exists() for line in paths)


def test_a_second_run_does_nothing(finished: Clone) -> None:
    assert finished.repro() == []


def test_the_model_folder_translates_alone(finished: Clone, tmp_path: Path) -> None:
    shutil.copytree(finished.folder / "models/average", tmp_path / "model")
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.cli", "translate", str(tmp_path / "model")],
        cwd=ROOT, input="The old man sees a dog.\n\nShe sleeps.\n", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("\n") == 3
    assert result.stdout.split("\n")[1] == ""


@contextlib.contextmanager
def mlflow(clone: Clone) -> Iterator[MlflowClient]:
    """The store that a clone's runs are in."""
    from mlflow import MlflowClient  # It takes a second, which each of pytest's processes would spend on collecting.

    client = MlflowClient(f"sqlite:///{clone.folder}/work/mlflow.db")
    yield client
    client._tracking_client.store.engine.dispose()
    client._get_registry_client().store.engine.dispose()


def test_mlflow_holds_the_run_as_the_files_do(finished: Clone) -> None:
    metrics = json.loads((finished.folder / "results/scores.json").read_text())
    with mlflow(finished) as client:
        experiment = client.get_experiment_by_name("wmt-en-de")
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert (run.info.run_name, run.info.status) == ("sample-sample-s1", "FINISHED")
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float)}
        named = {name: value for key, value in numbers.items() if (name := names.of_score(key)) is not None}
        assert {key: run.data.metrics[key] for key in named} == pytest.approx(named)
        assert run.data.metrics["valid/ppl"] == pytest.approx(metrics["ppl_valid"])
        # The last record comes before the last checkpoint.
        assert 0 < run.data.metrics["train/hours"] <= metrics["train_seconds"] / 3600
        assert run.data.tags["bleu_signature"] == metrics["bleu_signature"]
        curves = {
            *("train/loss", "train/ppl", "train/learning_rate", "train/gradient_norm", "train/tokens_per_second"),
            *("train/flops_per_second", "train/padding", "train/hours", "valid/loss", "valid/ppl"),
        }
        for key in curves:
            steps = [metric.step for metric in client.get_metric_history(run.info.run_id, key)]
            assert max(steps) == 12, key
            assert min(steps) > 0, key
        assert "system/cpu_utilization_percentage" in run.data.metrics
        for key in run.data.metrics:
            of_no_update = [point for point in client.get_metric_history(run.info.run_id, key) if point.step == 0]
            # The registered model has its scores of the run's results.
            assert len(of_no_update) <= (2 if key in map(names.of_score, BLEU.numbers) else 1), f"two measure {key}"
            assert len({point.value for point in of_no_update}) <= 1, key
            assert key.split("/")[0] in {"train", "valid", "test", "data", "seconds", "system"}, f"whose is {key}?"
        assert run.inputs is not None
        pairs = {text.dataset.name: json.loads(text.dataset.profile) for text in run.inputs.dataset_inputs}
        assert pairs == {
            "sample": {"num_rows": 24_000},
            "sampledev": {"num_rows": 500},
            "sampletest": {"num_rows": 500},
        }
        kept = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert {"report.md", "report.html", "figures", "translations", "translations.csv", "samples.json"} <= kept
        (version,) = client.search_model_versions("name = 'wmt-en-de'")
        assert client.get_model_version_by_alias("wmt-en-de", "best").version == version.version
        assert (version.run_id, float(version.tags["bleu_valid"])) == (run.info.run_id, metrics["bleu_valid"])
        assert version.tags["bleu_valid_set"] == "sampledev, 500 lines"
    (registered,) = finished.folder.glob("work/mlartifacts/models/*/artifacts")
    assert (registered / "code/nmt/model.py").exists()
    assert not [path for path in registered.rglob("*") if path.suffix in {".pkl", ".pickle"}]


def test_mlflow_serves_the_model_over_http(finished: Clone) -> None:
    sentences = ["The old man doesn't see the dog.", "She sleeps."]
    command = [sys.executable, "-m", "pipeline.cli", "translate", "models/average"]
    expected = subprocess.run(
        command, cwd=finished.folder, env=finished.environment(), input="\n".join(sentences), capture_output=True,
        text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    port = free_port()
    environment = {**finished.environment(), "MLFLOW_TRACKING_URI": f"sqlite:///{finished.folder}/work/mlflow.db"}
    log = finished.folder / "work/serve.log"
    with log.open("w") as file:
        server = subprocess.Popen(
            ["mlflow", "models", "serve", "--env-manager", "local", "-m", "models:/wmt-en-de@best", "-p", str(port)],
            cwd=finished.folder, env=environment, stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        body = json.dumps({"inputs": sentences}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"}
        )
        assert answered(request, server, log) == {"predictions": expected}
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def answered(request: urllib.request.Request, server: subprocess.Popen[bytes], log: Path) -> Any:
    """The answer of a server that may still be starting."""
    end = time.monotonic() + 400
    while True:
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return json.loads(response.read())
        except OSError:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(1)


def test_a_finished_run_is_pushed_pulled_and_compared(finished: Clone, tmp_path: Path) -> None:
    assert (
        finished.run("dvc", "remote", "add", "--local", "--default", "store", str(tmp_path / "store")).returncode == 0
    )
    pushed = finished.run("dvc", "push")
    assert pushed.returncode == 0, pushed.stderr
    other = Clone(tmp_path / "other")
    for name in ("dvc.lock", "params.yaml"):
        shutil.copyfile(finished.folder / name, other.folder / name)
    assert other.run("dvc", "remote", "add", "--local", "--default", "store", str(tmp_path / "store")).returncode == 0
    pulled = other.run("dvc", "pull")
    assert pulled.returncode == 0, pulled.stderr
    for path in ("models/average/model.safetensors", "results/metrics.json", "data/binned/stats.json"):
        assert (other.folder / path).read_bytes() == (finished.folder / path).read_bytes()
    assert other.changed() == set(), "what was pulled is up to date"
    difference = json.loads(other.run("dvc", "metrics", "diff", "--json").stdout)
    metrics = json.loads((finished.folder / "results/metrics.json").read_text())
    assert difference["results/metrics.json"]["bleu_valid"]["new"] == metrics["bleu_valid"]
    shown = other.run("dvc", "plots", "show", "--json")
    assert shown.returncode == 0, shown.stderr
    plots = json.loads(shown.stdout)
    assert set(plots["data"]) == {"loss", "perplexity", "learning_rate"}
    assert not plots.get("errors")
    assert all(plot["content"]["data"]["values"] for (plot,) in plots["data"].values())


def test_a_comment_in_the_search_reruns_decoding_and_an_edit_of_the_model_trains_anew(finished: Clone) -> None:
    for module, stages in [
        ("inference/search", {"decode", "attention"}),
        ("model", {"train", "average", "decode", "attention", "report"}),
    ]:
        path = finished.folder / f"nmt/{module}.py"
        before = path.read_text()
        path.write_text(before + "\n# A comment.\n")
        assert finished.changed() == stages
        path.write_text(before)
    assert finished.changed() == set()


def test_an_edit_of_a_training_value_trains_and_more_updates_resume(finished: Clone) -> None:
    """The configuration is merged anew; what it left as it was runs nothing."""
    training = SHRUNKEN["training"]
    finished.params(overrides={**SHRUNKEN, "training": {**training, "warmup_steps": 50}})
    assert finished.repro("resolve") == ["resolve"]
    assert finished.changed() == {"train", "report"}, "the report lists the settings"
    finished.params(overrides={**SHRUNKEN, "training": {**training, "updates": 16}})
    assert finished.repro("train") == ["resolve", "train"]
    summary = json.loads((finished.folder / "results/training.json").read_text())
    assert (summary["updates"], summary["resumes"]) == (16, 1)


def test_trees_run_the_same_way_and_are_scored_by_evalb(tmp_path: Path) -> None:
    clone = Clone(tmp_path)
    clone.params(pair="en-tree", row="parse-sample", corpus="sample-trees", overrides=SHRUNKEN)
    assert clone.repro() == STAGES
    assert "data/subwords/target/vocabulary.txt" in clone.files("data/subwords")
    metrics = json.loads((tmp_path / "results/scores.json").read_text())
    assert metrics["f1_signature"].startswith("evalb|rules:COLLINS|tags:gold")
    assert 0 <= metrics["f1_malformed"] <= 1
    gold, parsed = (
        (tmp_path / name).read_text().split("\n")
        for name in ("data/raw/test.sampletreestest.tree", "results/translations/sampletreestest.average.tree")
    )
    assert len(gold) == len(parsed) == 501
    report = (tmp_path / "results/report.md").read_text()
    assert "| F1 (95% interval) | sampletreestest, 500 lines; average |" in report
    assert "| words | sentences | F1 |" in report
    assert "## Parses of the test set" in report
    assert "## Parse with this model" in report
    assert "wmt parse models/average" in report
    wmt = sys.executable, "-m", "pipeline.cli"
    assert clone.run(*wmt, "summary").stdout.startswith("F1 ")
    sentences = (tmp_path / "data/raw/test.sampletreestest.en").read_text().split("\n")[:5]
    (tmp_path / "sentences.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    (tmp_path / "gold.mrg").write_text("".join(f"{tree}\n" for tree in gold[:5]))
    result = clone.run(*wmt, "parse", "models/average", "--input", "sentences.txt", "--output", "trees.mrg")
    assert result.returncode == 0, result.stderr
    scored = clone.run(*wmt, "evalb", "gold.mrg", "trees.mrg", "--gold-tags", "--json")
    assert json.loads(scored.stdout)["all"]["sentences"] == 5, scored.stderr


def test_queued_rows_run_and_compare(finished: Clone) -> None:
    """`dvc exp run --queue -S row=C-N2,C-N4`, `dvc queue start`, `dvc exp show`; to train: tests/soak."""
    model = {key: value for key, value in SHRUNKEN["model"].items() if key != "N"}
    finished.params(overrides={**SHRUNKEN, "model": model})
    queued = finished.run("dvc", "exp", "run", "--queue", "-S", "row=C-N2,C-N4", "resolve")
    assert queued.returncode == 0, queued.stderr
    runs = finished.queue()
    layers = {run["params"]["params.yaml"]["data"]["row"]: run["params"]["results/config.yaml"] for run in runs}
    assert {row: config["data"]["model"]["N"] for row, config in layers.items()} == {"C-N2": 2, "C-N4": 4}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A clone in which no stage has run."""
    return Clone(tmp_path_factory.mktemp("clone"))


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
def test_a_mistake_in_params_is_one_sentence(fresh: Clone, change: dict[str, Any], sentence: str) -> None:
    shutil.copy(ROOT / "params.yaml", fresh.folder)
    fresh.params(**change)
    result = fresh.run(sys.executable, "-m", "pipeline", "resolve")
    assert result.returncode == 1
    assert result.stderr.count("\n") == 1
    assert sentence in result.stderr
    assert not (fresh.folder / "results/config.yaml").exists()
