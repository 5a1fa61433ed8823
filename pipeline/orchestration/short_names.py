"""What Prefect loads as it starts: deployments go by their short names, to the server that `make serve` started.

Prefect calls a deployment `<flow>/<deployment>`; ours has its flow's name, and `prefect deployment run wmt-en-de` is
all that needs to be typed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from prefect.plugins import HookContext, SetupResult, register_hook

from pipeline.orchestration.services import LOGIN
from pipeline.stage import state_root

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""
COMMANDS = ("run", "inspect", "delete", "schedule")
"""Of `prefect deployment`, those that take a deployment's name."""
FLAGS = ("--watch", "--all", "--active", "--replace", "--day_or", "--accept-yes", "-y", "--prompt")
"""Their options and Prefect's own that take no value, each also with `--no-` before its name."""
NAMES = ("--name", "--deployment-name", "--deployment_name")
"""Options whose value is a deployment's name."""


def long_name(arguments: list[str]) -> list[str]:
    """Return the command line of Prefect with a short name of a deployment written out."""
    # What is no option and no option's value, by its place; the first is Prefect's own name.
    words = [place for place in range(1, len(arguments)) if not _is_of_an_option(arguments, place)]
    typed = [arguments[place] for place in words[:2]]
    if len(typed) < 2 or typed[0] != "deployment" or typed[1] not in COMMANDS:
        return arguments
    for place in words[2:]:
        name = arguments[place]
        if name.startswith("wmt-") and "/" not in name:
            return [*arguments[:place], f"{name}/{name}", *arguments[place + 1 :]]
    return arguments


def login() -> dict[str, str]:
    """The settings for the server of `make serve`: of this folder, else of the repository; empty where none answers."""
    for path in (state_root() / LOGIN, ROOT / "work" / LOGIN):
        try:
            found: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
            address = urlsplit(found["PREFECT_API_URL"])
            # A server that was killed left the file.
            socket.create_connection((str(address.hostname), address.port or 80), timeout=5).close()
        except OSError:
            continue
        return found
    return {}


def _is_of_an_option(arguments: list[str], place: int) -> bool:
    before = arguments[place - 1] if place > 1 else ""
    takes_it = before.startswith("-") and before != "-" and "=" not in before and before not in NAMES
    return arguments[place].startswith("-") or (takes_it and before.replace("--no-", "--", 1) not in FLAGS)


@register_hook
def setup_environment(*, ctx: HookContext) -> SetupResult | None:
    """Prefect's hook, called before it reads its command line."""
    if Path(sys.argv[0]).name not in {"prefect", "flow.py"}:
        return None
    named = long_name(sys.argv)
    found = login()
    if ctx.api_url is None and not found and named != sys.argv:
        sys.exit(f"prefect: no server answers: run `make serve` in {ROOT} first, or set PREFECT_API_URL")
    sys.argv[:] = named
    if found and ctx.api_url in {None, found["PREFECT_API_URL"]} and "PREFECT_API_AUTH_STRING" not in os.environ:
        return SetupResult(env=found)
    return None
