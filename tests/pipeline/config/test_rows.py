"""The paper's tables as data: every row, its exact size, and the numbers printed beside it."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from command_line import wmt

from nmt.config import InputError, ModelSettings, SubwordSettings, TrainingSettings
from pipeline.commands import rows as command
from pipeline.config import errors, rows

TABLE3 = """
base 4.92 25.8 65 | A-h1 5.29 24.9 | A-h4 5.00 25.5 | A-h16 4.91 25.8 | A-h32 5.01 25.4 | B-dk16 5.16 25.1 58
B-dk32 5.01 25.4 60 | C-N2 6.11 23.7 36 | C-N4 5.19 25.3 50 | C-N8 4.88 25.5 80 | C-dmodel256 5.75 24.5 28
C-dmodel1024 4.66 26.0 168 | C-dff1024 5.12 25.4 53 | C-dff4096 4.75 26.2 90 | D-pdrop0.0 5.77 24.6
D-pdrop0.2 4.95 25.5 | D-eps0.0 4.67 25.3 | D-eps0.2 5.47 25.7 | E-learned-positions 4.92 25.7 | big 4.33 26.4 213
"""
PAPER = {cells[0]: cells[1:] for cells in (line.split() for line in TABLE3.replace("\n", "|").split("|")) if cells}
LISTED = [*PAPER, "small", "sample", "parse-wsj", "parse-semi", "parse-small", "parse-sample"]
"""The rows of this repository. A user may add others, which need not be as these are."""
COUNTS = {
    "base": 65_110_016,
    "B-dk16": 58_018_304,
    "B-dk32": 60_382_208,
    "C-N2": 35_684_352,
    "C-N4": 50_397_184,
    "C-N8": 79_822_848,
    "C-dmodel256": 27_848_704,
    "C-dmodel1024": 167_944_192,
    "C-dff1024": 52_514_816,
    "C-dff4096": 90_300_416,
    "big": 218_300_416,
}


def _independent(m: ModelSettings, vocabulary: int) -> int:
    """Matrices and vectors listed one by one, layer by layer."""
    total = vocabulary * m.d_model
    for attentions, norms in ((1, 2), (2, 3)):
        for _ in range(m.N):
            for _ in range(attentions):
                for _ in range(m.h):
                    total += 2 * (m.d_model + 1) * m.d_k + (m.d_model + 1) * m.d_v
                total += (m.h * m.d_v + 1) * m.d_model
            total += (m.d_model + 1) * m.d_ff + (m.d_ff + 1) * m.d_model
            total += norms * (m.d_model + m.d_model)
    return total


def test_every_row_of_table_3_with_what_the_paper_prints() -> None:
    listed = {item["row"]: item for item in command.listing()}
    assert listed.keys() >= set(LISTED)
    assert (listed["parse-wsj"]["paper_f1"], listed["parse-semi"]["paper_f1"]) == (91.3, 92.7)
    semi = ModelSettings.model_validate(rows.settings("parse-semi", "en-tree")["model"])
    assert (semi.N, semi.d_model, semi.P_drop, semi.attention_dropout) == (4, 1024, 0.1, 0.0)
    for name, (ppl, bleu, *params) in PAPER.items():
        item = listed[name]
        printed = int(params[0]) if params else None
        assert (item["paper_ppl"], item["paper_bleu"], item["paper_params_m"]) == (float(ppl), float(bleu), printed)
    assert listed["small"]["paper_bleu"] is None


def test_parameter_counts_are_the_papers_but_for_big() -> None:
    listed = {item["row"]: item for item in command.listing()}
    assert {name: listed[name]["params"] for name in COUNTS} == COUNTS
    for name, count in COUNTS.items():
        assert count == _independent(rows.model(name), 40960)
        reproduced = round(count / 1e6) == listed[name]["paper_params_m"]
        assert reproduced == (name != "big")


def test_vocabulary_changes_the_count_by_whole_rows_of_embedding() -> None:
    at = {item["row"]: item["params"] for item in command.listing(37000)}
    assert COUNTS["base"] - at["base"] == (40960 - 37000) * 512


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("pair", ["en-de", "en-fr"])
def test_every_row_is_valid_for_both_pairs(name: str, pair: rows.Pair) -> None:
    content = rows.settings(name, pair)
    ModelSettings.model_validate(content["model"])
    training = TrainingSettings.model_validate(content["training"])
    subwords = SubwordSettings.model_validate(content["subwords"])
    assert subwords.kind == ("bpe" if pair == "en-de" else "wordpieces")
    assert content["averaging"]["last"] <= training.keep_checkpoints
    assert training.keep_checkpoints * training.checkpoint_every <= training.updates


def test_heads_are_as_wide_as_the_model_but_in_rows_b() -> None:
    for name in LISTED:
        model = rows.model(name)
        assert model.h * model.d_v == model.d_model
        assert (model.d_k == model.d_v) == (not name.startswith("B-"))


def test_rows_differ_from_base_in_what_they_are_named_after_alone() -> None:
    base = rows.settings("base", "en-de")
    changed = {
        name: {
            f"{section}.{key}"
            for section, content in rows.settings(name, "en-de").items()
            for key, value in content.items()
            if value != base[section][key]
        }
        for name in PAPER
    }
    assert changed["base"] == set()
    assert changed["A-h16"] == {"model.h", "model.d_k", "model.d_v"}
    assert changed["B-dk16"] == {"model.d_k"}
    assert changed["C-N8"] == {"model.N"}
    assert changed["C-dmodel256"] == {"model.d_model", "model.d_k", "model.d_v"}
    assert changed["D-eps0.2"] == {"training.eps_ls"}
    assert changed["E-learned-positions"] == {"model.positions"}
    assert {key.split(".")[0] for key in changed["big"]} == {"model", "training", "averaging"}


def test_big_has_less_dropout_in_french() -> None:
    assert rows.model("big", "en-de").P_drop == 0.3
    assert rows.model("big", "en-fr").P_drop == 0.1
    assert rows.settings("big", "en-fr")["subwords"]["vocabulary"] == 32000


def test_table_2() -> None:
    found = {(entry.name, pair): entry.on(pair) for entry in rows.table().literature for pair in rows.table().pairs}
    assert len(rows.table().literature) == 8
    convs2s = found["ConvS2S ensemble", "en-fr"]
    assert convs2s is not None
    assert (convs2s.bleu, convs2s.flops) == (41.29, 1.2e21)
    assert found["ByteNet", "en-fr"] is None
    big = rows.row("big").paper.table2
    assert (big["en-de"].bleu, big["en-fr"].bleu, big["en-de"].flops) == (28.4, 41.8, 2.3e19)


def test_merging_changes_neither_side_and_keeps_one_size() -> None:
    base: dict[str, dict[str, object]] = {
        "subwords": {"kind": "bpe", "merges": 32000, "vocabulary": None},
        "model": {"N": 6},
    }
    merged = rows.merge(base, {"subwords": {"vocabulary": 8000}})
    assert merged == {"subwords": {"kind": "bpe", "merges": None, "vocabulary": 8000}, "model": {"N": 6}}
    assert rows.merge(merged, {"subwords": {"merges": 100}})["subwords"]["vocabulary"] is None
    assert base["subwords"]["merges"] == 32000
    both = rows.merge(base, {"subwords": {"merges": 1, "vocabulary": 2}})["subwords"]
    assert (both["merges"], both["vocabulary"]) == (1, 2)


def test_another_system_has_no_result_for_a_pair_that_it_does_not_report() -> None:
    entry = rows.Literature.model_validate({"name": "GNMT", "en-de": {"bleu": 24.6}, "en-fr": {"bleu": 39.92}})
    found = [entry.on(cast("Any", pair)) for pair in ("en-de", "en-fr", "de-en")]
    assert [result and result.bleu for result in found] == [24.6, 39.92, None]


def test_unknown_row_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"`c-n2` is not a row of rows\.yaml; did you mean `C-N2`"):
        rows.row("c-n2")


def test_nearest_is_one_guess_and_all_there_are() -> None:
    assert errors.nearest("BIGG", ["base", "big", "bag"]) == "did you mean `big`? valid are base, big, bag"
    assert errors.nearest("xyz", iter(["base", "big"])) == "valid are base, big"
    assert errors.nearest("ab", ["Abxx"]) == "did you mean `Abxx`? valid are Abxx"
    assert errors.nearest("ab", ["abxxxxx"]) == "valid are abxxxxx"


def test_layers_name_where_they_stand() -> None:
    assert [name for name, _ in rows.pair_differences("en-fr")] == ["rows.yaml, base", "rows.yaml, pair en-fr"]
    assert rows.pair_differences("en-fr")[1][1]["subwords"] == {"kind": "wordpieces", "vocabulary": 32000}
    assert rows.pair_differences("en-de")[0][1] is rows.table().base
    assert rows.pair_differences("en-de")[1][1] == {}
    assert rows.row_differences("big", "en-fr") == [
        ("rows.yaml, row big", rows.row("big").settings),
        ("rows.yaml, row big for en-fr", {"model": {"P_drop": 0.1}}),
    ]
    assert rows.row_differences("big", "en-de")[1] == ("rows.yaml, row big for en-de", {})
    assert rows.model("big") == rows.model("big", "en-de")


def test_merging_goes_down_mappings_and_takes_all_else_as_it_is() -> None:
    base = {"a": {"b": {"c": 1, "d": 2}}, "e": {"f": 3}, "g": 4}
    assert rows.merge(base, {"a": {"b": {"d": None}}, "e": 5, "g": {"h": 6}}) == {
        "a": {"b": {"c": 1, "d": None}},
        "e": 5,
        "g": {"h": 6},
    }
    # One of the two sizes empties the other only where both are keys, and not when it is itself emptied.
    assert rows.merge({"vocabulary": 7}, {"merges": None}) == {"vocabulary": 7, "merges": None}
    assert rows.merge({}, {"merges": 3}) == {"merges": 3}
    assert rows.merge({"merges": 3, "vocabulary": None}, {"kind": "bpe"}) == {
        "merges": 3,
        "vocabulary": None,
        "kind": "bpe",
    }


def test_the_list_holds_every_number() -> None:
    listed = {item["row"]: item for item in command.listing()}
    assert listed["big"] == {
        "row": "big",
        "about": "Transformer (big)",
        "params": 218_300_416,
        "vocabulary": 40960,
        "paper_params_m": 213,
        "paper_ppl": 4.33,
        "paper_bleu": 26.4,
        "paper_en_de_newstest2014_bleu": 28.4,
        "paper_en_de_flops": 2.3e19,
        "paper_en_fr_newstest2014_bleu": 41.8,
        "paper_en_fr_flops": 2.3e19,
    }
    assert listed["A-h1"] == {
        "row": "A-h1",
        "about": "one head of 512",
        "params": 65_110_016,
        "vocabulary": 40960,
        "paper_params_m": None,
        "paper_ppl": 5.29,
        "paper_bleu": 24.9,
    }


def test_the_printed_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert wmt("rows") == 0
    lines = capsys.readouterr().out.split("\n")
    assert lines[0] == "row                        params paper (M) paper PPL paper BLEU  what"
    assert lines[1] == "base                   65,110,016        65      4.92       25.8  Transformer (base)"
    assert "A-h1                   65,110,016                5.29       24.9  one head of 512" in lines
    assert lines[-2] == "params: exact, with 40,960 rows of embedding. PPL and BLEU: newstest2013, en-de."
    assert len(lines) == len(rows.table().rows) + 3
    assert wmt("rows", "--json") == 0
    assert json.loads(capsys.readouterr().out) == command.listing(40960)


def test_a_result_of_another_system_belongs_to_its_pair() -> None:
    (entry,) = (entry for entry in rows.table().literature if entry.name == "MoE")
    german, french = entry.on("en-de"), entry.on("en-fr")
    assert german is not None
    assert french is not None
    assert (german.bleu, german.flops, french.bleu, french.flops) == (26.03, 2e19, 40.56, 1.2e20)


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert wmt("rows", "--json", "--vocabulary", "37000") == 0
    items = json.loads(capsys.readouterr().out)
    assert items[0]["row"] == "base"
    assert items[0]["params"] == 63_082_496
    assert items[0]["paper_en_de_newstest2014_bleu"] == 27.3
    assert wmt("rows", "--vocabulary", "0") == 1
    assert capsys.readouterr().err == "rows: --vocabulary is 0, but must be at least 1\n"
    assert wmt("rows", "--json", "--vocabulary", "1") == 0
    assert json.loads(capsys.readouterr().out)[0]["params"] == COUNTS["base"] - 40959 * 512
