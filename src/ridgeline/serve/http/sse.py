"""Server-sent events: `data: {…}` lines, ended by `data: [DONE]`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ridgeline.serve.http.protocol.errors import ApiError

DONE = b"data: [DONE]\n\n"


def event(content: object) -> bytes:
    """One event with a JSON document."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


class EventStream(Response):
    """Sends events as they come; an error becomes the last event.

    `close` is called once, whatever ends the stream: its end, an error, or a client that has gone.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[bytes],
        close: Callable[[], None],
        failed: Callable[[ApiError], None],
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close
        self._failed = failed

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        """As ASGI has it."""
        sending = asyncio.create_task(self._send(send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            self._close()
            for task in (sending, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await task

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            async for body in self._events:
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except ApiError as error:
            await self._end(send, error)
        except Exception as error:  # a bug: the client hears of it, the log shows it
            await self._end(send, ApiError(500, f"internal error: {type(error).__name__}"))
            raise
        else:
            await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def _end(self, send: Send, error: ApiError) -> None:
        self._failed(error)
        body = event(error.body) + DONE
        await send({"type": "http.response.body", "body": body, "more_body": False})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
