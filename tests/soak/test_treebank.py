"""Every tree of the CRAFT treebank comes back from both linearisations."""

from itertools import chain

import pytest

from tests.soak.treebank import check_round_trips, craft


@pytest.mark.timeout(1800)
def test_every_tree_of_craft_comes_back() -> None:
    count, removed = check_round_trips(chain(craft("train"), craft("dev")))
    assert count == 21_731
    assert removed == {"function tags": 65_604, "traces": 26_292, "constituents of traces alone": 26_202}
