"""The wire between API and engine: frames of messages, as msgpack.

A frame is four bytes of length (big endian) and a msgpack list of messages (`messages.py`): all
that one step has produced travels at once. The very first frame to an engine is its `EngineConfig`.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import msgspec

from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import FromEngine, ToEngine

HEADER = struct.Struct("!I")
LONGEST_BYTES = 1 << 30
"""No honest frame is longer: a prompt of a million tokens takes 5 MB."""

to_engine = msgspec.msgpack.Decoder(list[ToEngine])
from_engine = msgspec.msgpack.Decoder(list[FromEngine])
config = msgspec.msgpack.Decoder(EngineConfig)
_encoder = msgspec.msgpack.Encoder()


class BrokenFrame(Exception):
    """What came is no frame of ours; the connection is of no more use."""


def frame(content: Any) -> bytes:
    """Bytes of one frame."""
    body = _encoder.encode(content)
    return HEADER.pack(len(body)) + body


def read_frame(connection: socket.socket) -> bytes | None:
    """Body of the next frame, blocking; None where the other side has closed."""
    header = _read_exactly(connection, HEADER.size)
    return None if header is None else _read_exactly(connection, _length(header))


async def next_frame(reader: asyncio.StreamReader) -> bytes | None:
    """The body of the next frame, for asyncio; None where the other side has closed."""
    try:
        return await reader.readexactly(_length(await reader.readexactly(HEADER.size)))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def _length(header: bytes) -> int:
    length: int = HEADER.unpack(header)[0]
    if length > LONGEST_BYTES:
        raise BrokenFrame(f"a frame of {length} bytes")
    return length


def _read_exactly(connection: socket.socket, count: int) -> bytes | None:
    parts = []
    while count:
        try:
            part = connection.recv(min(count, 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
