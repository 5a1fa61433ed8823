"""The check that a command is run in the repository's root."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec

from nmt.config import InputError
from pipeline.common.paths import CATALOGS, DVC_YAML

Parameters = ParamSpec("Parameters")


def in_repository(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Return a command that raises InputError outside the root, where it would find nothing, or write."""

    @functools.wraps(command)
    def checked(*arguments: Parameters.args, **options: Parameters.kwargs) -> None:
        for path in (DVC_YAML, CATALOGS):
            if not path.exists():
                raise InputError(f"{path} is not in {Path.cwd()}: run this in the repository's root")
        command(*arguments, **options)

    return checked
