"""The front of a server, which is uvicorn around the application and what its routes share.

It imports the web framework, which `server.py` does once engines are on their way: they import
torch meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator

import uvicorn

from ridgeline.serve.cluster.combined import FleetReport
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.http.app import create_app
from ridgeline.serve.http.connection import HEAD_BYTES, Connection
from ridgeline.serve.http.connection_room import ConnectionRoom
from ridgeline.serve.http.metrics import Meters
from ridgeline.serve.http.service import Service, text_of
from ridgeline.serve.http.settings import ServerSettings
from ridgeline.serve.http.text import Tokenizer
from ridgeline.serve.messages import Ready
from ridgeline.serve.process.client import EngineLink

WAITING_CONNECTIONS = 2048
"""Connections that wait in the kernel until we take them."""


class Front(uvicorn.Server):
    """uvicorn without signal handlers of its own; `up` once it listens."""

    def __init__(self, service: Service, room: ConnectionRoom, settings: ServerSettings) -> None:
        certificate, key = settings.tls or (None, None)
        super().__init__(
            uvicorn.Config(
                create_app(service),
                http=functools.partial(Connection, room=room),
                ws="none",
                log_config=None,
                access_log=False,
                lifespan="off",
                backlog=room.burst,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_graceful_shutdown=2,
                server_header=False,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                root_path=settings.root_path,
            )
        )
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen at these sockets."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(WAITING_CONNECTIONS)  # more may wait than are taken at a time
        self.up.set()

    def cut_off(self) -> None:
        """End every connection with a response that its client does not read."""
        for connection in list(self.server_state.connections):
            connection.cut_off()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the server."""
        yield


async def service_of_engine(
    link: EngineLink,
    config: EngineConfig,
    settings: ServerSettings,
    tokenizer: Tokenizer,
    ready: Ready,
    fleet: Callable[[], FleetReport] | None,
) -> Service:
    """What routes share of one model.

    Raises:
        InputError: The model takes images, and the processor beside it cannot be read.
    """
    text = await text_of(config, settings, tokenizer, ready)
    meters = Meters(link, settings.model_name, fleet, lambda: text.tokenise_seconds)
    return Service(link, text, settings, meters, fleet)
