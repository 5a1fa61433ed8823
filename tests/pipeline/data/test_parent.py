"""The model that a training starts from: where it is, what identifies it, and what does not fit."""

import re
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from clones import ROOT
from model_folders import folder_of
from refusals import check_refusal

from nmt.text.settings import SubwordSettings
from nmt.training.settings import StartSettings
from pipeline.config import resolution, rows
from pipeline.config.paths import AVERAGE
from pipeline.config.settings import Configuration
from pipeline.data import parent, parent_folder
from pipeline.data.parent_folder import WEIGHTS

MODEL = rows.settings("sample", "en-de")["model"]


@pytest.fixture(autouse=True)
def repository(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a model folder."""
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path("data").mkdir()
    Path("data/catalog").symlink_to(ROOT / "data/catalog")
    folder_of(Path("parent"), **MODEL)


def resolved(start: object = "parent", **overrides: dict[str, Any]) -> Configuration:
    overrides["training"] = {"start_from": start}
    params = {"row": "sample", "pair": "en-de", "corpus": "sample", "seed": 1, "overrides": overrides}
    return parent.with_parent(resolution.resolve(params))


def test_parents_are_known_by_their_weights_and_give_subwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configuration = resolved()
    weights = sha256(Path("parent", WEIGHTS).read_bytes()).hexdigest()
    assert configuration.training.start_from == StartSettings(folder="parent", weights=weights)
    assert configuration.subwords == SubwordSettings(kind="bpe", merges=60, vocabulary=None, multiple_of=8)
    assert resolution.name(configuration.model_dump()) == "start_from=parent · sample-sample-s1"
    start = {"training.start_from.folder": "parent", "training.start_from.weights": weights}
    assert resolution.changed(configuration.model_dump()) == start, "without the parent's subwords"
    # Dropout and the first weights of a new model decide no shape.
    assert resolved(model={"P_drop": 0.3, "initialisation": "glorot"})
    # A queued experiment runs in a copy of the repository.
    (tmp_path / "copy/data").mkdir(parents=True)
    (tmp_path / "copy/data/catalog").symlink_to(ROOT / "data/catalog")
    monkeypatch.chdir("copy")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert resolved().training == configuration.training


def test_the_folder_of_a_run_stands_for_its_average() -> None:
    shutil.copytree("parent", Path("run") / AVERAGE)
    start = resolved("run").training.start_from
    assert (start.folder, parent_folder.find(start)) == ("run", Path("run") / AVERAGE)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model": {"N": 3, "d_model": 32}}, "model.N is 3, the parent's is 2; model.d_model is 32, the parent's is 1"),
        ({"model": {"positions": "learned", "max_positions": 999}}, "model.max_positions is 999, the parent's is 512"),
        ({"preparation": {"tokenizer": {"tokenizer": "none"}}}, "tokenizer is none, the parent's is moses; set the"),
        ({"subwords": {"merges": 7}}, "the subwords are the parent's: remove overrides.subwords"),
        ({"start": "nowhere"}, "training.start_from is nowhere, but neither it nor its models/average holds model.saf"),
        ({"start": {"folder": "parent", "weights": "0" * 64}}, "restore it, or take it as it is with `dvc repro"),
        ({"start": "models/average"}, "which this run replaces: copy it, as with `cp -rT models/average data/local/"),
        ({"start": "damaged"}, "damaged is no model folder ('model'): name another one"),
    ],
)
def test_a_parent_that_does_not_fit_is_refused_with_what_differs(overrides: dict[str, Any], message: str) -> None:
    for name in ("models/average", "damaged"):
        shutil.copytree("parent", name)
    Path("damaged/config.yaml").write_text("{}")
    check_refusal(re.escape(message), resolved, **overrides)
