"""Both sides of a pair between raw lines and ids: text with one vocabulary, trees with a closed one."""

from collections import Counter
from pathlib import Path

import pytest
from refusals import check_refusal

from nmt import codec
from nmt.ids import UNK
from nmt.parsing.trees import LINEARISATIONS, Linearisation
from nmt.text.settings import SubwordSettings, TokenizerSettings

TREE = "(S (NP (DT The) (NN dog)) (VP (VBZ barks)) (. .))"
WORDS = "The dog barks ."
CLOSED = SubwordSettings(kind="bpe", merges=5, vocabulary=None, target="closed", multiple_of=64)


def settings(tokenizer: str) -> TokenizerSettings:
    options = {"tokenizer": tokenizer, "normalize_punctuation": False, "aggressive_hyphens": False}
    return TokenizerSettings.model_validate(options)


@pytest.mark.parametrize("name", LINEARISATIONS)
def test_a_tree_comes_back_with_its_words(name: Linearisation) -> None:
    source, target = codec.tokenizers("en", "tree", settings(name))
    assert source.tokenize("  The (dog) barks.") == "The -LRB-dog-RRB- barks."
    tokens = target.tokenize(TREE)
    expected = TREE if name == "tensor2tensor" else "(S (NP (XX The) (XX dog)) (VP (XX barks)) (XX .))"
    repairs: Counter[str] = Counter()
    assert target.detokenize(tokens, WORDS, repairs=repairs) == expected
    assert not repairs
    # A no-break space is a character of a word.
    tree = "(S (XX 10\u00a0000) (XX men))"
    assert source.tokenize("10\u00a0000 \t men\r") == "10\u00a0000 men"
    assert target.detokenize(target.tokenize(tree), "10\u00a0000 men") == tree


def test_repairs_are_counted_and_missing_brackets_found_by_the_symbols_of_the_vocabulary() -> None:
    repairs: Counter[str] = Counter()
    _, target = codec.tokenizers("en", "tree", settings("vinyals"))
    assert target.detokenize("(S XX XX", "a b", repairs=repairs) == "(S (XX a) (XX b))"
    assert target.detokenize("", "", repairs=repairs) == ""
    tree = "(S (NP (DT the) (NN man)) (VP (VBZ sees) (NP (DT a) (NN dog))))"
    known = ["S", "/S", "NP", "/NP", "VP", "/VP", "DT", "NN", "VBZ"]
    _, target = codec.tokenizers("en", "tree", settings("tensor2tensor"), known)
    assert target.detokenize("S NP DT NN /NP VP VBZ NP DT NN /NP", "the man sees a dog", repairs=repairs) == tree
    assert repairs == {"closing bracket missing at the end": 3}


def test_a_closed_vocabulary_has_every_symbol_and_comes_back_or_is_refused(tmp_path: Path) -> None:
    learned = codec.learn({"the": 3, "dog": 2}, {"(S": 2, ")S": 2, "XX": 9}, CLOSED)
    codec.save(tmp_path / "subwords", *learned)
    source, target = codec.load(tmp_path / "subwords")
    assert (target.used_rows, target.size) == (7, 64)
    line = "(S XX XX )S"
    assert target.decode(target.encode(line)) == line
    assert target.encode("(NEW XX") == [UNK, target.encode("XX")[0]]
    assert target.symbols(target.encode("XX")) == ["XX"]
    assert source.encode("dog")
    assert source.used_rows != target.used_rows
    path = tmp_path / "subwords/target/vocabulary.txt"
    path.write_text("XX\n", encoding="utf-8")
    check_refusal("is damaged: learn the subwords again", codec.load, tmp_path / "subwords")
    path.unlink()
    check_refusal("holds no symbols", codec.load, tmp_path / "subwords")
    check_refusal("", codec.learn, {"the": 3}, {}, CLOSED)
