"""Parameters of the flows: Prefect's form offers the rows, corpora and stages as choices and refuses other values.

Prefect stores the choices with a deployment. A new catalog is offered when the flows are deployed again, which
`make serve` does at its start.
"""

from __future__ import annotations

from contextlib import chdir, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from nmt.config import InputError
from pipeline.config import catalogs, graph, resolution, rows
from pipeline.config.tasks import task_of

ROOT = Path(__file__).resolve().parents[2]
"""The repository whose copies the runs work in."""
EXAMPLE = '{"training": {"updates": 200, "checkpoint_every": 10}}'
"""Overrides for a short training of any row: it writes at least as many checkpoints as the row averages."""
DESCRIPTION = """{about}

Args:
    row: The row of the paper's tables, or a smaller model. {rows}.
    corpus: The catalog of data/catalog. {corpora}.
    seed: The seed of weights, order of sentences and dropout.
    overrides: Single values over those of the row and of params.yaml, for example {example}.
    target: The last stage to run.
    force: Run stages although nothing that they depend on has changed.
"""
"""Docstring of a flow: Prefect's form shows what it says of the parameters."""


class Parameters:
    """Choices, defaults and descriptions of the parameters of a pair's flow."""

    def __init__(self, pair: str) -> None:
        by = task_of(pair)
        self.rows = {name: row.about for name, row in rows.table().rows.items() if task_of(row.pair) is by}
        self.corpora: dict[str, str] = {}
        given: dict[str, Any] = {}
        with chdir(ROOT):
            self.stages = list(graph.stages())
            for name in catalogs.names():
                with suppress(InputError):  # A catalog that cannot be read offers no pairs.
                    if pair in (catalog := catalogs.load(name)).pairs:
                        self.corpora[name] = catalog.description
            with suppress(InputError):  # The run itself reports an invalid params.yaml.
                given = resolution.read_params()
        self.row, self.corpus = (
            _default(str(given.get(key)), choices) for key, choices in (("row", self.rows), ("corpus", self.corpora))
        )
        seed = given.get("seed")
        self.seed = seed if isinstance(seed, int) else 1

    @property
    def types(self) -> dict[str, Any]:
        """The types of the parameters, from which Prefect makes the form and checks values."""
        choices = (self.rows, self.corpora, self.stages, resolution.OVERRIDABLE)
        row, corpus, target, section = (cast(Any, Literal)[tuple(names)] for names in choices)
        overrides, seed = cast(Any, dict)[section, dict[str, Any]], Annotated[int, Field(ge=0)]
        return {"row": row, "corpus": corpus, "seed": seed, "overrides": overrides, "target": target}

    def docstring(self, about: str) -> str:
        """Return the docstring of a flow that does what `about` says."""
        listed, corpora = ("; ".join(map(": ".join, each.items())) for each in (self.rows, self.corpora))
        return DESCRIPTION.format(about=about, rows=listed, corpora=corpora, example=EXAMPLE)


def _default(given: str, choices: dict[str, str]) -> str:
    """Return what params.yaml gives if it is a choice of the pair, else the one for the embedded sample."""
    return given if given in choices else next((name for name in choices if "sample" in name), next(iter(choices)))
