"""The stage graph of dvc.yaml: who makes what, and what `meta:` says about a stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

DVC_YAML = Path("dvc.yaml")


@dataclass(frozen=True)
class Stage:
    """One stage, as dvc.yaml declares it."""

    name: str
    deps: list[str]
    params: dict[str, list[str]]
    """File -> the keys that the stage reads of it."""
    outs: list[str]
    meta: dict[str, Any] = field(default_factory=dict)

    @property
    def uses_gpu(self) -> bool:
        """Whether it runs on a GPU where there is one."""
        return bool(self.meta.get("gpu", False))

    @property
    def code(self) -> list[Path]:
        """The modules that it consists of: its code deps, folders opened."""
        return self.code_in(Path())

    def code_in(self, repository: Path) -> list[Path]:
        """The same for another repository, relative to it."""
        found: set[Path] = set()
        for dep in self.deps:
            path = repository / dep
            if dep.endswith(".py"):
                found.add(path)
            elif dep.split("/")[0] in {"nmt", "pipeline"} and path.is_dir():
                found.update(path.rglob("*.py"))
        return sorted(path.relative_to(repository) for path in found)


def stages(path: Path = DVC_YAML) -> dict[str, Stage]:
    """Every stage by its name, in dvc.yaml's order; none where there is no such file."""
    content = yaml.safe_load(path.read_bytes()) if path.exists() else None
    declared: Mapping[str, Any] = (content or {}).get("stages") or {}
    return {name: _stage(name, entry) for name, entry in declared.items()}


def made_by(path: str, graph: Mapping[str, Stage]) -> str | None:
    """The stage that makes `path`, or the folder it stands in."""
    for name, stage in graph.items():
        if any(path == out or path.startswith(f"{out}/") for out in stage.outs):
            return name
    return None


def upstream(name: str, graph: Mapping[str, Stage]) -> list[str]:
    """Return `name` and every stage that it rests on, in dvc.yaml's order; empty where the graph has no such stage."""
    found, waiting = set[str](), [name]
    while waiting:
        if (each := waiting.pop()) in graph and each not in found:
            found.add(each)
            made = (made_by(path, graph) for path in (*graph[each].deps, *graph[each].params))
            waiting += [other for other in made if other is not None]
    return [name for name in graph if name in found]


def _stage(name: str, entry: Mapping[str, Any]) -> Stage:
    params: dict[str, list[str]] = {}
    for item in entry.get("params") or ():
        if isinstance(item, Mapping):
            for file, keys in item.items():
                params.setdefault(str(file), []).extend(map(str, keys or ()))
        else:
            params.setdefault("params.yaml", []).append(str(item))
    outs = [path for kind in ("outs", "metrics", "plots") for path in paths(entry.get(kind))]
    return Stage(name, paths(entry.get("deps")), params, outs, dict(entry.get("meta") or {}))


def paths(entries: Iterable[Any] | None) -> list[str]:
    """Paths of deps or outs: each a string, or a mapping of one path to its options."""
    return [next(iter(entry)) if isinstance(entry, Mapping) else str(entry) for entry in entries or ()]
