"""Prefect's startup plugin: short names of deployments, and the login of the server that `make serve` started.

Prefect names a deployment `<flow>/<deployment>`. Here both names are equal, and `prefect deployment run wmt-en-de` is
enough.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prefect.plugins import HookContext, SetupResult, register_hook

from pipeline.orchestration import services

COMMANDS = ("run", "inspect", "delete", "schedule")
"""Commands of `prefect deployment` that take a deployment's name."""
FLAGS = ("--watch", "--all", "--active", "--replace", "--day_or", "--accept-yes", "-y", "--prompt")
"""Their options, and Prefect's global ones, that take no value; each also exists with `--no-` before its name."""
NAMES = ("--name", "--deployment-name", "--deployment_name")
"""Options whose value is a deployment's name."""


def long_name(arguments: list[str]) -> list[str]:
    """Return Prefect's command line with the short name of a deployment replaced by the long one."""
    # Indices of the arguments that are neither an option nor an option's value; the first argument is the program.
    words = [index for index in range(1, len(arguments)) if not _belongs_to_option(arguments, index)]
    command = [arguments[index] for index in words[:2]]
    if len(command) == 2 and command[0] == "deployment" and command[1] in COMMANDS:
        for index in words[2:]:
            name = arguments[index]
            if name.startswith(("wmt-", "parse-")) and "/" not in name:
                return [*arguments[:index], f"{name}/{name}", *arguments[index + 1 :]]
    return arguments


def _belongs_to_option(arguments: list[str], index: int) -> bool:
    before = arguments[index - 1] if index > 1 else ""
    takes_value = before.startswith("-") and before != "-" and "=" not in before and before not in NAMES
    return arguments[index].startswith("-") or (takes_value and before.replace("--no-", "--", 1) not in FLAGS)


@register_hook
def setup_environment(*, ctx: HookContext) -> SetupResult | None:
    """Change Prefect's command line and settings; Prefect calls this before it reads them."""
    if Path(sys.argv[0]).name not in {"prefect", "flow.py"}:
        return None
    arguments, settings = long_name(sys.argv), services.login()
    if ctx.api_url is None and not settings and arguments != sys.argv:
        sys.exit(f"prefect: no server answers: run `make serve` in {services.ROOT} first, or set PREFECT_API_URL")
    sys.argv[:] = arguments
    if settings and ctx.api_url in {None, settings["PREFECT_API_URL"]} and "PREFECT_API_AUTH_STRING" not in os.environ:
        return SetupResult(env=settings)
    return None
