"""Responses that are computed while nobody waits for them, to be asked for by their id.

Each is kept from the beginning (`kept_responses.py`), as queued, and replaced by what came of it.
Where it is forgotten in between, its work ends. All work ends with the server, which does not wait
for it: once it drains, nobody could ask for a response any more.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import Deltas
from ridgeline.serve.http.service import Service
from ridgeline.serve.messages import Delta, Submit

Document = dict[str, Any]


class BackgroundWriter(Protocol):
    """Gives a response in the background its shape."""

    def add(self, position: int, delta: Delta) -> None:
        """Take what the engine said."""

    def replace(self, usage: TokenUsage | None, error: ApiError | None = None) -> bool:
        """Keep what came of it, or the error that ended it; False where nobody wants it now."""


class BackgroundResponses:
    """The responses that are being computed, by their ids."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def begin(
        self,
        name: str,
        service: Service,
        submit: Submit,
        record: RequestRecord,
        writer: BackgroundWriter,
    ) -> None:
        """Have a response computed."""
        deltas = service.open_deltas([submit])
        work = _compute(deltas, record, writer)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work)

        def over(_: object) -> None:
            service.close_deltas(deltas)  # also of work that was ended before it began
            self._tasks.pop(name, None)

        task.add_done_callback(over)

    def end(self, name: str) -> bool:
        """End the work on a response; False where there is none, or none any more."""
        task = self._tasks.pop(name, None)
        return task is not None and task.cancel()


async def _compute(deltas: Deltas, record: RequestRecord, writer: BackgroundWriter) -> None:
    try:
        async for position, delta in deltas.read(record):
            writer.add(position, delta)
            if not writer.replace(None):
                return
        writer.replace(record.usage)
    except ApiError as error:
        writer.replace(None, error)
    except Exception as error:  # a bug: who asks hears of it, the log shows it
        writer.replace(None, ApiError(500, f"internal error: {type(error).__name__}"))
        raise
