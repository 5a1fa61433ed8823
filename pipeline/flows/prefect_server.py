"""Prefect's server for the browser and the commands of one machine: an ASGI factory, for `uvicorn --factory`.

Prefect itself accepts any `Host` header, which allows DNS rebinding, and relies on browsers to refuse requests of other
origins.
"""

from __future__ import annotations

from prefect.server.api import server
from starlette.types import ASGIApp

from pipeline.tracking.web import OwnPages


def create_app() -> ASGIApp:
    """Return the server with its pages, its API and its background services."""
    return OwnPages(server.create_app(final=True))
