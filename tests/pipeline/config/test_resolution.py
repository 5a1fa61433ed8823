"""Merging and checking of the configuration, on a catalog of plain files, and what stages refuse of it."""

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import yaml
from data_stages import PACKAGES, data_section
from refusals import check_refusal

from nmt.model_settings import ModelSettings
from pipeline.config import resolution, rows
from pipeline.config.paths import CONFIG
from pipeline.config.sections import AveragingSettings, load_section
from pipeline.config.settings import Configuration
from pipeline.stages import attention, binarize, decode, learn_subwords, resolve, score

SUM = sha256(b"").hexdigest()
PARAMS: dict[str, Any] = {"row": "base", "pair": "en-de", "corpus": "tiny", "seed": 7, "overrides": {}}


def _text(name: str) -> dict[str, Any]:
    source, target = ({"path": f"{name}.{language}", "sha256": SUM} for language in ("en", "xx"))
    return {"name": name, "source": source, "target": target}


@pytest.fixture(autouse=True)
def repository(here: Path) -> None:
    """It has one catalog."""
    pair = {"train": [_text("train")], "valid": _text("valid"), "test": _text("test")}
    preparation = {"tokenizer": {"aggressive_hyphens": True}, "filters": {"max_tokens": 250}}
    german = {"preparation": preparation, "subwords": {"vocabulary": 37000}}
    both = {role: {**_text(role), "target": _text(role)["source"]} for role in pair}
    trees = {**both, "train": [both["train"]]}
    content = {"description": "Plain files.", "pairs": {"en-de": {**pair, **german}, "en-fr": pair, "en-tree": trees}}
    Path("data/catalog").mkdir(parents=True)
    Path("data/catalog/tiny.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    for name in pair:
        for language in ("en", "xx"):
            Path(f"{name}.{language}").touch()


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
    overrides = {"subwords": {"vocabulary": 500}, "model": {"N": 1}, "training": {"start_from": None}}
    configuration = _resolved(row="small", overrides=overrides)
    assert (configuration.subwords.vocabulary, configuration.subwords.merges) == (500, None)
    assert (configuration.model.N, configuration.model.d_model) == (1, 256)


def test_pair_differs_in_subwords_tokenizer_and_bigs_dropout() -> None:
    french = _resolved(row="big", pair="en-fr")
    assert (french.subwords.kind, french.subwords.vocabulary) == ("wordpieces", 32000)
    assert french.preparation.tokenizer.tokenizer == "none"
    assert french.model.P_drop == 0.1
    data = french.data
    assert (data.source, data.target, data.valid.name, data.test[0].name) == ("en", "fr", "valid", "test")
    assert data.train[0].source.path == "train.en"
    assert _resolved(row="big").model.P_drop == 0.3


def test_a_catalog_serves_the_other_direction_and_rows_have_sizes_for_every_pair() -> None:
    there, back = _resolved(row="small"), _resolved(row="small", pair="de-en")
    assert (back.data.source, back.data.target) == ("de", "en")
    assert back.data.train[0].source == there.data.train[0].target
    assert back.data.test[0].target == there.data.test[0].source
    assert (back.subwords.kind, back.subwords.vocabulary) == ("wordpieces", 8000)
    assert back.preparation.tokenizer.tokenizer == "none"


def test_changed_settings_are_those_that_differ_from_the_row() -> None:
    overrides = {"training": {"updates": 7}, "model": {"N": 2}, "search": {"beam": 4, "alpha": 1.0}}
    asked = resolution.resolve({**PARAMS, "overrides": overrides})
    found = resolution.changed(asked.model_dump(mode="json"))
    chosen = {key: value for key, value in found.items() if not key.startswith(resolution.OF_CORPUS)}
    assert chosen == {"model.N": 2, "training.updates": 7, "search.alpha": 1.0}
    assert resolution.in_words({**chosen, "attention.sentences": 1}) == ["N=2", "updates=7", "alpha=1.0"]
    assert resolution.in_words({"": {}}) == []


def test_an_emptied_section_overrides_nothing() -> None:
    assert _resolved(overrides=None) == _resolved(overrides={"model": None}) == _resolved()


def over(section: str, **values: Any) -> dict[str, Any]:
    """Changes of params.yaml that override values of a section."""
    return {"overrides": {section: values}}


LEARNED, FRENCH = {"row": "E-learned-positions"}, {"pair": "en-fr"}
TREES = {"row": "parse-sample", "pair": "en-tree"}
TOKENS, SYMBOLS = (over("preparation", tokenizer={"tokenizer": name}) for name in ("moses", "vinyals"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row": "bas"}, "`bas` is not a row of rows.yaml; did you mean `base`?"),
        ({"pair": "en-tree"}, "params.yaml: row base does not parse en-tree; rows that do are parse-wsj"),
        ({"pair": "en-DE"}, "params.yaml: pair is 'en-DE'; a pair is two different ISO 639 codes, as `de-en`"),
        (TREES | TOKENS, "tokenizer.tokenizer is moses, which cannot parse en-tree: set vinyals or tensor2tensor"),
        (SYMBOLS, "tokenizer.tokenizer is vinyals, which cannot translate en-de: set moses or none"),
        (over("subwords", target="closed"), "subwords.target is closed, which cannot translate en-de: set joint"),
        (TREES | over("model", sharing="all"), "model.sharing is all, which cannot parse en-tree: set output or none"),
        ({"corpus": "tyny"}, "did you mean `tiny`?"),
        ({"corpus": "a b"}, "params.yaml: corpus is 'a b'; string should match pattern"),
        ({"seed": 2**64}, "params.yaml: seed is 18446744073709551616; input should be less than"),
        ({"sed": 1}, "unknown key `sed`; did you mean `seed`? valid are row, pair, corpus, seed, overrides"),
        ({"overrides": {"modle": {}}}, "params.yaml: unknown key `overrides.modle`; did you mean `model`?"),
        ({"overrides": {"model.N": 3}}, "params.yaml: write `overrides: {model: {N: ...}}`, not `model.N`"),
        ({"overrides": {"training.start_from.folder": "a"}}, "`overrides: {training: {start_from: {folder: ...}}}`"),
        (over("model", P_drop=1.5), "params.yaml, overrides: model.P_drop is 1.5; input should be less than or"),
        (over("training", shards=2**20), "overrides: training.shards is 1048576; input should be 1, 2, 4, 8, 16"),
        (over("model", N=True), "params.yaml, overrides: model.N is True; it should not be true or false"),
        # Values that training would take minutes to build, and end with tracebacks.
        (over("training", updates=10**20), f"overrides: training.updates is {10**20}; input should be less"),
        (over("training", tokens=1e12), "overrides: training.tokens is 1000000000000.0; input should be less"),
        (over("model", N=10**6), "overrides: model.N is 1000000; input should be less"),
        (over("search", beam=10**8), "overrides: search.beam is 100000000; input should be less"),
        (over("subwords", merges=10**11), "overrides: subwords.merges is 100000000000; input should be less"),
        (over("training", see=3), "unknown key `training.see`; valid are updates, tokens,"),
        (over("training", seed=3), "training.seed is set once, by `seed` at the top of params.yaml"),
        (over("subwords", merges=5, vocabulary=5), "give either merges or vocabulary"),
        (FRENCH | over("subwords", merges=5), "params.yaml, overrides: subwords: word pieces are sized by vocabulary"),
        ({"row": "D-pdrop0.0"} | over("training", r_drop=5.0), "training.r_drop needs dropout"),
        (over("averaging", last=9), "averaging.last is 9, but training.keep_checkpoints keeps only 5"),
        # Checkpoints after 93,000, 94,500, 96,000, 97,500 and 99,000 updates.
        (over("averaging", best=4), "leave 3 with a validation (every 1,000: training.validate_every): raise"),
        (LEARNED | over("model", max_positions=305), "params.yaml: model.max_positions is 305, but binning.max_length"),
        (over("subwords", kind="wordpieces", vocabulary=300, user_defined_symbols=["<2de>"]), "tokenizer would tear"),
        (FRENCH | over("subwords", user_defined_symbols=["a b"]), "subwords.user_defined_symbols.0 is 'a b'; string"),
        *(
            (FRENCH | over("subwords", user_defined_symbols=symbols), "twice, or it is word pieces' own: rename it")
            for symbols in (["</s>"], ["<0x41>"], ["<2de>", "<2de>"])
        ),
        (over("scoring", tokenize="14a"), "overrides: scoring.tokenize is '14a'; input should be '13a', 'intl'"),
        (over("training", checkpoint_every=20001), "training.checkpoint_every) leave 4: raise training.updates, or"),
    ],
)
def test_mistakes_are_told_in_one_sentence(changes: Mapping[str, Any], message: str) -> None:
    check_refusal(re.escape(message), _resolved, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2**64 - 1}, TREES | over("subwords", target="joint"),
        LEARNED | over("model", max_positions=306), over("model", max_positions=1),
        over("subwords", merges=None),  # The catalog's vocabulary stays.
        over("training", checkpoint_every=20_000), over("averaging", best=3),
        {"overrides": {"training": {"keep_checkpoints": 6}, "averaging": {"last": 6}}},
        {"overrides": {"training": {"updates": 7500}, "averaging": {"last": 5}}},
        {"overrides": {"training": {"updates": 1500}, "averaging": {"best": 1}}},
    ],
)  # fmt: skip
def test_values_at_the_edge_of_what_later_stages_take_resolve(changes: Mapping[str, Any]) -> None:
    _resolved(**changes)


@pytest.mark.parametrize("training", [{"updates": 100}, {"updates": 3000}, {"updates": 8, "checkpoint_every": 3}])
def test_a_run_shortened_by_its_overrides_may_leave_fewer_checkpoints(training: dict[str, int]) -> None:
    """`prefect deployment run wmt-en-de -p overrides='{"training": {"updates": 100}}'`."""
    assert _resolved(overrides={"training": training, "averaging": {}}).averaging.last == 5


def test_stage_writes_a_file_that_stages_can_read() -> None:
    Path("params.yaml").write_text(yaml.safe_dump({**PARAMS, "row": "C-N2"}), encoding="utf-8")
    resolve.run()
    first = CONFIG.read_text(encoding="utf-8")
    # Keys stand in the order of the schema.
    assert [line for line in first.split("\n") if line and not line.startswith(" ")] == [
        "# Made by `python -m pipeline resolve` from params.yaml, pipeline/config/rows.yaml (row C-N2) and",
        "# data/catalog/tiny.yaml. Change those, not this.",
        *(f"{section}:" for section in Configuration.model_fields),
    ]
    assert load_section("model", ModelSettings) == _resolved(row="C-N2").model
    assert Configuration.model_validate(yaml.safe_load(first)) == _resolved(row="C-N2")
    resolve.run()
    assert CONFIG.read_text(encoding="utf-8") == first
    assert [path.name for path in CONFIG.parent.iterdir()] == ["config.yaml"]


def test_letters_beyond_ascii_stay_as_they_are_and_long_lines_readable() -> None:
    for row, shown in (("\u00e9", "\u00e9"), ("wort " * 20, f"'{'wort ' * 20}'")):
        named = _resolved().model_copy(update={"run": _resolved().run.model_copy(update={"row": row})})
        assert f"  row: {shown}\n" in resolution.text(named)


def test_a_local_file_without_a_checksum_in_the_catalog_is_known_by_its_bytes() -> None:
    """So that the stages after this one see that a file with as many lines was made anew."""
    catalog = Path("data/catalog/tiny.yaml")
    content = yaml.safe_load(catalog.read_text())
    content["pairs"]["en-de"]["train"][0]["source"] = {"path": "train.en", "lines": 1}
    catalog.write_text(yaml.safe_dump(content))
    Path("params.yaml").write_text(yaml.safe_dump(PARAMS))
    written = set()
    for text in ("a\n", "b\n"):
        Path("train.en").write_text(text)
        resolve.run()
        side = yaml.safe_load(CONFIG.read_text())["data"]["train"][0]["source"]
        assert side["sha256"] == sha256(text.encode()).hexdigest()
        written.add(CONFIG.read_bytes())
    assert len(written) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "params.yaml is missing: run from the repository's root, or restore it with git"),
        (b"overrides: {model: {N: 1, N: 2}}", "params.yaml is not valid YAML: `N` is there twice in"),
        (b"- 1\n", "params.yaml holds no mapping: it needs the keys row, pair, corpus, seed and overrides"),
    ],
)
def test_unreadable_params_write_nothing(content: bytes | None, message: str) -> None:
    if content is not None:
        Path("params.yaml").write_bytes(content)
    check_refusal(f"^{re.escape(message)}", resolve.run)
    assert not CONFIG.exists()


@pytest.mark.parametrize(
    ("german", "message"),
    [
        ({"preparation": {"filters": {"max_ratio": 0.5}}}, "preparation.filters.max_ratio is 0.5; input should be"),
        ({"subwords": {"merges": 5, "vocabulary": 5}}, "subwords: give either merges or vocabulary"),
        ({"preparation": {"filter": {}}}, "unknown key `preparation.filter`; did you mean `filters`?"),
    ],
)
def test_a_mistake_in_the_catalog_is_told_of_the_catalog(german: dict[str, Any], message: str) -> None:
    path = Path("data/catalog/tiny.yaml")
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["pairs"]["en-de"] |= german
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    say_nothing = {"subwords": {}, "preparation": {}}
    check_refusal(re.escape(f"the catalog tiny: {message}"), _resolved, overrides=say_nothing)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, " is missing: run `dvc repro`, or `python -m pipeline resolve`, first"),
        ("model: {}", " has no section `averaging`: run `python -m pipeline resolve` again"),
        ("averaging: {last: 0}", ", section `averaging`: last is 0; input should be greater than or"),
    ],
)
def test_a_section_that_cannot_be_read_is_refused(content: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    check_refusal(f"^{re.escape(f'{path}{message}')}", load_section, "averaging", AveragingSettings, path)


@pytest.mark.parametrize("stage", [learn_subwords, binarize, decode, attention, score])
def test_stages_refuse_another_version_of_a_library(stage: Any) -> None:
    before = {*Path().rglob("*")}
    content = {"data": data_section("x"), **rows.settings("sample", "en-de")}
    CONFIG.parent.mkdir()
    CONFIG.write_text(yaml.safe_dump({**content, "versions": dict.fromkeys(PACKAGES, "0.0.1")}))
    check_refusal(r" .* resolved with 0\.0\.1", stage.run)
    assert {*map(str, {*Path().rglob("*")} - before)} == {"results", "results/config.yaml"}
