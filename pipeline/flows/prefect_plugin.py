"""Prefect's startup plugin: short names of deployments, and the login of the server that `make serve` started.

Prefect names a deployment `<flow>/<deployment>`. Here both names are equal, and `prefect deployment run wmt-en-de` is
enough.
"""

import os
import sys
from pathlib import Path

from prefect.plugins import HookContext, SetupResult, register_hook

from pipeline.flows import services

NAMES = ("wmt", "wmt-en-de", "wmt-en-fr", "parse-en")
FREE_TEXT = ("--tag", "--flow-run-name")  # options whose value may be a short name and means no deployment


def long_names(arguments: list[str]) -> list[str]:
    """Return Prefect's command line with the short names of our deployments replaced by the long ones."""
    if "deployment" not in arguments:
        return arguments
    pairs = zip(["", *arguments], arguments, strict=False)
    return [f"{name}/{name}" if name in NAMES and before not in FREE_TEXT else name for before, name in pairs]


@register_hook
def setup_environment(*, ctx: HookContext) -> SetupResult | None:
    """Change Prefect's command line and settings; Prefect calls this before it reads them."""
    if Path(sys.argv[0]).name != "prefect":
        return None
    arguments, settings = long_names(sys.argv), services.login()
    if ctx.api_url is None and not settings and arguments != sys.argv:
        sys.exit(f"prefect: no server answers: run `make serve` in {services.ROOT} first, or set PREFECT_API_URL")
    # A short name is of this server, whatever the user's profile says, as one of Prefect Cloud; the environment wins.
    ours = arguments != sys.argv and "PREFECT_API_URL" not in os.environ
    sys.argv[:] = arguments
    if (
        settings
        and (ours or ctx.api_url in {None, settings["PREFECT_API_URL"]})
        and "PREFECT_API_AUTH_STRING" not in os.environ
    ):
        return SetupResult(env=settings)
    return None
