"""Sets of the literature are known by their text and direction, whatever a corpus calls them."""

import re

import pytest
from clones import REAL, needs_real

from nmt.evaluation import bleu, known_sets
from nmt.evaluation.known_sets import KnownSet, digest, find, identity, named


@needs_real
@pytest.mark.parametrize(
    ("file", "name", "title"),
    [
        ("newstest2014.en-de.de", "newstest2014", "newstest2014/full, de (sacreBLEU: wmt14/full)"),
        ("newstest2014.en-fr.fr", "newstest2014", "newstest2014/full, fr (sacreBLEU: wmt14/full)"),
        ("newstest2013.en-de.de", "newstest2013", "newstest2013, de (sacreBLEU: wmt13)"),
        ("newstest2013.en-fr.fr", "newstest2013", "newstest2013, fr (sacreBLEU: wmt13)"),
    ],
)
def test_sets_are_known_with_no_break_spaces_and_without(file: str, name: str, title: str) -> None:
    original, target = bleu.read_lines(REAL / "newstest" / file), file[-2:]
    for lines in (original, [re.sub(r"\s+", " ", line.strip()) for line in original]):
        known = find(lines, target)
        assert (known.name, known.title, known.lines) == (name, title, len(lines))
    assert find([*original[:-1], f"{original[-1]}!"], target) is None
    assert identity(original, target, "en") == name
    assert identity(original, target, "cs") == digest(original), "Czech to German is another direction"
    assert identity(original, "en", target) == digest(original)


def test_white_space_does_not_decide_which_set_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    one = KnownSet(name="one", pair="en-fr", lines=3, sha256=digest(["708 M£ sur l'exercice", "", "Deux"]))
    monkeypatch.setattr(known_sets, "known_sets", lambda: [one])
    assert find(["708\u00a0M£  sur\tl'exercice\r", "", " Deux\u2009"], "fr") is one
    assert find(["708M£ sur l'exercice", "", "Deux"], "fr") is None
    assert find(["708 M£ sur l'exercice", "Deux"], "fr") is None


def test_a_licensed_treebank_is_known_by_its_lines_and_words() -> None:
    """A name and 2,416 lines of one's own were enough to stand beside Table 4."""
    trees = ["(S (NP (DT a) (NN b)) (. .))"] * 2416
    short = 3 * 2416 - 56684
    assert find(trees, "tree", "en") is None
    longer = [f"(S {'(X y) ' * (-short)}{tree})" if not row else tree for row, tree in enumerate(trees)]
    known = find(longer, "tree", "en")
    assert known is named("wsj23")
    assert find(longer, "de", "en") is None
