"""The stage `average`: which checkpoints are averaged, and the model folders that it writes."""

import contextlib
import json
from pathlib import Path

import pytest
import torch
import yaml
from clones import ROOT

from nmt.common import tensors
from nmt.inference import model_folder
from nmt.training import checkpoint
from pipeline.config import resolution
from pipeline.config.paths import CONFIG
from pipeline.config.settings import Configuration
from pipeline.stages import average

VOCABULARY, WIDTH = 6, 4


@pytest.fixture(autouse=True)
def configuration(here: Path) -> Configuration:
    """That of a run of C-N2 in French, in a folder to run in, with a folder of subwords."""
    overrides = {"averaging": {"last": 3}, "search": {"beam": 7}}
    params = {"row": "C-N2", "pair": "en-fr", "corpus": "sample", "seed": 9, "overrides": overrides}
    with contextlib.chdir(ROOT):
        resolved = resolution.resolve(params)
    CONFIG.parent.mkdir()
    CONFIG.write_text(resolution.text(resolved), encoding="utf-8")
    average.SUBWORDS.mkdir(parents=True)
    (average.SUBWORDS / "wordpieces.model").write_bytes(b"pieces")
    return resolved


def checkpoints(*updates: int) -> None:
    """Checkpoints whose weights are all their update's number, and last weights that are all -1."""
    average.CHECKPOINTS.mkdir(parents=True)

    def weights(value: float) -> dict[str, torch.Tensor]:
        return {"embedding.table": torch.full((VOCABULARY, WIDTH), value), "norm.bias": torch.full((WIDTH,), value)}

    for update in updates:
        tensors.save_tensors(checkpoint.checkpoint_path(average.CHECKPOINTS, update), weights(float(update)))
    tensors.save_tensors(average.CHECKPOINTS / "last.safetensors", weights(-1.0))


def values(folder: Path) -> dict[str, set[float]]:
    weights = tensors.load_tensors(folder / tensors.WEIGHTS)
    shapes = {"embedding.table": (VOCABULARY, WIDTH), "norm.bias": (WIDTH,)}
    assert {name: tensor.shape for name, tensor in weights.items()} == shapes
    return {name: set(tensor.flatten().tolist()) for name, tensor in weights.items()}


@pytest.mark.parametrize(
    ("updates", "mean", "averaged", "said"),
    [
        ((900, 1000, 1200, 1700), 1300.0, "mean of updates 1,000, 1,200, 1,700", ""),
        ((4, 12), 8.0, "mean of updates 4, 12", "averaging.last is 3, but training left 2 (a checkpoint every "),
        ((), -1.0, "last update", "training left 0 (a checkpoint every training.checkpoint_every updates): models/"),
    ],
)
def test_the_last_checkpoints_are_averaged_or_what_is_there(
    configuration: Configuration, updates: tuple[int, ...], mean: float, averaged: str, said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Both folders are complete and say where they come from."""
    checkpoints(*updates)
    average.run()
    assert values(average.AVERAGE) == {"embedding.table": {mean}, "norm.bias": {mean}}
    assert values(average.LAST) == {"embedding.table": {-1.0}, "norm.bias": {-1.0}}
    written = json.loads(average.AVERAGING.read_text(encoding="utf-8"))
    assert written == {"checkpoints": min(3, len(updates)), "weights": averaged}
    out = capsys.readouterr().out
    assert said in out
    assert out.count("\n") == bool(said)
    assert not said or out.endswith(f"models/average is the {averaged}\n")
    for folder, weights in ((average.AVERAGE, averaged), (average.LAST, "last update")):
        assert (folder / "subwords/wordpieces.model").read_bytes() == b"pieces"
        found = model_folder.load_description(folder)
        assert (found.source, found.target, found.vocabulary, found.search.beam) == ("en", "fr", VOCABULARY, 7)
        assert (found.model, found.search) == (configuration.model, configuration.search)
        assert found.tokenizer == configuration.preparation.tokenizer
        assert found.origin == {"row": "C-N2", "pair": "en-fr", "corpus": "sample", "seed": 9, "weights": weights}


def averaged_best(count: int, losses: dict[int, float]) -> str:
    """The weights of the average where the validations had these losses."""
    config = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    CONFIG.write_text(yaml.safe_dump({**config, "averaging": {"last": 5, "best": count}}), encoding="utf-8")
    rows = "".join(f"{update},{loss},2.5\n" for update, loss in losses.items())
    average.VALIDATION.write_text(f"update,valid_loss,seconds\n{rows}", encoding="utf-8")
    average.run()
    return str(json.loads(average.AVERAGING.read_text(encoding="utf-8"))["weights"])


def test_the_best_checkpoints_are_averaged(capsys: pytest.CaptureFixture[str]) -> None:
    checkpoints(100, 200, 300, 400, 500)
    losses = {50: 0.1, 100: 1.0, 200: 3.0, 300: 1.5, 400: float("nan"), 450: 0.2}
    assert averaged_best(2, losses) == "mean of updates 100, 300"
    assert values(average.AVERAGE)["norm.bias"] == {200.0}
    assert not capsys.readouterr().out
    assert averaged_best(4, losses) == "mean of updates 100, 200, 300"
    assert "average: averaging.best is 4, but training left 3 with a validation (" in capsys.readouterr().out
    assert averaged_best(2, {150: 1.0}) == "last update"
