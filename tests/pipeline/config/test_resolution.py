"""Merging and checking of the configuration, on a catalog of plain files."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from pydantic import ValidationError

from nmt.config import InputError, ModelSettings, SubwordSettings
from nmt.text import subwords
from pipeline.common.paths import CONFIG
from pipeline.common.settings import LEAST_VOCABULARY, Configuration, load_section
from pipeline.config import errors, resolution, rows
from pipeline.stages import resolve

SUM = sha256(b"").hexdigest()
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
    for name in ("train", "valid", "test"):
        for language in ("en", "xx"):
            (tmp_path / f"{name}.{language}").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _resolved(**changes: Any) -> Configuration:
    return resolution.resolve({**PARAMS, **changes})


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
        ({"pair": "en-ge"}, "params.yaml: pair is 'en-ge'; input should be 'en-de', 'en-fr' or 'en-tree'"),
        ({"corpus": "tyny"}, "did you mean `tiny`?"),
        (
            {"overrides": {"model": {"N": 0}, "training": 3}},
            "params.yaml: overrides.training is 3; input should be a valid dictionary",
        ),
        ({"pair": None}, "params.yaml: pair is None; input should be 'en-de', 'en-fr' or 'en-tree'"),
        ({"row": 3}, "params.yaml: row is 3; input should be a valid string"),
        ({"corpus": "a b"}, "params.yaml: corpus is 'a b'; string should match pattern"),
        ({"seed": -1}, "params.yaml: seed is -1; input should be greater than or equal to 0"),
        ({"seed": None}, "params.yaml: seed is None; input should be a valid integer"),
        (
            {"sed": 1},
            "params.yaml: unknown key `sed`; did you mean `seed`? valid are row, pair, corpus, seed, overrides",
        ),
        ({"overrides": {"modle": {}}}, "params.yaml: unknown key `overrides.modle`; did you mean `model`?"),
        ({"overrides": {"model": 3}}, "params.yaml: overrides.model is 3; input should be a valid dictionary"),
        (
            {"overrides": [1]},
            "params.yaml: overrides is [1]; input should be a valid dictionary",
        ),
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
        (
            {"overrides": {"model": {"N": None}}},
            "params.yaml, overrides: model.N is None; input should be a valid integer",
        ),
        ({"seed": True}, "params.yaml: seed is True; it should not be true or false"),
        (
            {"overrides": {"model": {"N": True}}},
            "params.yaml, overrides: model.N is True; it should not be true or false",
        ),
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
        (
            {"overrides": {"training": {"seed": 3}}},
            ("params.yaml: overrides.training.seed is set once, by `seed` at the top of params.yaml; move it there"),
        ),
        (
            {"row": "E-learned-positions", "overrides": {"model": {"max_positions": 100}}},
            "params.yaml: model.max_positions is 100, but training sentences have up to binning.max_length = 256",
        ),
        (
            {"row": "E-learned-positions", "overrides": {"model": {"max_positions": 305}}},
            (
                "model.max_positions is 305, but a sentence of binning.max_length = 256 subwords may have a "
                "translation of search.max_extra = 50 more: raise model.max_positions to 306, or lower"
            ),
        ),
        ({"seed": 2**64}, "params.yaml: seed is 18446744073709551616; input should be less than 18446744073709551616"),
        (
            {"overrides": {"preparation": {"filters": {"min_tokens": 251}}}},
            "params.yaml: preparation.filters.min_tokens is 251, but max_tokens is 250, so no pair would pass",
        ),
        (
            {"overrides": {"binning": {"max_length": 1}}},
            "binning.max_length is 1, but pairs of preparation.filters.min_tokens have at least 2 subwords",
        ),
        (
            {"overrides": {"binning": {"max_length": 10}, "preparation": {"filters": {"min_tokens": 10}}}},
            "binning.max_length is 10, but pairs of preparation.filters.min_tokens have at least 11 subwords",
        ),
        (
            {"overrides": {"subwords": {"vocabulary": 5}}},
            "subwords.vocabulary is 5, but bpe needs at least 6, and more for most texts: raise it",
        ),
        (
            {"pair": "en-fr", "overrides": {"subwords": {"vocabulary": 261}}},
            "subwords.vocabulary is 261, but wordpieces needs at least 262",
        ),
        (
            {"overrides": {"training": {"checkpoint_every": 20001}}},
            (
                "params.yaml: averaging.last is 5, but 100,000 updates with a checkpoint every 20,001 "
                "(training.updates, training.checkpoint_every) leave 4: raise training.updates, or lower "
                "training.checkpoint_every or averaging.last"
            ),
        ),
        (
            {"overrides": {"training": {"updates": 7499}, "averaging": {"last": 5}}},
            (
                "averaging.last is 5, but 7,499 updates with a checkpoint every 1,500 (training.updates, "
                "training.checkpoint_every) leave 4"
            ),
        ),
    ],
)
def test_mistakes_are_told_in_one_sentence(changes: Mapping[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _resolved(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**64 - 1},
        {"overrides": {"preparation": {"filters": {"min_tokens": 250}}}},
        {"overrides": {"binning": {"max_length": 2}}},
        {"overrides": {"subwords": {"vocabulary": 6}}},
        {"pair": "en-fr", "overrides": {"subwords": {"vocabulary": 262}}},
        {"row": "E-learned-positions", "overrides": {"model": {"max_positions": 306}}},
        {"overrides": {"model": {"max_positions": 1}}},
        {"overrides": {"training": {"checkpoint_every": 20_000}}},
        {"overrides": {"training": {"keep_checkpoints": 6}, "averaging": {"last": 6}}},
        {"overrides": {"training": {"updates": 7500}, "averaging": {"last": 5}}},
    ],
)
def test_values_at_the_edge_of_what_later_stages_take_resolve(changes: Mapping[str, Any]) -> None:
    _resolved(**changes)


@pytest.mark.parametrize("kind", ["bpe", "wordpieces"])
def test_the_least_vocabulary_is_what_subwords_of_the_shortest_text_need(kind: Literal["bpe", "wordpieces"]) -> None:
    def learn(vocabulary: int) -> subwords.Subwords:
        settings = SubwordSettings(kind=kind, merges=None, vocabulary=vocabulary, multiple_of=1)
        return subwords.learn({"a": 5}, settings)

    assert learn(LEAST_VOCABULARY[kind]).size == LEAST_VOCABULARY[kind]
    with pytest.raises(InputError):
        learn(LEAST_VOCABULARY[kind] - 1)


@pytest.mark.parametrize(
    ("training", "checkpoints", "said"),
    [
        ({"updates": 100}, 0, "leave 0; the run was shortened by its overrides, so the last weights take"),
        ({"updates": 3000}, 2, "leave 2; the run was shortened by its overrides, so those are averaged"),
        ({"updates": 7500}, 5, ""),
        ({"updates": 100_000}, 5, ""),
        ({"updates": 8, "checkpoint_every": 3}, 2, "but 8 updates with a checkpoint every 3 (training.updates,"),
    ],
)
def test_a_run_shortened_by_its_overrides_averages_what_is_there(
    training: dict[str, int], checkpoints: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prefect deployment run wmt-en-de -p overrides='{"training": {"updates": 100}}'`."""
    changes = {"training": training, "averaging": {}}
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "overrides": changes}), encoding="utf-8")
    resolve.run(_Tracker())
    assert (_resolved(overrides=changes).checkpoints, _resolved(overrides=changes).averaging.last) == (checkpoints, 5)
    out = capsys.readouterr().out
    assert said in out
    assert out.count("\n") == bool(said)


class _Tracker:
    def __init__(self) -> None:
        self.recorded: dict[str, str] = {}

    def metrics(self, values: Mapping[str, float], update: int | None = None) -> None:
        raise AssertionError("resolving measures nothing")

    def tags(self, values: Mapping[str, str]) -> None:
        self.recorded |= values

    def artifact(self, path: Path, folder: str | None = None) -> None:
        raise AssertionError("results/config.yaml is kept by whoever keeps runs")


def test_stage_writes_a_file_that_stages_can_read(repository: Path) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    tracker = _Tracker()
    resolve.run(tracker)
    first = CONFIG.read_bytes()
    assert first.startswith(b"# Made by `python -m pipeline resolve`")
    assert load_section("model", ModelSettings) == _resolved().model
    content = yaml.safe_load(first)
    assert list(content) == list(Configuration.model_fields)
    assert Configuration.model_validate(content) == _resolved()
    assert tracker.recorded == {"row": "base", "pair": "en-de", "corpus": "tiny", "seed": "7"}
    resolve.run(tracker)
    assert CONFIG.read_bytes() == first
    assert [path.name for path in CONFIG.parent.iterdir()] == ["config.yaml"]


def test_a_local_file_without_a_checksum_in_the_catalog_is_known_by_its_bytes(repository: Path) -> None:
    """So that the stages after this one see that a file with as many lines was made anew."""
    catalog = Path("data/catalog/tiny.yaml")
    content = yaml.safe_load(catalog.read_text())
    content["pairs"]["en-de"]["train"][0]["source"] = {"path": "train.en", "lines": 1}
    catalog.write_text(yaml.safe_dump(content))
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    found = set()
    for text in ("a\n", "b\n"):
        Path("train.en").write_text(text)
        resolve.run(_Tracker())
        side = yaml.safe_load(CONFIG.read_text())["data"]["train"][0]["source"]
        assert side["sha256"] == sha256(text.encode()).hexdigest()
        found.add(CONFIG.read_bytes())
    assert len(found) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "params.yaml is missing: run from the repository's root, or restore it with git"),
        (b"row: [", "params.yaml is not valid YAML: while parsing a flow node did not find expected"),
        (b"seed: 1\nrow: base\nseed: 2\n", "params.yaml is not valid YAML: `seed` is there twice in"),
        (b"overrides: {model: {N: 1, N: 2}}", "params.yaml is not valid YAML: `N` is there twice in"),
        (b"- 1\n", "params.yaml holds no mapping: it needs the keys row, pair, corpus, seed and overrides"),
        (b"row: \xff", "params.yaml is not UTF-8 (byte 5): save it as UTF-8"),
    ],
)
def test_unreadable_params_write_nothing(content: bytes | None, message: str) -> None:
    if content is not None:
        Path("params.yaml").write_bytes(content)
    with pytest.raises(InputError) as caught:
        resolve.run(_Tracker())
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert not CONFIG.exists()


def test_params_are_read_as_utf_8_from_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes("row: d\u00e9j\u00e0".encode())
    assert resolution.read_params(path) == {"row": "d\u00e9j\u00e0"}


def test_the_file_says_what_it_was_made_from() -> None:
    written = resolution.text(_resolved(row="C-N2"))
    assert written.split("\n")[:3] == [
        "# Made by `python -m pipeline resolve` from params.yaml, pipeline/config/rows.yaml (row C-N2) and",
        "# data/catalog/tiny.yaml. Change those, not this.",
        "run:",
    ]
    # Keys stand in the order of the schema, letters beyond ASCII as they are, and long lines stay readable.
    assert [line[:-1] for line in written.split("\n") if line.endswith(":") and line[0].isalpha()] == [
        *Configuration.model_fields
    ]
    named = _resolved().model_copy(update={"run": _resolved().run.model_copy(update={"row": "\u00e9"})})
    assert "  row: \u00e9\n" in resolution.text(named)
    long = _resolved().model_copy(update={"run": _resolved().run.model_copy(update={"row": "wort " * 20})})
    assert f"  row: '{'wort ' * 20}'\n" in resolution.text(long)


def test_versions_are_the_installed_libraries() -> None:
    import sacrebleu
    import sentencepiece

    found = _resolved().versions
    assert (found.sacrebleu, found.sentencepiece) == (sacrebleu.__version__, sentencepiece.__version__)
    assert found.subword_nmt == importlib.metadata.version("subword-nmt")
    assert found.sacremoses == importlib.metadata.version("sacremoses")


def test_the_data_are_the_catalogs_for_the_pair() -> None:
    french = _resolved(pair="en-fr").data
    assert (french.source, french.target, french.valid.name, french.test.name) == ("en", "fr", "valid", "test")
    assert french.train[0].source.path == "train.en"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"edited",
            "train.en has the sha256 .* it was edited; add it again with `wmt catalog add --force`, or restore",
        ),
        (None, "train.en is missing: restore it, or add it again with `wmt catalog add`"),
    ],
)
def test_an_edited_or_missing_local_file_writes_nothing(content: bytes | None, message: str) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS), encoding="utf-8")
    Path("train.en").unlink()
    if content is not None:
        Path("train.en").write_bytes(content)
    with pytest.raises(InputError, match=f"^{message}"):
        resolve.run(_Tracker())
    assert not CONFIG.exists()


@pytest.mark.parametrize(
    ("german", "message"),
    [
        (
            {"preparation": {"filters": {"max_ratio": 0.5}}},
            "the catalog tiny: preparation.filters.max_ratio is 0.5; input should be greater than or equal to 1",
        ),
        (
            {"subwords": {"merges": 0}},
            "the catalog tiny: subwords.merges is 0; input should be greater than or equal to 1",
        ),
        ({"subwords": {"merges": 5, "vocabulary": 5}}, "the catalog tiny: subwords: give either merges or vocabulary"),
        (
            {"preparation": {"filter": {}}},
            "the catalog tiny: unknown key `preparation.filter`; did you mean `filters`?",
        ),
        (
            {"preparation": {"filters": {"max_token": 3}}},
            "the catalog tiny: unknown key `preparation.filters.max_token`; did you mean `max_tokens`?",
        ),
        ({"preparation": {"filters": 3}}, "the catalog tiny: preparation.filters is 3; input should be a valid dict"),
        ({"subwords": {"merge": 3}}, "the catalog tiny: unknown key `subwords.merge`; did you mean `merges`?"),
    ],
)
def test_a_mistake_in_the_catalog_is_told_of_the_catalog(german: dict[str, Any], message: str) -> None:
    path = Path("data/catalog/tiny.yaml")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["pairs"]["en-de"] |= german
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        _resolved()
    assert str(caught.value).startswith(message)


def test_where_a_value_stands_is_the_last_layer_that_says_something_of_it() -> None:
    layers = [
        ("first", {"model": {"N": 6, "h": 8}, "search": {"beam": 4}}),
        ("second", {"model": {"N": 2}, "search": {}}),
        ("params.yaml, overrides", {"training": {"updates": 3}, "model": {"h": None}}),
    ]
    assert resolution._origin(["model", "N"], layers) == "second"
    assert resolution._origin(["model", "h"], layers) == "params.yaml, overrides"
    assert resolution._origin(["search"], layers) == "first"
    assert resolution._origin(["model"], layers) == "params.yaml, overrides"
    # Of no layer, of the whole, and of something inside a value.
    assert [resolution._origin(path, layers) for path in ([], ["data"], ["model", "N", "x"])] == ["params.yaml"] * 3


def test_a_missing_value_is_told() -> None:
    with pytest.raises(ValidationError) as caught:
        Configuration.model_validate({"run": {}})
    assert errors.explain(caught.value, Configuration) == "`run.row` is missing: add it"


def test_the_keys_of_a_section() -> None:
    assert errors.valid_keys(Configuration, []) == [*Configuration.model_fields]
    assert errors.valid_keys(Configuration, ["averaging"]) == ["last"]
    assert errors.valid_keys(Configuration, ["preparation", "filters"]) == [
        "min_tokens",
        "max_tokens",
        "max_ratio",
        "drop_identical",
    ]
