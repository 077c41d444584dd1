"""Ports for servers that must be told theirs; one that may choose takes 0 and says which it got."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else is given for as long as the block lasts.

    It stays bound without being listened on: the system hands it to no one, connections to it are
    refused, and a server that is told it may bind it too (torch, uvicorn and asyncio set
    SO_REUSEADDR, as this socket does).
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
