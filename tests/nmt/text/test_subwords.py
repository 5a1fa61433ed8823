"""BPE and word pieces: round trips, sizes, the folder, and damage to it."""

import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from refusals import check_refusal

from nmt.text.settings import SubwordSettings
from nmt.text.subwords import BOS, EOS, PAD, SPECIALS, UNK, Subwords, learn, load

TEXT = [
    "the lower house is newer and wider than the lowest house",
    "das Haus ist neuer und weiter als das niedrigste Haus",
    "low lower lowest new newer newest wide wider widest house houses",
    "niedrig niedriger niedrigste neu neuer neueste weit weiter weiteste Haus Häuser",
    "a@@ b @@ @ @@@@ x@ <s> </s> <unk> <pad> <pad:1> w</w> </w> a@@ b <pad:1> w</w>",
]
COUNTS = Counter(word for line in TEXT for word in line.split(" "))
HARD = st.text(st.sampled_from("ab \u2581\u2585\u2047\x00\r\u2028\u00a0\ufeff<s>0x41\U00100000"), max_size=12)
ANY = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=16)


def bpe(merges: int | None = None, vocabulary: int | None = None, multiple_of: int = 8) -> SubwordSettings:
    return SubwordSettings(kind="bpe", merges=merges, vocabulary=vocabulary, multiple_of=multiple_of)


def pieces(vocabulary: int = 330) -> SubwordSettings:
    return SubwordSettings(kind="wordpieces", merges=None, vocabulary=vocabulary, multiple_of=64)


@pytest.fixture(scope="module")
def byte_pairs() -> Subwords:
    return learn(COUNTS, bpe(merges=60))


@pytest.fixture(scope="module")
def word_pieces() -> Subwords:
    return learn(COUNTS, pieces())


@pytest.fixture(params=["byte_pairs", "word_pieces"])
def subwords(request: pytest.FixtureRequest) -> Subwords:
    return request.getfixturevalue(request.param)


def test_specials_and_padding(subwords: Subwords) -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert subwords.symbols(range(4)) == list(SPECIALS)
    assert subwords.size % subwords.settings.multiple_of == 0
    assert 0 < subwords.size - subwords.used_rows < subwords.settings.multiple_of
    padding = subwords.size - subwords.used_rows
    assert subwords.symbols(range(subwords.used_rows, subwords.size)) == [f"<pad:{n + 1}>" for n in range(padding)]
    ids = subwords.encode(TEXT[0])
    around = [BOS, *ids[:3], PAD, UNK, subwords.used_rows, *ids[3:], EOS, subwords.size - 1]
    assert subwords.decode(around) == TEXT[0]


@example(words=[*COUNTS])  # Some look like symbols of ours or of subword-nmt's.
@given(words=st.lists(st.text(st.sampled_from(sorted(set("".join(COUNTS)))), min_size=1)))
def test_byte_pairs_give_back_any_line_of_known_characters(byte_pairs: Subwords, words: list[str]) -> None:
    line = " ".join(words)
    ids = byte_pairs.encode(line)
    assert {*ids} <= {*range(len(SPECIALS), byte_pairs.used_rows)}
    assert byte_pairs.decode(ids) == line


@example(line=" ".join(COUNTS))
@given(line=ANY | HARD)
def test_word_pieces_give_back_any_line(word_pieces: Subwords, line: str) -> None:
    ids = word_pieces.encode(line)
    assert {*ids} <= {*range(len(SPECIALS), word_pieces.used_rows)}
    assert word_pieces.decode(ids) == line.replace("\u2581", " "), "sentencepiece's own symbol for a space"


def test_unseen_characters_are_unknown_or_bytes(byte_pairs: Subwords, word_pieces: Subwords) -> None:
    assert byte_pairs.encode("☃") == [UNK]
    assert byte_pairs.symbols(byte_pairs.encode("lo☃"))[-1] == "<unk>"
    assert word_pieces.symbols(word_pieces.encode("☃"))[-3:] == ["<0xE2>", "<0x98>", "<0x83>"]


def test_pieces_that_training_never_shows_are_taken_apart() -> None:
    """Every merge's parts are used up here: only `aab` and single characters have rows."""
    made = learn({"aab": 9}, bpe(merges=10))
    assert made.symbols(range(4, made.used_rows)) == ["aab", "a", "a@@", "b", "b@@"]
    assert made.symbols(made.encode("aa aab aac")) == ["a@@", "a", "aab", "a@@", "a@@", "<unk>"]


@pytest.mark.parametrize("largest", [150, 300, 500])
def test_vocabulary_size_is_met_from_below(largest: int) -> None:
    chance = random.Random(1)
    syllables = ["".join(chance.choices("aeioubdgklmnprst", k=chance.randint(1, 4))) for _ in range(300)]
    counts = {"".join(chance.choices(syllables, k=3)): 2 + 1000 // rank for rank in range(1, 1000)}
    made = learn(counts, bpe(vocabulary=largest, multiple_of=1))
    assert made.size == made.used_rows
    assert largest - (largest - len(SPECIALS)) // 200 <= made.used_rows <= largest


def test_a_small_text_gives_fewer_subwords_than_asked_for() -> None:
    made = learn({"abab": 3, "ab": 2}, bpe(vocabulary=5000))
    assert (made.used_rows, made.size) == (10, 16)
    assert learn({"abab": 3, "ab": 2}, pieces(5000)).used_rows < 300


@pytest.mark.parametrize("kind", [bpe(merges=40), bpe(vocabulary=140), pieces()])
def test_learning_does_not_depend_on_the_order_of_counts(kind: SubwordSettings, tmp_path: Path) -> None:
    folders = tmp_path / "one", tmp_path / "two"
    learn(COUNTS, kind).save(folders[0])
    learn(dict(reversed(COUNTS.items())), kind).save(folders[1])
    for path in folders[0].iterdir():
        assert path.read_bytes() == (folders[1] / path.name).read_bytes()


@pytest.mark.parametrize(
    ("counts", "settings", "message"),
    [
        (COUNTS, bpe(vocabulary=50), r"subwords.vocabulary is 50, but .* need \d+ rows: raise it at least to that$"),
        ({"ab": 5}, bpe(vocabulary=7), "has 2 different characters, which need 8 rows"),
        (COUNTS, pieces(100), r"from \d+ different words \([^\]]*\): change subwords.vocabulary, or give more text$"),
        ({}, bpe(merges=3), r"^the training text has no words to learn .*: give a corpus that has some$"),
    ],
)
def test_too_small_a_size_or_text_is_refused(counts: dict[str, int], settings: SubwordSettings, message: str) -> None:
    check_refusal(message, learn, counts, settings)


def test_folder_comes_back(subwords: Subwords, tmp_path: Path) -> None:
    subwords.save(tmp_path / "subwords")
    files = {"bpe": {"codes.bpe", "vocabulary.txt"}, "wordpieces": {"wordpieces.model"}}[subwords.settings.kind]
    assert {path.name for path in (tmp_path / "subwords").iterdir()} == {"subwords.yaml"} | files
    loaded = load(tmp_path / "subwords")
    assert (loaded.size, loaded.used_rows, loaded.settings) == (subwords.size, subwords.used_rows, subwords.settings)
    rows = range(subwords.size)
    assert loaded.symbols(rows) == subwords.symbols(rows)
    assert [loaded.encode(line) for line in TEXT] == [subwords.encode(line) for line in TEXT]


def test_the_folder_by_hand(tmp_path: Path) -> None:
    made = learn({"ab": 5, "b": 7, "abc": 2}, bpe(merges=2, multiple_of=4))
    assert made.encode(" ab  abc ") == [5, 6, 7]
    made.save(tmp_path / "subwords")
    assert (tmp_path / "subwords/codes.bpe").read_bytes() == b"#version: 0.2\na b</w>\nb c</w>\n"
    rows = b"<pad>\n<s>\n</s>\n<unk>\nb\nab\na@@\nbc\na\nb@@\nc\nc@@\n"
    assert (tmp_path / "subwords/vocabulary.txt").read_bytes() == rows
    assert (tmp_path / "subwords/subwords.yaml").read_text(encoding="utf-8") == (
        "kind: bpe\nsize: 12\nunpadded: 12\nsettings:\n  kind: bpe\n  merges: 2\n  vocabulary: null\n  multiple_of: 4\n"
    )


@pytest.mark.parametrize(
    ("file", "old", "new", "reason"),
    [
        ("codes.bpe", "0.2", "0.1", "codes.bpe is not `#version: 0.2` and then two symbols per line"),
        ("codes.bpe", "b c</w>\n", "b \n", "two symbols per line"),
        ("codes.bpe", "a b</w>\n", "", "no merge in codes.bpe makes the row `ab`"),
        ("vocabulary.txt", "<pad>\n<s>", "<s>\n<pad>", "its rows do not start with <pad>, <s>, </s>, <unk>"),
        ("vocabulary.txt", "c@@\n", "c@@\n<pad:1>\n", "its files hold 13 rows, subwords.yaml says 12, with padding 12"),
        ("subwords.yaml", "size: 12", "size: 16", "its files hold 12 rows, subwords.yaml says 12, with padding 16"),
        ("subwords.yaml", "size", "length", "'size'"),
    ],
)
def test_a_folder_changed_by_hand_is_refused(tmp_path: Path, file: str, old: str, new: str, reason: str) -> None:
    folder = tmp_path / "subwords"
    learn({"ab": 5, "b": 7, "abc": 2}, bpe(merges=2, multiple_of=4)).save(folder)
    content = (folder / file).read_text(encoding="utf-8")
    assert old in content
    (folder / file).write_text(content.replace(old, new, 1), encoding="utf-8")
    expected = rf"holds no usable subwords \(.*{re.escape(reason)}.*\): learn the subwords again"
    check_refusal(expected, load, folder)


def test_bytes_that_make_no_text_leave_a_line_one_line(word_pieces: Subwords) -> None:
    names = word_pieces.symbols(range(word_pieces.used_rows))
    line_end, half = names.index("<0x0A>"), names.index("<0xE2>")
    assert word_pieces.decode([line_end, *word_pieces.encode("a"), line_end]) == "  a "
    assert word_pieces.decode([half]) == "\ufffd"


def test_word_pieces_follow_the_counts_of_words(capfd: pytest.CaptureFixture[str]) -> None:
    """And counts are no part of the text: no piece holds a digit or a tab. Learning prints nothing."""
    counts = {"xyxyxy": 5000, "ababab": 3, "cdcdcd": 2, "efefef": 1}
    pieces = learn(counts, SubwordSettings(kind="wordpieces", merges=None, vocabulary=275, multiple_of=1))
    learned = [piece for piece in pieces.symbols(range(pieces.size)) if len(piece) > 1 and "<" not in piece]
    assert "xyxyxy" in "".join(learned)
    assert not any(set(piece) & set("0123456789\t") for piece in learned)
    assert capfd.readouterr() == ("", "")


def test_a_users_symbols_and_digits_stay_as_set(tmp_path: Path) -> None:
    own = {"user_defined_symbols": ("<2de>", "x.y*"), "split_digits": True, "character_coverage": 0.98}
    settings = SubwordSettings(kind="wordpieces", merges=None, vocabulary=400, multiple_of=8, **own)
    made = learn(Counter({"<2de>": 99, "a<2de>x.y*": 9, "year2026": 50, "ab": 3000, "ç": 1}), settings)
    made.save(tmp_path / "subwords")
    made = load(tmp_path / "subwords")
    assert made.settings == settings
    line = "<2de> year2026 x.y*ç"
    symbols = made.symbols(made.encode(line))
    assert symbols[:2] == ["\u2581", "<2de>"]
    assert {"x.y*", "<0xC3>"} < set(symbols)
    assert [symbol for symbol in symbols if symbol.isdigit()] == list("2026")
    assert made.decode(made.encode(line)) == line
    plain = learn({"ab": 9, "2026": 9}, pieces(275))
    assert not {"character_coverage", "split_digits", "user_defined_symbols"} & plain.settings.model_dump().keys()
    assert "2026" in "".join(plain.symbols(plain.encode("2026")))


def test_words_longer_than_sentencepiece_takes_are_learnt_from_in_parts() -> None:
    made = learn({"漢字" * 3000: 1, "a" * 4000: 1}, pieces(275))
    assert {"漢字", "aa"} < set(made.symbols(range(made.used_rows)))
    # The time of learning merges grows with the square of a word's length.
    long, longer = "ab漢" * 838, "zy" * 3000
    whole = learn({long: 1, longer: 3}, bpe(merges=20))
    parts = learn({long: 1, "zy" * 524: 15, "zy" * 380: 3}, bpe(merges=20))
    assert whole.symbols(range(whole.size)) == parts.symbols(range(parts.size))


def test_word_pieces_settings_are_refused_with_bpe() -> None:
    with pytest.raises(ValueError, match="split_digits is a setting of word pieces"):
        SubwordSettings(kind="bpe", merges=3, vocabulary=None, multiple_of=8, split_digits=True)


def test_damaged_folders_are_refused(subwords: Subwords, tmp_path: Path) -> None:
    check_refusal("nowhere holds no usable subwords", load, tmp_path / "nowhere")
    subwords.save(tmp_path / "whole")
    for path in (tmp_path / "whole").iterdir():
        content = path.read_bytes()
        path.unlink()
        check_refusal("", load, tmp_path / "whole")
        # Codes that end with two symbols are valid.
        half = content.rsplit(b" ", 1)[0] if path.name == "codes.bpe" else content[: len(content) // 2]
        for damaged in (b"", half, b"\xff\x00" * 99):
            path.write_bytes(damaged)
            check_refusal("whole holds no usable subwords", load, tmp_path / "whole")
        path.write_bytes(content)
