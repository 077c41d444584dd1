"""Before any route: who may ask, how much they may send, and whether we still take requests."""

from __future__ import annotations

import hashlib
import hmac

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.serve.http.answers import RETRY_AFTER_SECONDS
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.service import Service, error_response

OPEN_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""No key needed: probes and scrapers have none."""


class Gate:
    """ASGI middleware; the body is read here, whole, so that its size is known."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service
        self._digests = [_digest(key.encode()) for key in service.settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            first = await self._body(scope, receive)
        except ApiError as error:
            scope["ridgeline.record"].error = str(error)
            await error_response(error)(scope, receive, send)
            return
        pending: list[Message] = [first]

        async def again() -> Message:
            return pending.pop() if pending else await receive()

        await self._app(scope, again, send)

    def _check(self, scope: Scope) -> None:
        if scope["path"] in OPEN_PATHS:
            return
        if self._digests and not self._knows(_header(scope, b"authorization")):
            text = "no such API key; send one as `Authorization: Bearer KEY`"
            raise ApiError(401, text, code="invalid_api_key")
        if self._service.draining and scope["method"] == "POST":
            text = "the server is shutting down; ask another one"
            raise ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS)

    def _knows(self, authorization: bytes) -> bool:
        """In the same time whatever the key is: digests have one length, all are compared."""
        kind, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return kind.lower() == b"bearer" and any(matches)

    async def _body(self, scope: Scope, receive: Receive) -> Message:
        longest = self._service.settings.max_body_bytes
        too_long = ApiError(413, f"the body is longer than {longest} bytes (--max-body-bytes)")
        announced = _header(scope, b"content-length")
        if announced.isdigit() and int(announced) > longest:
            raise too_long
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return message
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > longest:
                raise too_long
            if not message.get("more_body", False):
                return {"type": "http.request", "body": b"".join(parts), "more_body": False}


def _header(scope: Scope, name: bytes) -> bytes:
    found: bytes = next((value for key, value in scope["headers"] if key == name), b"")
    return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
