"""What Prefect loads as it starts: deployments go by their short names, to the server that `make serve` started.

Prefect calls a deployment `<flow>/<deployment>`; ours has its flow's name, and `prefect deployment run wmt-en-de` is
all that needs to be typed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect.plugins import HookContext, SetupResult, register_hook

from pipeline.stage import state_root

API = "prefect-api"
"""The file in the state root that names the server's address while it runs."""
COMMANDS = ("run", "inspect", "pause", "resume", "delete", "schedule")
"""Of `prefect deployment`, those that take a deployment's name."""


def long_name(arguments: list[str]) -> list[str]:
    """The command line of Prefect with a short name of a deployment written out."""
    if arguments[1:2] != ["deployment"] or len(arguments) < 4 or arguments[2] not in COMMANDS:
        return arguments
    for place in range(3, len(arguments)):
        name = arguments[place]
        if name.startswith("wmt-") and "/" not in name and not arguments[place - 1].startswith("-"):
            return [*arguments[:place], f"{name}/{name}", *arguments[place + 1 :]]
    return arguments


@register_hook
def setup_environment(*, ctx: HookContext) -> SetupResult | None:
    """Prefect's hook, called before it reads its command line."""
    if Path(sys.argv[0]).name != "prefect":
        return None
    sys.argv[:] = long_name(sys.argv)
    address = state_root() / API
    if ctx.api_url is None and address.exists():
        return SetupResult(env={"PREFECT_API_URL": address.read_text(encoding="utf-8").strip()})
    return None
