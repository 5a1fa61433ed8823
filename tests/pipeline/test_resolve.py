"""Merging and checking of the configuration, on a catalog of plain files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nmt.config import InputError, ModelSettings
from pipeline import resolve, rows
from pipeline.config import CONFIG, Configuration, load_section

SUM = "0" * 64
PARAMS: dict[str, Any] = {"row": "base", "pair": "en-de", "corpus": "tiny", "seed": 7, "overrides": {}}


def _text(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "source": {"path": f"{name}.en", "sha256": SUM},
        "target": {"path": f"{name}.xx", "sha256": SUM},
    }


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one catalog, which the tests run in."""
    pair = {"train": [_text("train")], "valid": _text("valid"), "test": _text("test")}
    german = {
        "preparation": {"tokenizer": {"aggressive_hyphens": True}, "filters": {"max_tokens": 250}},
        "subwords": {"vocabulary": 37000},
    }
    content = {"description": "Plain files.", "pairs": {"en-de": {**pair, **german}, "en-fr": pair}}
    folder = tmp_path / "data/catalog"
    folder.mkdir(parents=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _resolved(**changes: Any) -> Configuration:
    return resolve.resolve({**PARAMS, **changes})


def test_base_is_rows_yaml_with_the_catalogs_preparation() -> None:
    configuration = _resolved()
    assert configuration.model.model_dump() == rows.settings("base", "en-de")["model"]
    assert configuration.training.seed == configuration.run.seed == 7
    assert configuration.preparation.tokenizer.aggressive_hyphens
    assert configuration.preparation.filters.max_tokens == 250
    assert configuration.preparation.filters.max_ratio == 9.0
    # The catalog's size takes the place of base's merges.
    assert (configuration.subwords.vocabulary, configuration.subwords.merges) == (37000, None)


def test_row_goes_over_catalog_and_overrides_over_all() -> None:
    assert _resolved(row="small").subwords.merges == 8000
    configuration = _resolved(row="small", overrides={"subwords": {"vocabulary": 500}, "model": {"N": 1}})
    assert (configuration.subwords.vocabulary, configuration.subwords.merges) == (500, None)
    assert (configuration.model.N, configuration.model.d_model) == (1, 256)


def test_pair_differs_in_subwords_tokenizer_and_bigs_dropout() -> None:
    french = _resolved(row="big", pair="en-fr")
    assert (french.subwords.kind, french.subwords.vocabulary) == ("wordpieces", 32000)
    assert french.preparation.tokenizer.tokenizer == "none"
    assert french.model.P_drop == 0.1
    assert _resolved(row="big").model.P_drop == 0.3


@pytest.mark.parametrize("name", list(rows.table().rows))
@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_every_row_resolves(name: str, pair: str) -> None:
    assert _resolved(row=name, pair=pair).run.row == name


def test_an_emptied_section_overrides_nothing() -> None:
    assert _resolved(overrides=None) == _resolved(overrides={"model": None}) == _resolved()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": "bas"}, "params.yaml, row: `bas` is not a row of rows.yaml; did you mean `base`?"),
        ({"pair": "en-ge"}, "params.yaml, pair: `en-ge` is unknown; did you mean `en-de`?"),
        ({"corpus": "tyny"}, "did you mean `tiny`?"),
        ({"seed": -1}, "params.yaml: seed is -1; input should be greater than or equal to 0"),
        ({"seed": None}, "params.yaml: `seed` is missing"),
        ({"sed": 1}, "params.yaml: unknown key `sed`; did you mean `seed`?"),
        ({"overrides": {"modle": {}}}, "params.yaml, overrides: unknown section `modle`; did you mean `model`?"),
        ({"overrides": {"model": 3}}, "params.yaml, overrides.model: `3` is no mapping"),
        ({"overrides": [1]}, "params.yaml, overrides: `[1]` is no mapping"),
        (
            {"overrides": {"model": {"d_modle": 3}}},
            "params.yaml, overrides: unknown key `model.d_modle`; did you mean `d_model`?",
        ),
        (
            {"overrides": {"preparation": {"filters": {"max_token": 3}}}},
            "params.yaml, overrides: unknown key `preparation.filters.max_token`; did you mean `max_tokens`?",
        ),
        (
            {"overrides": {"model": {"P_drop": 1.5}}},
            "params.yaml, overrides: model.P_drop is 1.5; input should be less than 1",
        ),
        ({"overrides": {"model": {"N": None}}}, "model.N is None; input should be a valid integer"),
        (
            {"overrides": {"training": {"precision": "float16"}}},
            "training.precision is 'float16'; input should be 'float32' or 'bfloat16'",
        ),
        ({"overrides": {"subwords": {"merges": 5, "vocabulary": 5}}}, "give either merges or vocabulary"),
        (
            {"pair": "en-fr", "overrides": {"subwords": {"merges": 5}}},
            "params.yaml, overrides: subwords: word pieces are sized by vocabulary, not by merges",
        ),
        ({"overrides": {"averaging": {"last": 9}}}, "averaging.last is 9, but training.keep_checkpoints keeps only 5"),
        ({"overrides": {"training": {"seed": 3}}}, "overrides.training.seed: the seed is set once"),
        (
            {"row": "E-learned-positions", "overrides": {"model": {"max_positions": 100}}},
            "model.max_positions is 100, but training sentences have up to binning.max_length = 256",
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _resolved(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class _Tracker:
    def __init__(self) -> None:
        self.told: dict[str, str] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        raise AssertionError("resolving measures nothing")

    def tags(self, values: Mapping[str, str]) -> None:
        self.told |= values

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError("results/config.yaml is kept by whoever keeps runs")


def test_stage_writes_a_file_that_stages_can_read(repository: Path) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    tracker = _Tracker()
    resolve.run(tracker)
    first = CONFIG.read_bytes()
    assert first.startswith(b"# Made by `python -m pipeline.resolve`")
    assert load_section("model", ModelSettings) == _resolved().model
    content = yaml.safe_load(first)
    assert list(content) == list(Configuration.model_fields)
    assert Configuration.model_validate(content) == _resolved()
    assert tracker.told == {"row": "base", "pair": "en-de", "corpus": "tiny", "seed": "7"}
    resolve.run(tracker)
    assert CONFIG.read_bytes() == first
    assert [path.name for path in CONFIG.parent.iterdir()] == ["config.yaml"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "params.yaml is missing"), (b"row: [", "is not valid YAML"), (b"- 1\n", "no mapping"), (b"\xff", "UTF-8")],
)
def test_unreadable_params_write_nothing(content: bytes | None, message: str) -> None:
    if content is not None:
        Path("params.yaml").write_bytes(content)
    with pytest.raises(InputError, match=message):
        resolve.run(_Tracker())
    assert not CONFIG.exists()
