"""Scores against hand-worked cases and against system outputs whose scores are known."""

import json
import math
from functools import partial
from pathlib import Path
from unittest.mock import Mock
from urllib.error import URLError

import pytest
from clones import REAL, needs_real
from command_line import printed, refused, wmt
from refusals import check_refusal
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.ter import TER
from text_lines import write_lines

from nmt import bootstrap
from nmt.evaluation import bleu, known_sets
from nmt.evaluation.known_sets import KnownSet, Listing

REFERENCES = ["Das ist ein gut-gemeinter Rat .", "Er kam nicht ."]
HYPOTHESES = ["Das ist ein gut-gemeinter Tipp .", "Er kam nicht ."]


def by_hand(*precisions: float) -> float:
    return 100 * math.exp(sum(map(math.log, precisions)) / 4)


def test_bleu_and_the_papers_way_by_hand() -> None:
    # 13a leaves the hyphen alone: 6 + 4 tokens, of which 9 match; 6 of 8 bigrams, 4 of 6 trigrams, 2 of 4 4-grams.
    score, signature = bleu.sacrebleu(HYPOTHESES, REFERENCES)
    assert score == pytest.approx(by_hand(9 / 10, 6 / 8, 4 / 6, 2 / 4))
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:")
    # Split, `gut-gemeinter` is three tokens: 11 of 12 match; 8 of 10 bigrams, 6 of 8 trigrams, 4 of 6 4-grams.
    split = pytest.approx(by_hand(11 / 12, 8 / 10, 6 / 8, 4 / 6))
    names, scores = zip(*bleu.paper_way(HYPOTHESES, REFERENCES, "de"), strict=True)
    assert list(names) == ["sacreBLEU, 13a", "Moses tokens", "compounds split at hyphens", "unicode quotes made plain"]
    assert scores == (pytest.approx(score), pytest.approx(score), split, split)
    # Quotes count before the last step.
    *_, before, after = bleu.paper_way(['"Ja", sagte er dann .'], ["\u201eJa\u201c, sagte er dann ."], "de")
    assert before[1] < 80
    assert after[1] == pytest.approx(100)


def test_a_language_and_the_references_are_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, empty = _write(tmp_path, text=HYPOTHESES, empty=[])
    for lang in ("DE", "german", ""):
        assert f"the language is `{lang}`: give the target's ISO 639 code" in refused(
            "bleu", text, text, "--lang", lang
        )
    assert "empty is empty: there is nothing to score" in refused("bleu", text, empty, "--lang", "de")
    assert wmt("bleu", text, "--lang", "de") == 2
    assert "REF is missing" in capsys.readouterr().err


def test_french_is_scored_on_moses_tokens_alone() -> None:
    # 13a: 6 of 7 tokens match, then 5 of 6, 4 of 5, 3 of 4. Moses parts `D'` from `eau`: 7 of 8, then 6 of 7 and so on.
    assert bleu.paper_way(["D'eau de la mer est bleue ."], ["L'eau de la mer est bleue ."], "fr") == [
        ("sacreBLEU, 13a", pytest.approx(by_hand(6 / 7, 5 / 6, 4 / 5, 3 / 4))),
        ("Moses tokens", pytest.approx(by_hand(7 / 8, 6 / 7, 5 / 6, 4 / 5))),
    ]


def test_double_quotes_are_made_plain_and_compounds_split_as_by_perl() -> None:
    quoted = '\u201ca\u201d \u201eb\u201f \u2018c\u2019 \u00abd\u00bb "e"'
    assert bleu.plain_quotes(quoted) == '"a" "b" \u2018c\u2019 \u00abd\u00bb "e"'
    split = "rich ##AT##-##AT## text a - b xx ##AT##-##AT## yy ##AT##-##AT## zz"
    assert bleu.split_compounds("rich-text a - b xx-yy-zz") == split
    # Like Perl's, the expression does not match twice over one letter.
    assert bleu.split_compounds("a-b-c") == "a ##AT##-##AT## b-c"


def test_different_line_counts_are_refused() -> None:
    of_lines, paper_way = partial(bleu.line_statistics, BLEU()), partial(bleu.paper_way, lang="de")
    for function in (bleu.sacrebleu, bleu.chrf, of_lines, paper_way):
        check_refusal(r"^output has 1 lines, set has 2: give one translation for each", function, ["a"], ["a", "b"])
        for texts in (([], []), ("a b", "a c")):
            check_refusal("", function, *texts)
    check_refusal("the language is `zh-CN`: give", bleu.sacrebleu, ["a"], ["a"], "zh-CN")
    assert bleu.sacrebleu(iter(HYPOTHESES), iter(REFERENCES)) == bleu.sacrebleu(HYPOTHESES, REFERENCES)


def _write(folder: Path, **texts: list[str]) -> list[str]:
    return [str(write_lines(folder / name, lines)) for name, lines in texts.items()]


def test_command_line_compares_two_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = KnownSet(name="known", pair="xx-de", title="a known set ☃", lines=2, sha256=known_sets.digest(REFERENCES))
    monkeypatch.setattr(known_sets, "known_sets", lambda: [known, known.model_copy(update={"pair": "xx-fr"})])
    paths = _write(tmp_path, one=HYPOTHESES, two=REFERENCES, reference=REFERENCES)
    first, second = json.loads(printed("bleu", *paths, "--lang", "de", "--json"))
    steps = bleu.paper_way(HYPOTHESES, REFERENCES, "de")
    low, high = bootstrap.interval(bleu.line_statistics(BLEU(), HYPOTHESES, REFERENCES), bleu.score_of(BLEU()))
    score, signature = bleu.sacrebleu(HYPOTHESES, REFERENCES)
    chrf, chrf_signature = bleu.chrf(HYPOTHESES, REFERENCES)
    said = {
        "hypothesis": paths[0], "set": "a known set ☃", "lines": 2, "bleu": score, "bleu_signature": signature,
        "bleu_low": low, "bleu_high": high, "bleu_paper_way": steps[-1][1],
        "paper_way_steps": [{"step": name, "bleu": value} for name, value in steps],
        "chrf": chrf, "chrf_signature": chrf_signature,
    }  # fmt: skip
    assert first == json.loads(json.dumps(said), parse_float=lambda text: round(float(text), 9))
    chinese = _write(tmp_path, chinese=["我爱你们", "好"], right=["我爱你", "好"])
    assert "TER 25.00" in printed("bleu", *chinese, "--lang", "zh", "--ter"), "one of four characters"
    ter = f"  TER {bleu.corpus_score(TER(), HYPOTHESES, REFERENCES)[0]:.2f}\n    nrefs:1|case:lc|tok:tercom"
    assert ter in printed("bleu", *paths[::2], "--lang", "de", "--ter")
    compared = bleu.compare(HYPOTHESES, REFERENCES, REFERENCES, BLEU())
    assert (second["difference"], second["p_value"]) == (round(compared.difference, 9), round(compared.p_value, 9))
    assert second["bleu"] == 100, "not 100.00000000000004"
    *text, last = printed("bleu", *paths, "--lang", "fr").splitlines()
    assert f"  sacreBLEU {score:.2f}, 95% interval {low:.2f} to {high:.2f}" in text
    assert f"    {steps[1][1]:.2f} Moses tokens" in text
    told = f"  against the first: +{compared.difference:.2f} sacreBLEU, p = {compared.p_value:.3f} (paired bootstrap)"
    assert last == told
    paths = _write(tmp_path, one=["a"], reference=["a", "b"])
    sentence = f"bleu: {paths[0]} has 1 lines, {paths[1]} has 2: give one translation for each reference"
    assert refused("bleu", *paths, "--lang", "de") == sentence


CHINESE = (["今天天气很好。", "他走了吗？"], ["今天天气真好。", "他走了没有？"])


def test_the_target_language_chooses_sacrebleus_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `sacrebleu -l en-zh` does; the paper's way is absent where Moses makes no words."""
    expected = BLEU(trg_lang="zh").corpus_score(CHINESE[0], [CHINESE[1]]).score
    assert expected > 20
    paths = _write(tmp_path, hyp=CHINESE[0], ref=CHINESE[1])
    scores = json.loads(printed("bleu", *paths, "--lang", "zho_Hans", "--json"))
    assert (scores["bleu"], "|tok:zh|" in scores["bleu_signature"]) == (round(expected, 9), True)
    assert not {key for key in scores if "paper_way" in key}
    assert "|tok:char|" in printed("bleu", *paths, "--lang", "zh", "--tokenize", "char")
    assert "sacreBLEU has no tokenizer `x`" in refused("bleu", *paths, "--lang", "zh", "--tokenize", "x")
    offline = Mock(side_effect=URLError("away"))
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_spm.Flores200Tokenizer.__init__", offline)
    flores = refused("bleu", *paths, "--lang", "zh", "--tokenize", "flores200")
    assert "the tokenizer `flores200` fetches a file (<urlopen error away>): go online, or name another" in flores
    # Without the segmenter of a language, chrF is the score, and the remedy is told.
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    mecab = refused("bleu", *paths, "--lang", "zh", "--tokenize", "ja-mecab")
    assert "BLEU of `ja-mecab` needs a segmenter: pip install 'wmt-transformer[ja]'" in mecab
    text = printed("bleu", *paths, *paths[1:], "--lang", "ja")
    assert "sacreBLEU" not in text
    assert "+" in text.splitlines()[-1]
    assert json.loads(printed("bleu", *paths, "--lang", "ja", "--json"))["chrf_low"] > 0


@pytest.mark.parametrize("lang", ["th", "km", "lao", "mya_Mymr", "yue_Hant", "wuu"])
def test_languages_without_spaces_that_sacrebleu_cannot_split_are_scored_by_chrf(lang: str) -> None:
    """A line would be one token."""
    scores = bleu.score(*CHINESE, lang)
    assert "bleu" not in scores
    assert scores["chrf_low"] > 0
    check_refusal(f"cannot split `{lang}` into words: set its tokenizer to char or", bleu.sacrebleu, *CHINESE, lang)
    assert "|tok:char|" in bleu.sacrebleu(*CHINESE, lang, "char")[1]


def test_lower_case_is_scored_by_name(tmp_path: Path) -> None:
    paths = _write(tmp_path, hyp=["ein Hund ist hier"], ref=["Ein hund ist hier"])
    lowercased = printed("bleu", *paths, "--lang", "cs", "--lowercase")
    assert "100.00 lower-cased Moses tokens" in lowercased
    assert "|case:lc|eff:no|tok:13a|" in lowercased, "sacreBLEU, too"
    assert "chrF 100.00" in lowercased


def test_multi30ks_measure_is_on_lower_cased_moses_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["Der Hund \u2013 \u201eLUNA\u201c \u2013 rennt."]
    assert bleu.lowercased_tokens(lines, "de_Latn") == ['der hund - " luna " - rennt .']
    paths = _write(tmp_path, hyp=['der HUND - "luna" - rennt.'], ref=lines)
    told = "lower-cased Moses tokens, punctuation normalised 100.00"
    assert told in printed("bleu", *paths, "--lang", "de", "--lowercase")
    assert told not in printed("bleu", *paths, "--lang", "de")
    listing = Listing(columns={bleu.LOWERCASED: ""}, rows=[])
    one = KnownSet(name="one", pair="en-de", lines=1, sha256=known_sets.digest(lines), listings=[listing])
    monkeypatch.setattr(known_sets, "known_sets", lambda: [one])
    assert told in printed("bleu", *paths, "--lang", "de"), "others report the set by it"


@needs_real
def test_multi30ks_references_have_the_tokens_that_others_count() -> None:
    """fairseq prints reflen=12103 on test2016 (README-baseline.md of LividWo/Revisit-MMT)."""
    references = bleu.read_lines(REAL / "multi30k/test2016.de")
    known = known_sets.find(references, "de", "en")
    assert (known.name, bleu.LOWERCASED in known.listings[0].columns) == ("multi30k-test2016", True)
    assert sum(len(line.split()) for line in bleu.lowercased_tokens(references, "de")) == 12103
    french = known_sets.find(bleu.read_lines(REAL / "multi30k/test2016.fr"), "fr", "en")
    assert not any(bleu.LOWERCASED in listing.columns for listing in french.listings), "none was read at its source"


@needs_real
def test_known_scores_of_newstest() -> None:
    hypotheses = bleu.read_lines(REAL / "scored/newstest2013.system.de")
    references = bleu.read_lines(REAL / "newstest/newstest2013.en-de.de")
    assert f"{bleu.sacrebleu(hypotheses, references)[0]:.2f}" == "28.09"
    hypotheses = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.system.de")
    references = bleu.read_lines(REAL / "scored/newstest2014.filtered2737.reference.de")
    steps = bleu.paper_way(hypotheses, references, "de")
    known = known_sets.find(references, "de")
    assert known.title == "newstest2014/filtered, de (sacreBLEU: wmt14)"
    assert [f"{score:.2f}" for _, score in steps] == ["29.82", "29.92", "30.53", "31.62"]
