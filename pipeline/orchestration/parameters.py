"""Parameters of the flows: Prefect's form offers the rows, corpora and stages as choices and refuses other values.

Prefect stores the choices with a deployment. A new catalog is offered when the flows are deployed again, which
`make serve` does at its start.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from nmt.common.files import read_yaml
from nmt.config import InputError
from pipeline.common import paths
from pipeline.config import graph, resolution, rows
from pipeline.config.scorer import scorer_of

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
        by = scorer_of(pair)
        self.rows = {name: row.about for name, row in rows.table().rows.items() if scorer_of(row.pair) is by}
        self.corpora = _corpora(pair)
        self.stages = list(graph.stages(ROOT / paths.DVC_YAML))
        given: dict[str, Any] = {}
        with suppress(InputError):  # The run itself reports an invalid params.yaml.
            given = resolution.read_params(ROOT / paths.PARAMS)
        self.row, self.corpus = (
            _default(str(given.get(key)), choices) for key, choices in (("row", self.rows), ("corpus", self.corpora))
        )
        seed = given.get("seed")
        self.seed = seed if isinstance(seed, int) else 1

    @property
    def types(self) -> dict[str, Any]:
        """Return the types of the parameters, from which Prefect makes the form and checks values."""
        return {
            "row": _choice(self.rows),
            "corpus": _choice(self.corpora),
            "seed": Annotated[int, Field(ge=0)],
            "overrides": dict[str, Any],
            "target": _choice(self.stages),
            "force": bool,
        }

    def docstring(self, about: str) -> str:
        """Return the docstring of a flow that does what `about` says."""
        described = ("; ".join(f"{name}: {what}" for name, what in each.items()) for each in (self.rows, self.corpora))
        listed, corpora = described
        return DESCRIPTION.format(about=about, rows=listed, corpora=corpora, example=EXAMPLE)


def _default(given: str, choices: dict[str, str]) -> str:
    """Return what params.yaml gives if it is a choice of the pair, else the one for the embedded sample."""
    return given if given in choices else next((name for name in choices if "sample" in name), next(iter(choices)))


def _choice(names: Any) -> Any:
    return cast(Any, Literal)[tuple(names)]


def _corpora(pair: str) -> dict[str, str]:
    """Return the catalogs that have texts of a pair, each with its description."""
    found = {path.stem: _content(path, ()) for path in sorted((ROOT / paths.CATALOGS).glob("*.yaml"))}
    return {name: str(content.get("description", "")) for name, content in found.items() if pair in content["pairs"]}


def _content(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """Return a catalog's content; its `pairs` include those of the catalogs that it extends.

    A file that cannot be read, and a catalog that extends itself, add no pairs. `extending`: the catalogs that extend
    this one, directly or through others.
    """
    content: Any = None
    with suppress(OSError, InputError):
        content = read_yaml(path)
    if not isinstance(content, dict) or path in extending:
        return {"pairs": []}
    base = path.with_name(f"{content['extends']}.yaml") if "extends" in content else None
    inherited = _content(base, (*extending, path))["pairs"] if base else []
    own = content.get("pairs")
    return {**content, "pairs": [*inherited, *(own if isinstance(own, dict) else ())]}
