"""Prefect's server for the browser and the commands of one machine.

An ASGI factory: `uvicorn --factory pipeline.orchestration.prefect_server:create_app`; Prefect's settings say the rest.
Prefect alone answers any `Host`, which DNS rebinding needs, and leaves it to browsers to hold pages to their own
origins.
"""

from __future__ import annotations

from prefect.server.api import server
from prefect.settings import get_current_settings
from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

HOSTS = ["127.0.0.1", "localhost"]
"""What a request may name in its header `Host`; the port is not compared."""


class OwnOrigins:
    """Refuses requests of web pages, websockets too, that do not come from this server."""

    def __init__(self, app: ASGIApp, origins: list[str]) -> None:
        self.app, self.origins = app, origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        app = self.app
        if scope["type"] in {"http", "websocket"} and Headers(scope=scope).get("origin") not in {None, *self.origins}:
            app = PlainTextResponse("Cross-origin request refused", status_code=403)
        await app(scope, receive, send)


def create_app() -> ASGIApp:
    """The server, with its pages, its API and its background services."""
    app = server.create_app(final=True)
    origins = get_current_settings().server.api.cors_allowed_origins.split(",")
    return TrustedHostMiddleware(OwnOrigins(app, origins), allowed_hosts=HOSTS)
