"""MLflow's server for the browser and the commands of one machine, and what keeps other web pages out of a server.

`mlflow` is an ASGI factory, for `uvicorn --factory`. MLflow itself takes requests of the pages of every local port.
"""

from __future__ import annotations

import os

from starlette.datastructures import Headers
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from pipeline.config.paths import state_root
from pipeline.tracking import server

HOSTS = ["127.0.0.1", "localhost"]
"""Accepted `Host` headers, without the port."""


class OwnPages:
    """Refuses requests and websockets of web pages that this server did not deliver, and of other hosts' names.

    A page has another origin than this server or, by DNS rebinding, another host.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = TrustedHostMiddleware(app, allowed_hosts=HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI connection."""
        app: ASGIApp = self.app
        if scope["type"] in {"http", "websocket"}:
            own = {f"http://{host}:{scope['server'][1]}" for host in HOSTS}
            if Headers(scope=scope).get("origin") not in {None, *own}:
                app = PlainTextResponse("Cross-origin request refused", status_code=403)
        await app(scope, receive, send)


def mlflow() -> ASGIApp:
    """Return MLflow's server of the local store."""
    from mlflow.server.constants import ARTIFACT_ROOT_ENV_VAR, BACKEND_STORE_URI_ENV_VAR
    from mlflow.server.handlers import initialize_backend_stores

    store, artifacts = server.local_uri(), str(state_root().resolve() / "mlartifacts")
    os.environ |= {"MLFLOW_TRACKING_URI": store, BACKEND_STORE_URI_ENV_VAR: store, ARTIFACT_ROOT_ENV_VAR: artifacts}
    with server.quiet(), server.opening():
        initialize_backend_stores(store, default_artifact_root=artifacts)
        from mlflow.server.fastapi_app import app
    return OwnPages(app)
