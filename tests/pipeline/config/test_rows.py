"""The paper's tables as data: every row, its exact size, and the numbers printed beside it."""

import re
from pathlib import Path

import pytest
from command_line import printed, refused

from nmt.evaluation.known_sets import named
from nmt.model_settings import ModelSettings
from nmt.training.schedule import learning_rate
from nmt.training.settings import TrainingSettings
from pipeline.config import rows

TABLE3 = """
base 4.92 25.8 65 | A-h1 5.29 24.9 | A-h4 5.00 25.5 | A-h16 4.91 25.8 | A-h32 5.01 25.4 | B-dk16 5.16 25.1 58
B-dk32 5.01 25.4 60 | C-N2 6.11 23.7 36 | C-N4 5.19 25.3 50 | C-N8 4.88 25.5 80 | C-dmodel256 5.75 24.5 28
C-dmodel1024 4.66 26.0 168 | C-dff1024 5.12 25.4 53 | C-dff4096 4.75 26.2 90 | D-pdrop0.0 5.77 24.6
D-pdrop0.2 4.95 25.5 | D-eps0.0 4.67 25.3 | D-eps0.2 5.47 25.7 | E-learned-positions 4.92 25.7 | big 4.33 26.4 213
"""
COUNTS = """
base 65,110,016 | B-dk16 58,018,304 | B-dk32 60,382,208 | C-N2 35,684,352 | C-N4 50,397,184 | C-N8 79,822,848
C-dmodel256 27,848,704 | C-dmodel1024 167,944,192 | C-dff1024 52,514,816 | C-dff4096 90,300,416 | big 218,300,416
"""
OWN_COUNTS = "small 7,593,984 | multi30k 6,844,416 | sample 1,859,584 | parse-sample 932,864 | parse-small 7,593,984"
"""As trainings on the corpora that these rows are for had them."""


def by_name(table: str) -> dict[str, list[str]]:
    """The cells of each row by its name."""
    rows = (row.split() for row in table.replace("\n", "|").split("|"))
    return {cells[0]: cells[1:] for cells in rows if cells}


PAPER = by_name(TABLE3)
LISTED = [*PAPER, "small", "small-rdrop", "tiny", "multi30k", "sample", "transformer_iwslt_de_en"]
LISTED += ["parse-wsj", "parse-semi", "parse-small", "parse-small-rdrop", "parse-sample"]
"""The rows of this repository. A user may add others, which need not be as these are."""


def test_every_row_of_table_3_with_what_the_paper_prints() -> None:
    header, *lines, footer, _ = printed("rows").splitlines()
    assert header == "row                           params paper (M) paper PPL paper BLEU  what"
    assert lines[0] == "base                      65,110,016        65      4.92       25.8  Transformer (base)"
    assert footer == "params: exact; the paper's rows with 40,960 rows of embedding, others with their own."
    listed = {line.split()[0]: [line[start : start + 11].strip() for start in (25, 36, 46, 56)] for line in lines}
    assert list(listed) == list(rows.table().rows)
    assert listed.keys() >= set(LISTED)
    for name, (ppl, bleu, *millions) in PAPER.items():
        assert listed[name][1:] == [*(millions or [""]), ppl, bleu]
    assert listed["small"][3] == ""
    for name, [count] in by_name(COUNTS).items():
        assert listed[name][0] == count
        reproduced = round(int(count.replace(",", "")) / 1e6) == rows.row(name).paper.params_m
        assert reproduced == (name != "big"), "the paper's are the others'"
    for name, [count] in by_name(OWN_COUNTS).items():
        assert listed[name][0] == count
    assert [line[-7:] for line in lines if line.startswith(("parse-wsj", "parse-semi"))] == ["F1 91.3", "F1 92.7"]
    semi = ModelSettings.model_validate(rows.settings("parse-semi", "en-tree")["model"])
    assert (semi.N, semi.d_model, semi.P_drop, semi.attention_dropout) == (4, 1024, 0.1, 0.0)


def test_rows_differ_from_base_in_what_they_are_named_after_alone() -> None:
    flat = {name: dict(rows.flat(rows.settings(name, "en-de"))) for name in PAPER}
    changed = {name: {key for key, value in row.items() if value != flat["base"][key]} for name, row in flat.items()}
    assert changed["base"] == set()
    assert [rows.settings(name, "en-de")["training"]["shards"] for name in ("base", "big")] == [8, 8]
    assert changed["A-h16"] == {"model.h", "model.d_k", "model.d_v"}
    assert changed["B-dk16"] == {"model.d_k"}
    assert changed["C-N8"] == {"model.N"}
    assert changed["C-dmodel256"] == {"model.d_model", "model.d_k", "model.d_v"}
    assert changed["D-eps0.2"] == {"training.eps_ls"}
    assert changed["E-learned-positions"] == {"model.positions"}
    assert {key.split(".")[0] for key in changed["big"]} == {"model", "training", "averaging"}
    for name in LISTED:
        model = rows.model(name)
        assert model.h * model.d_v == model.d_model
        assert (model.d_k == model.d_v) == (not name.startswith("B-"))


def test_fairseqs_row_has_its_learning_rate() -> None:
    settings = rows.settings("transformer_iwslt_de_en", "de-en")
    training = TrainingSettings.model_validate(settings["training"] | {"precision": "float32"})
    rates = [learning_rate(update, settings["model"]["d_model"], training) for update in (2000, 4000, 16000)]
    assert rates == pytest.approx([2.5e-4, 5e-4, 2.5e-4], rel=1e-5)


def test_table_2() -> None:
    known = {pair: named("newstest2014", pair) for pair in ("en-de", "en-fr")}
    systems = {pair: {row["name"]: row for row in one.listings[0].rows} for pair, one in known.items() if one}
    assert len(systems["en-de"].keys() | systems["en-fr"].keys()) == 8
    convs2s = systems["en-fr"]["ConvS2S ensemble"]
    assert (convs2s["bleu_paper_way"], convs2s["train_flops_paper"]) == ("41.29", "1.2e+21")
    assert "ByteNet" not in systems["en-fr"]
    assert rows.printed("big", "en-fr") == {"bleu_paper_way": "41.8", "train_flops_paper": "2.3e+19", "params": "213"}
    assert rows.printed("A-h1", "en-de") == {"valid_bleu_paper_way": "24.9", "valid_ppl": "5.29"}


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("    settings:", "    setings:", r"unknown key `rows\.\S+\.setings`; did you mean `settings`"),
        ("      en-de: {subwords", "      en_de: {subwords", r"rows\.\S+\.pairs\.en_de"),
    ],
)
def test_a_typing_error_in_the_table_is_one_sentence(
    right: str, wrong: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(rows.ROWS.read_text().replace(right, wrong, 1))
    monkeypatch.setattr(rows, "ROWS", path)
    monkeypatch.setattr(rows, "table", rows.table.__wrapped__)
    assert re.search(f"rows.yaml: .*{message}", refused("rows"))
