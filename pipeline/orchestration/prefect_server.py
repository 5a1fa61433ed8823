"""Prefect's server for the browser and the commands of one machine.

An ASGI factory, run by `uvicorn --factory pipeline.orchestration.prefect_server:create_app`. Prefect itself accepts any
`Host` header, which allows DNS rebinding, and relies on browsers to refuse requests of other origins.
"""

from __future__ import annotations

from prefect.server.api import server
from prefect.settings import get_current_settings
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ["127.0.0.1", "localhost"]
"""Accepted `Host` headers, without the port."""


class OwnOrigins:
    """Refuses requests and websockets of web pages that this server did not deliver."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        self.app, self.origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        app = self.app
        if scope["type"] in {"http", "websocket"} and Headers(scope=scope).get("origin") not in {None, *self.origins}:
            app = PlainTextResponse("Cross-origin request refused", status_code=403)
        await app(scope, receive, send)


def create_app() -> ASGIApp:
    """Return the server with its pages, its API and its background services."""
    origins = get_current_settings().server.api.cors_allowed_origins.split(",")
    return TrustedHostMiddleware(OwnOrigins(server.create_app(final=True), origins), allowed_hosts=HOSTS)
