"""What the engine answers to one HTTP request: all its prompts merged, with a time limit.

Closing aborts whatever is unfinished, whether the client has gone, the time is up or the server
drains; the engine hears of it in the same turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.messages import Delta, Submit
from ridgeline.serve.process.client import EngineLink, RequestRefused

RETRY_AFTER_SECONDS = 1


def error_of(refusal: RequestRefused) -> ApiError:
    """The engine's refusal as an error of the API."""
    said = refusal.refusal
    retry = RETRY_AFTER_SECONDS if said.status in (429, 503) else None
    return ApiError(said.status, said.message, param=said.parameter, retry_after_seconds=retry)


class Answers:
    """Deltas of several prompts as they come, each with its prompt's position."""

    def __init__(
        self, engine: EngineLink, submits: Sequence[Submit], timeout_seconds: float | None
    ) -> None:
        self._items: asyncio.Queue[tuple[int, Delta] | ApiError | None] = asyncio.Queue()
        self._held: tuple[int, Delta] | ApiError | None = None
        self._pumps = [
            asyncio.create_task(self._pump(engine, position, submit))
            for position, submit in enumerate(submits)
        ]
        self._timer = None
        if timeout_seconds is not None:
            loop = asyncio.get_running_loop()
            late = ApiError(504, f"not answered within {timeout_seconds:g} s (--request-timeout)")
            self._timer = loop.call_later(timeout_seconds, self.end, late)

    def end(self, error: ApiError) -> None:
        """Let the reader fail with this; used when the server drains."""
        self._items.put_nowait(error)

    async def first(self) -> None:
        """Wait for the first sign, so that a refusal can still become a status.

        Raises:
            ApiError: the engine refuses.
        """
        self._held = await self._items.get()
        if isinstance(self._held, ApiError):
            raise self._held

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """(prompt, Delta) until every answer has finished. Raises ApiError."""
        running = len(self._pumps)
        while running:
            item = self._held if self._held is not None else await self._items.get()
            self._held = None
            if item is None:
                running -= 1
            elif isinstance(item, ApiError):
                raise item
            else:
                yield item

    def close(self) -> None:
        """Abort what is unfinished; may be called twice."""
        if self._timer is not None:
            self._timer.cancel()
        for pump in self._pumps:
            pump.cancel()

    async def _pump(self, engine: EngineLink, position: int, submit: Submit) -> None:
        try:
            async for delta in engine.submit(submit):
                self._items.put_nowait((position, delta))
        except RequestRefused as refusal:
            self._items.put_nowait(error_of(refusal))
        except Exception as error:  # a bug: the client must not wait for ever, the log shows it
            self._items.put_nowait(ApiError(500, f"internal error: {type(error).__name__}"))
            raise
        else:
            self._items.put_nowait(None)
