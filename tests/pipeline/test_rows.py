"""The paper's tables as data: every row, its exact size, and the numbers printed beside it."""

from __future__ import annotations

import json

import pytest

from nmt.config import InputError, ModelSettings, SubwordSettings, TrainingSettings
from pipeline import rows

TABLE3 = """
base 4.92 25.8 65 | A-h1 5.29 24.9 | A-h4 5.00 25.5 | A-h16 4.91 25.8 | A-h32 5.01 25.4 | B-dk16 5.16 25.1 58
B-dk32 5.01 25.4 60 | C-N2 6.11 23.7 36 | C-N4 5.19 25.3 50 | C-N8 4.88 25.5 80 | C-dmodel256 5.75 24.5 28
C-dmodel1024 4.66 26.0 168 | C-dff1024 5.12 25.4 53 | C-dff4096 4.75 26.2 90 | D-pdrop0.0 5.77 24.6
D-pdrop0.2 4.95 25.5 | D-eps0.0 4.67 25.3 | D-eps0.2 5.47 25.7 | E-learned-positions 4.92 25.7 | big 4.33 26.4 213
"""
PAPER = {cells[0]: cells[1:] for cells in (line.split() for line in TABLE3.replace("\n", "|").split("|")) if cells}
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
    listed = {item["row"]: item for item in rows.listing()}
    assert set(listed) == {*PAPER, "small", "sample"}
    for name, (ppl, bleu, *params) in PAPER.items():
        item = listed[name]
        printed = int(params[0]) if params else None
        assert (item["paper_ppl"], item["paper_bleu"], item["paper_params_m"]) == (float(ppl), float(bleu), printed)
    assert listed["small"]["paper_bleu"] is None


def test_parameter_counts_are_the_papers_but_for_big() -> None:
    listed = {item["row"]: item for item in rows.listing()}
    assert {name: listed[name]["params"] for name in COUNTS} == COUNTS
    for name, count in COUNTS.items():
        assert count == _independent(rows.model(name), 40960)
        reproduced = round(count / 1e6) == listed[name]["paper_params_m"]
        assert reproduced == (name != "big")


def test_vocabulary_changes_the_count_by_whole_rows_of_embedding() -> None:
    at = {item["row"]: item["params"] for item in rows.listing(37000)}
    assert COUNTS["base"] - at["base"] == (40960 - 37000) * 512


@pytest.mark.parametrize("name", list(rows.table().rows))
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
    for name in rows.table().rows:
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


def test_unknown_row_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"`c-n2` is not a row of rows\.yaml; did you mean `C-N2`"):
        rows.row("c-n2")


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert rows.main(["--json", "--vocabulary", "37000"]) == 0
    items = json.loads(capsys.readouterr().out)
    assert items[0]["row"] == "base"
    assert items[0]["params"] == 63_082_496
    assert items[0]["paper_en_de_newstest2014_bleu"] == 27.3
    assert rows.main([]) == 0
    assert "65,110,016" in capsys.readouterr().out
    assert rows.main(["--vocabulary", "0"]) == 1
    assert "must be at least 1" in capsys.readouterr().err
