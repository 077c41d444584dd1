"""Paths and methods as clients write them, as the routes have them.

A base address that ends with a slash gives `//v1/models` or `/v1/models/`, and probes ask with
HEAD, which is answered as GET is, without the body (RFC 9110, 9.3.2; the connection leaves it out).
Each cloud has a prefix of its own before the paths of an API (`/openai/deployments/NAME`, `/beta`,
`/api/v1`, `/anthropic/v1`, `/serving-endpoints/NAME`, `/v1/projects/…/publishers/google`, nothing),
and where a client adds a `/v1` to a base address that has one, there are two: a path that is no
route, but ends as one does, is taken for that one. Google's clients, known by the header of their
key, ask for `/v1/models` where they mean `/v1beta/models`, which is told in other words.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

_SLASHES = re.compile("/{2,}")
_ENDS = re.compile(
    "(?P<openai>/(?:(?:chat/|fim/)?completions|responses|embeddings|rerank|models"
    "|messages|messages/count_tokens|chat/completions/input_tokens|responses/input_tokens))$"
    "|(?P<openai_item>/(?:models|responses)/[^/:]+)$"
    "|(?P<google>/models/[^/:]+:[a-zA-Z]+)$"
    "|(?P<plain>/invocations)$"
)
"""How the paths of each API end, which their clients put behind a prefix."""
_BEFORE = {"openai": "/v1", "openai_item": "/v1", "google": "/v1beta", "plain": ""}
"""What stands before them here."""

_MODELS, _GOOGLES = "/v1/models", b"x-goog-api-key"


class PlainPaths:
    """Middleware that leaves one slash where several are, none at the end, and GET for HEAD.

    What clouds put before a path becomes what stands there in this API.
    """

    def __init__(self, app: ASGIApp, is_route: Callable[[Scope], bool]) -> None:
        self._app = app
        self._is_route = is_route

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, as ASGI has it."""
        if scope["type"] == "http":
            path = _SLASHES.sub("/", scope["path"]).rstrip("/") or "/"
            path = self._as_routed(scope, path)
            if path.startswith(_MODELS) and any(name == _GOOGLES for name, _ in scope["headers"]):
                path = path.replace("/v1/", "/v1beta/", 1)
            method = "GET" if scope["method"] == "HEAD" else scope["method"]
            scope = {**scope, "path": path, "method": method}
        await self._app(scope, receive, send)

    def _as_routed(self, scope: Scope, path: str) -> str:
        found = _ENDS.search(path)
        if found is None or found.lastgroup is None:
            return path
        routed = _BEFORE[found.lastgroup] + found[0]
        if routed == path or self._is_route({**scope, "path": path}):
            return path
        return routed
