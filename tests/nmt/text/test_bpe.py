"""Merge operations: learned and applied as subword-nmt does, to the byte."""

import io
import random
import time
from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from subword_nmt.apply_bpe import encode
from subword_nmt.learn_bpe import learn_bpe

from nmt.text.bpe import INSIDE, Merges, Pair, learn_merges


def theirs(counts: Mapping[str, int], merges: int) -> list[Pair]:
    output = io.StringIO()
    learn_bpe((f"{word} {count}" for word, count in sorted(counts.items())), output, merges, is_dict=True)
    lines = output.getvalue().removesuffix("\n").split("\n")[1:]
    return [(first, second) for first, second in (line.split(" ") for line in lines)]


def syllables(types: int, seed: int) -> dict[str, int]:
    """Words that share parts, their counts by Zipf's law."""
    chance = random.Random(seed)
    parts = ["".join(chance.choices("aeioubdgklmnprst-", k=chance.randint(1, 4))) for _ in range(200)]
    words = dict.fromkeys("".join(chance.choices(parts, k=chance.randint(1, 4))) for _ in range(types))
    return {word: 1 + 20_000 // rank for rank, word in enumerate(words, start=1)}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_learns_what_subword_nmt_learns(seed: int) -> None:
    """Enough merges for subword-nmt to set pairs aside and looked at again, and, with seed 2, to the last pair."""
    counts, merges = (syllables(1500, seed), 1000) if seed == 1 else (syllables(500, seed), 20_000)
    expected = theirs(counts, merges)
    assert len(expected) == 1000 if seed == 1 else 300 < len(expected) < 20_000
    assert learn_merges(counts, merges) == expected


WORD = st.text(st.sampled_from("aab-<>/wé"), min_size=1, max_size=12)


@given(
    counts=st.dictionaries(WORD.filter(lambda word: "</w>" not in word), st.integers(1, 30), min_size=1, max_size=20),
    merges=st.integers(1, 40),
)
@example(counts={"aaaa": 3, "aaaaa": 2, "aaabaaab": 5, "-----": 7}, merges=40)
@example(counts={"a": 3}, merges=4)
def test_symbols_that_repeat_are_counted_as_subword_nmt_counts_them(counts: dict[str, int], merges: int) -> None:
    expected = theirs(counts, merges) if any(len(word) > 1 for word in counts) else []
    assert learn_merges(counts, merges) == expected


@given(
    counts=st.dictionaries(WORD, st.integers(1, 9), min_size=1, max_size=20),
    order=st.randoms(),
    words=st.lists(st.text(st.sampled_from("aab-<>/wé"), min_size=1, max_size=50), min_size=1),
)
def test_splits_words_as_subword_nmt_does(counts: dict[str, int], order: random.Random, words: list[str]) -> None:
    """Also in an order in which a merge makes pairs that come before it."""
    pairs = learn_merges(counts, 30)
    order.shuffle(pairs)
    ranks = {pair: rank for rank, pair in reversed(list(enumerate(pairs)))}
    parts = {first + second: (first, second) for first, second in ranks}
    merges = Merges(pairs)
    # What text ends up with, and a part of it: the rest is taken apart.
    pieces = Counter(piece for word in counts for piece in merges.split(word))
    known = dict.fromkeys(sorted(pieces)[::2], 0)
    for word in [*words, *counts]:
        plain = tuple(encode(word, ranks, parts, None, INSIDE, (0, 2), {}))
        if "".join(plain) != word:
            continue
        assert tuple(piece.removesuffix(INSIDE) for piece in merges.split(word)) == plain
        if len(word) > 1 and known:
            apart = encode(word, ranks, parts, known, INSIDE, (0, 2), {})
            taken = merges.split_unknown(merges.split(word), known)
            assert [piece.removesuffix(INSIDE) for piece in taken] == list(apart)


def test_a_long_word_is_split_in_parts() -> None:
    merges, word = Merges([("a", "b"), ("ab", "ab"), ("c", "ab")]), "abcab" * 20_000
    start = time.process_time()
    assert merges.split(word)[:2] == ["ab\n", "c\n"]
    assert time.process_time() - start < 5


def test_a_word_may_hold_the_mark_of_a_words_end() -> None:
    merges = Merges(learn_merges({"a</w>": 9, "ba</w>": 9}, 20))
    assert [merges.split(word) for word in ("a</w>", "x", "aa")] == [["a</w>"], ["x"], ["a\n", "a"]]


def test_a_pair_that_was_learned_twice_has_its_first_rank() -> None:
    merges = Merges([("a", "b"), ("ab", "c</w>"), ("b", "c</w>"), ("a", "b")])
    assert merges.split("ababc") == ["ab\n", "abc"]
