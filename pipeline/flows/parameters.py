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
DESCRIPTION = f"""

Args:
    row: The row of the paper's tables, or a smaller model: `wmt rows` describes them.
    corpus: The catalog of data/catalog: `wmt catalog list` describes them.
    seed: The seed of weights, order of sentences and dropout.
    overrides: Single values over those of the row and of params.yaml, for example {EXAMPLE}.
    target: The last stage to run.
    force: Run stages although nothing that they depend on has changed.
"""
"""End of a flow's docstring: Prefect's form shows what it says of the parameters."""


def form(pair: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the types of a flow's parameters, from which Prefect makes the form and checks values, and the defaults.

    Defaults are the values of params.yaml where they are choices of the pair, else those of the embedded sample.
    """
    given: dict[str, Any] = {}
    with chdir(ROOT):
        choices = {
            "row": [name for name, row in rows.table().rows.items() if task_of(row.pair) is task_of(pair)],
            "corpus": [name for name in catalogs.names() if pair in _pairs(name)],
            "target": list(graph.stages()),
        }
        with suppress(InputError):  # The run itself reports an invalid params.yaml.
            given = resolution.read_params()
    types = {key: cast(Any, Literal)[tuple(names)] for key, names in choices.items()}
    types["seed"] = Annotated[int, Field(ge=0)]
    types["overrides"] = cast(Any, dict)[cast(Any, Literal)[tuple(resolution.OVERRIDABLE)], dict[str, Any]]
    defaults = {"seed": given["seed"] if isinstance(given.get("seed"), int) else 1, "target": choices["target"][-1]}
    for key in ("row", "corpus"):
        samples = (name for name in choices[key] if "sample" in name)
        defaults[key] = given[key] if given.get(key) in choices[key] else next(samples, choices[key][0])
    return types, defaults


def _pairs(catalog: str) -> tuple[str, ...]:
    """Return the pairs of a catalog; none if it cannot be read."""
    with suppress(InputError):
        return tuple(catalogs.load(catalog).pairs)
    return ()
