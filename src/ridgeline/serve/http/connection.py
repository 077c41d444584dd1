"""The connection of one client: how long it may take to ask and to read, and how many there may be.

uvicorn waits for ever for the rest of a request and for a client to read its response, takes
connections until the process has no descriptor left, and takes who sends no more for gone. A
`Connection` ends what is too slow, answers who has closed its own direction behind a request
(RFC 9293, section 3.6), and responds to bytes that are no HTTP in the API's own error shape. How
long a body may take the gate says, which can refuse it like any other error.

Who sends no more may have closed all of it: on our side both look alike until something is sent. So
it is sent what says nothing (100, which a client that did not ask for it discards: RFC 9110,
section 15.2.1), to which a host answers a reset where nobody has the connection any more.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from http import HTTPStatus
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ridgeline.serve.http.connection_room import ConnectionRoom
from ridgeline.serve.http.protocol.errors import RETRY_AFTER_SECONDS, ApiError

ARRIVAL_SECONDS = 60.0
"""The time for a request's head to arrive, and as long again for its body."""
LINGER_SECONDS = 5.0
"""The time for the rest of a body that was responded to before it had come."""
READ_SECONDS = 60.0
"""The time in which a client takes `LEAST_READ_BYTES` of what waits for it, or the rest."""
LEAST_READ_BYTES = 16 * 2**10
ASK_SECONDS = (0.1, 5.0)
"""How long after the first and after each later question whether a client is there it is asked
again."""
HEAD_BYTES = 64 * 2**10
"""The longest head of a request, its line and all headers, in bytes."""

log = logging.getLogger("ridgeline.serve")


class Connection(H11Protocol):
    """The connection of uvicorn, with limits on time and number."""

    def __init__(self, *args: Any, room: ConnectionRoom, **more: Any) -> None:
        super().__init__(*args, **more)
        self._room = room
        self._late: asyncio.TimerHandle | None = None
        """Fires where the client takes too long to send."""
        self._unread: asyncio.TimerHandle | None = None
        """Fires where the client may have taken too long to read."""
        self._asked: asyncio.TimerHandle | None = None
        """Fires where a client that sends no more is asked again whether it is there."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a client, or refuse it where too many are there."""
        super().connection_made(transport)
        if len(self.connections) > self._room.connections:
            self._room.log_full()
            text = "too many connections are open; try again"
            self._refuse(ApiError(503, text, retry_after_seconds=RETRY_AFTER_SECONDS))
            return
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all clocks, for the client has gone."""
        super().connection_lost(exc)
        for timer in (self._late, self._unread, self._asked):
            if timer is not None:
                timer.cancel()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a client that sends no more and has asked a whole request, until it is answered."""
        asked = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE)
        if not asked or self.cycle.response_complete or self.scheme == "https":
            return False
        self._ask_whether_there(*ASK_SECONDS)
        return True

    def data_received(self, data: bytes) -> None:
        """Set the clock when bytes have come."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """The last byte of a response was handed to the transport."""
        super().on_response_complete()
        if self._asked is not None and self.cycle.response_complete:
            self.transport.close()
        self._follow()
        self._watch_reader()

    def pause_writing(self) -> None:
        """Watch a client that takes less than waits for it."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Stop the clock when the client reads."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP; called where h11 has said why."""
        error = sys.exception()
        status = getattr(error, "error_status_hint", 400)
        if status == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE:
            text = f"the request's head is longer than {HEAD_BYTES} bytes"
        else:
            why = str(error or msg).partition(": bytearray")[0]  # without the bytes themselves
            text = f"this is no HTTP request: {why}"
        self._refuse(ApiError(status, text))

    def cut_off(self) -> None:
        """End it at once where a response is still under way."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.transport.abort()

    def _ask_whether_there(self, again: float, later: float) -> None:
        """Send what says nothing; the second time it fails where the client has gone."""
        if self.conn.our_state is h11.SEND_RESPONSE and self.scope["http_version"] != "1.0":
            nothing = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self.transport.write(self.conn.send(nothing))
        self._asked = self.loop.call_later(again, self._ask_whether_there, later, later)

    def _follow(self) -> None:
        """Set the clock where the client owes us bytes that nobody else waits for."""
        theirs = self.conn.their_state
        rest = theirs is h11.SEND_BODY and self.cycle.response_complete
        owes = (rest or theirs is h11.IDLE) and not self.transport.is_closing()
        if owes and self._late is None:
            seconds = LINGER_SECONDS if rest else ARRIVAL_SECONDS
            self._late = self.loop.call_later(seconds, self._too_late)
        elif not owes and self._late is not None:
            self._late.cancel()
            self._late = None

    def _too_late(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self.transport.close()  # it has asked nothing
            return
        self._refuse(ApiError(408, f"the request did not arrive within {ARRIVAL_SECONDS:g} s"))

    def _refuse(self, error: ApiError) -> None:
        """Say why, if nothing was said yet, and close."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever works on it hears that the client has gone
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = msgspec.json.encode(error.body)
            headers = {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                "Connection": "close",
                **error.headers,
            }
            phrase = HTTPStatus(error.status).phrase
            head = h11.Response(
                status_code=error.status, headers=list(headers.items()), reason=phrase
            )
            for event in (head, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event))
        self.transport.close()
        self._watch_reader()

    def _watch_reader(self) -> None:
        """Look again later whether the client has taken something of what waits for it."""
        if self._unread is not None:
            self._unread.cancel()
        waiting = self.transport.get_write_buffer_size()
        self._unread = (
            self.loop.call_later(READ_SECONDS, self._read_since, waiting) if waiting else None
        )

    def _read_since(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if waiting and before - waiting < LEAST_READ_BYTES:
            why = f"the client did not read its answer for {READ_SECONDS:g} s"
            log.info("connection ended", extra={"fields": {"why": why}})
            self.transport.abort()
            return
        self._watch_reader()
