"""Around every request: its id, its span, and one JSON line when it has ended.

The id comes in as `X-Request-Id` or is made here, and goes out with the response and into the log.
"""

from __future__ import annotations

import logging
import re
import time
import uuid
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ridgeline.serve.http.record import Record
from ridgeline.serve.http.service import Service
from ridgeline.serve.http.spans import span

GIVEN_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUIET_PATHS = frozenset({"/health", "/ready", "/metrics"})
"""Asked every few seconds: logged only when they fail."""
CLIENT_GONE = 499
"""nginx's status for a client that has closed the connection."""

log = logging.getLogger("ridgeline.serve")


class Journal:
    """ASGI middleware; the outermost, so that it sees how everything ends."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = Record(request_id=_request_id(scope))
        scope["ridgeline.record"] = record
        status, whole = CLIENT_GONE, False

        async def tell(message: Message) -> None:
            nonlocal status, whole
            if message["type"] == "http.response.start":
                status = message["status"]
                header = (b"x-request-id", record.request_id.encode())
                message = {**message, "headers": [*message.get("headers", []), header]}
            elif message["type"] == "http.response.body":
                whole = not message.get("more_body", False)
            await send(message)

        try:
            with self._service.counting(), span(scope, record) as mark:
                await self._app(scope, receive, tell)
                mark(status)
        except Exception as error:
            status, record.error = 500, f"{type(error).__name__}: {error}"
            raise
        finally:
            self._write(scope, record, status if whole or status >= 500 else CLIENT_GONE)

    def _write(self, scope: Scope, record: Record, status: int) -> None:
        if scope["path"] in QUIET_PATHS and status < 400:
            return
        fields: dict[str, Any] = {
            "method": scope["method"],
            "path": scope["path"],
            "status": status,
            "seconds": round(time.monotonic() - record.began, 6),
            **record.fields(),
        }
        level = logging.ERROR if status >= 500 else logging.INFO
        log.log(level, "request", extra={"fields": fields})


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id" and GIVEN_ID.fullmatch(value):
            given: str = value.decode()
            return given
    return uuid.uuid4().hex
