"""Responses that are computed while nobody waits for them, to be asked for by their id.

Each is kept from the beginning (`kept_responses.py`), as queued, and replaced by what came of it.
Where it is forgotten in between, its work ends. All work ends with the server, which does not wait
for it: once it drains, nobody could ask for a response any more.

What was asked for as a stream has its events written down, too, for whoever comes again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any, Protocol

from ridgeline.serve.http.access_log import RequestRecord
from ridgeline.serve.http.protocol.errors import ApiError
from ridgeline.serve.http.protocol.token_usage import TokenUsage
from ridgeline.serve.http.reply import Deltas
from ridgeline.serve.http.service import Service
from ridgeline.serve.messages import Delta, Submit

Document = dict[str, Any]
MOST_EVENT_BYTES = 16 * 2**20
"""The events of responses that are over, together; those of the oldest go first."""


class ResponseEvents:
    """The events of one response, as far as it has come."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._is_over = False
        self._grown = asyncio.Event()
        self.num_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether no more will come."""
        return self._is_over

    def add(self, event: bytes) -> None:
        """Write one more event down; followers hear of it."""
        self._events.append(event)
        self.num_bytes += len(event)
        self._wake()

    def end(self) -> None:
        """Let followers go when they have all that is there."""
        self._is_over = True
        self._wake()

    async def follow(self, first: int) -> AsyncIterator[bytes]:
        """The events from number `first` on, until the last one."""
        place = first
        while True:
            grown = self._grown
            while place < len(self._events):
                yield self._events[place]
                place += 1
            if self._is_over:
                return
            if grown is self._grown:
                await grown.wait()

    def _wake(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


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
        self._logs: OrderedDict[str, ResponseEvents] = OrderedDict()

    def begin(
        self,
        name: str,
        service: Service,
        submit: Submit,
        record: RequestRecord,
        writer: BackgroundWriter,
        log: ResponseEvents | None = None,
    ) -> None:
        """Have a response computed, and its events kept where they have a log."""
        if log is not None:
            self._logs[name] = log
        deltas = service.open_deltas([submit])
        work = _compute(deltas, record, writer)
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work)

        def over(_: object) -> None:
            service.close_deltas(deltas)  # also of work that was ended before it began
            self._tasks.pop(name, None)
            if log is not None:
                log.end()
                self._forget_oldest()

        task.add_done_callback(over)

    def end(self, name: str) -> bool:
        """End the work on a response; False where there is none, or none any more."""
        task = self._tasks.pop(name, None)
        return task is not None and task.cancel()

    def log_of(self, name: str) -> ResponseEvents | None:
        """The events of a response; None: they were not kept, or are not any more."""
        return self._logs.get(name)

    def forget(self, name: str) -> None:
        """End the work on a response that is deleted, and let its events go."""
        self.end(name)
        self._logs.pop(name, None)

    def _forget_oldest(self) -> None:
        over = {name: log for name, log in self._logs.items() if log.is_over}
        too_many = sum(log.num_bytes for log in over.values()) - MOST_EVENT_BYTES
        for name, log in over.items():
            if too_many <= 0:
                return
            del self._logs[name]
            too_many -= log.num_bytes


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
