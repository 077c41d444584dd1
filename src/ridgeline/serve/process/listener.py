"""The socket that a server listens on, taken before anything slow begins."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from ridgeline.errors import InputError

UNREAD_BYTES = 2**17
"""Bytes of a reply that lie in the kernel; else some megabytes for each client that does not
read."""


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The address, taken before anything slow begins; connections are refused until we are up."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise InputError(f"--host {host}: {error.strerror or error}") from None
    with socket.socket(family, kind) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Connections inherit it. asyncio sets it only where the listener names its protocol;
        # without it a first token waits some 40 ms for the client's delayed acknowledgement.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, UNREAD_BYTES)
        try:
            listener.bind(address)
        except OSError as error:
            text = f"{host}:{port} cannot be used ({error.strerror}); choose another --port"
            raise InputError(text) from None
        yield listener
