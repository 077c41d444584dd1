"""Paths and methods as clients write them, as the routes have them.

A base address that ends with a slash gives `//v1/models` or `/v1/models/`, and probes ask with
HEAD, which is answered as GET is, without the body (RFC 9110, 9.3.2; the connection leaves it out).
Azure's clients put `/openai`, `/openai/v1` or `/openai/deployments/NAME` before a path, Groq's and
DeepInfra's one of the first two, DeepSeek's `/beta` or nothing; and where a client adds a `/v1` to
a base address that has one, there are two. Google's clients, known by the header of their key, ask
for `/v1/models` where they mean `/v1beta/models`, which is told in other words.
"""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")
_BEFORE_PATHS = re.compile(
    "^(?:/v1)?(?:/openai(?:/v1|/deployments/[^/]+)?|/beta|/v1)(?=/)"
    "|^(?=/(?:chat/completions|completions|responses|embeddings|models)(?:/|$))"
)

_MODELS, _GOOGLES = "/v1/models", b"x-goog-api-key"


class PlainPaths:
    """Middleware that leaves one slash where several are, none at the end, and GET for HEAD.

    What clouds put before a path becomes `/v1`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
            path = _BEFORE_PATHS.sub("/v1", path)
            if path.startswith(_MODELS) and any(name == _GOOGLES for name, _ in scope["headers"]):
                path = path.replace("/v1/", "/v1beta/", 1)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}
        await self._app(scope, receive, send)
