"""The stage graph of dvc.yaml."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from nmt.common.files import read_yaml
from pipeline.config.paths import DVC_YAML


class Stage(NamedTuple):
    name: str
    deps: list[str]
    params: list[str]  # the files, but params.yaml, whose keys are its params
    outs: list[str]
    meta: dict[str, Any]


def stages(path: Path = DVC_YAML) -> dict[str, Stage]:
    """Return every stage by its name, in dvc.yaml's order; none where the file does not exist."""
    content = read_yaml(path) if path.exists() else None
    by_name = {}
    for name, entry in ((content or {}).get("stages") or {}).items():
        params = [str(file) for item in entry.get("params") or () if isinstance(item, Mapping) for file in item]
        outs = [path for key in ("outs", "metrics", "plots") for path in _paths(entry.get(key))]
        by_name[name] = Stage(name, _paths(entry.get("deps")), params, outs, dict(entry.get("meta") or {}))
    return by_name


def made_by(path: str, graph: Mapping[str, Stage]) -> str | None:
    makers = (name for name, stage in graph.items() for out in stage.outs if path == out or path.startswith(f"{out}/"))
    return next(makers, None)


def upstream(name: str, graph: Mapping[str, Stage]) -> list[str]:
    """Return `name` and every stage that it depends on, in dvc.yaml's order; none if the graph lacks it."""
    needed, waiting = set[str](), [name]
    while waiting:
        if (stage := waiting.pop()) in graph and stage not in needed:
            needed.add(stage)
            made = (made_by(path, graph) for path in (*graph[stage].deps, *graph[stage].params))
            waiting += [other for other in made if other is not None]
    return [name for name in graph if name in needed]


def _paths(entries: Iterable[Any] | None) -> list[str]:
    """Return the paths of deps or outs: each entry is a string, or a mapping of one path to its options."""
    return [next(iter(entry)) if isinstance(entry, Mapping) else str(entry) for entry in entries or ()]
