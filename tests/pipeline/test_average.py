"""The stage average: the last checkpoints' mean and the last weights, each a whole model folder, also after kills."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from kills import every_kill

from nmt import checkpoint
from nmt.config import InputError, ModelSettings
from nmt.model import Transformer
from pipeline import average
from pipeline.config import CONFIG

MakeJob = Callable[..., dict[str, Any]]
VOCABULARY = 12


class Listener:
    """A tracker that keeps the facts that it hears."""

    def __init__(self) -> None:
        self.facts: dict[str, str] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        raise AssertionError("averaging measures nothing")

    def tags(self, values: Mapping[str, str]) -> None:
        self.facts |= values

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError("averaging keeps no files")


@pytest.fixture
def sections(tmp_path: Path, tiny_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A repository after training: checkpoints after updates 1500, 3000 and 4500 whose weights are 1, 3 and 8."""
    monkeypatch.chdir(tmp_path)
    model = tiny_job()["model"] | {"d_model": 8, "d_ff": 8, "d_k": 4, "d_v": 4}
    content = {
        "run": {"row": "base", "pair": "en-de", "corpus": "sample", "seed": 7},
        "preparation": {
            "tokenizer": {"tokenizer": "moses", "normalize_punctuation": False, "aggressive_hyphens": True},
            "filters": {"min_tokens": 1, "max_tokens": 99, "max_ratio": None, "drop_identical": False},
        },
        "model": model,
        "averaging": {"last": 2},
        "search": {"beam": 4, "alpha": 0.6, "max_extra": 50, "stop": "exact"},
    }
    CONFIG.parent.mkdir()
    CONFIG.write_text(yaml.safe_dump(content))
    average.SUBWORDS.mkdir(parents=True)
    (average.SUBWORDS / "subwords.yaml").write_text("kind: bpe\n")
    average.CHECKPOINTS.mkdir(parents=True)
    weights = Transformer(ModelSettings.model_validate(model), VOCABULARY).state_dict()
    for name, value in (("update-00001500", 1), ("update-00003000", 3), ("update-00004500", 8), ("last", 9)):
        filled = {key: torch.full_like(tensor, value) for key, tensor in weights.items()}
        checkpoint.save_tensors(average.CHECKPOINTS / f"{name}.safetensors", filled)
    return content


def value(folder: Path) -> float:
    """That of all weights of a model folder, which translating would take."""
    model = checkpoint.load_model(folder, checkpoint.load_description(folder))
    (only,) = {number for tensor in model.state_dict().values() for number in tensor.flatten().tolist()}
    return float(only)


def content() -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for folder in (average.AVERAGE, average.LAST) for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


def test_the_last_checkpoints_are_averaged(sections: dict[str, Any]) -> None:
    tracker = Listener()
    average.run(tracker)
    assert (value(average.AVERAGE), value(average.LAST)) == (5.5, 9.0)
    assert tracker.facts == {"averaged_updates": "3,000, 4,500"}
    for folder, weights in ((average.AVERAGE, "mean of updates 3,000, 4,500"), (average.LAST, "last update")):
        assert (folder / "subwords/subwords.yaml").read_text() == "kind: bpe\n"
        assert yaml.safe_load((folder / "config.yaml").read_text()) == {
            "source": "en", "target": "de", "vocabulary": VOCABULARY, "model": sections["model"],
            "tokenizer": sections["preparation"]["tokenizer"], "search": sections["search"],
            "origin": {"row": "base", "pair": "en-de", "corpus": "sample", "seed": 7, "weights": weights},
        }  # fmt: skip


@pytest.mark.parametrize(("last", "expected"), [(1, 8.0), (3, 4.0)])
def test_any_number_of_checkpoints_up_to_all(sections: dict[str, Any], last: int, expected: float) -> None:
    CONFIG.write_text(yaml.safe_dump(sections | {"averaging": {"last": last}}))
    average.run(Listener())
    assert value(average.AVERAGE) == expected


def test_too_few_checkpoints_are_refused(sections: dict[str, Any]) -> None:
    CONFIG.write_text(yaml.safe_dump(sections | {"averaging": {"last": 4}}))
    told = (
        "averaging.last is 4, but training left 3 checkpoints: raise training.updates or lower "
        "training.checkpoint_every or averaging.last"
    )
    with pytest.raises(InputError, match=f"^{re.escape(told)}$"):
        average.run(Listener())
    assert not average.AVERAGE.exists()


def test_killed_at_any_call_it_makes_the_same_when_run_again(sections: dict[str, Any], tmp_path: Path) -> None:
    average.run(Listener())
    expected = content()
    kills = 0
    # Every point of a folder that replaces another: tests/nmt/test_kills.py.
    for kills, (_, point) in enumerate(every_kill(lambda _: lambda: average.run(Listener()), step=11), start=1):
        assert all(expected[path] == found for path, found in content().items()), (kills, point)
    assert kills > 9
    average.run(Listener())
    assert content() == expected
    assert not list(tmp_path.glob("*/.*"))
