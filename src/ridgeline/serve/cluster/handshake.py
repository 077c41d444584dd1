"""Both ends of a connection prove that they hold the same cluster key, before anything is said.

    caller → server   RLND, 32 random bytes
    server → caller   32 random bytes, HMAC-SHA256(key, "server", purpose, caller's, server's)
    caller → server   HMAC-SHA256(key, "caller", purpose, server's, caller's)

The key itself never travels, and what was overheard proves nothing to the next connection. What
follows is neither encrypted nor signed, so the network between the hosts has to be a private one.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
from collections.abc import Generator
from dataclasses import dataclass

from ridgeline.errors import RidgelineError

MAGIC = b"RLND"
NONCE_BYTES = PROOF_BYTES = 32
FIRST_BYTES = len(MAGIC) + NONCE_BYTES
SECONDS = 10.0
"""The time for both proofs."""


class NotProven(RidgelineError):
    """The other end does not hold this cluster's key, or is no end of ours."""


@dataclass(frozen=True, slots=True)
class _Exchange:
    """What is to be sent, then how many bytes are to be read."""

    send: bytes
    read: int


_Steps = Generator[_Exchange, bytes, None]


def _as_caller(key: str, purpose: str) -> _Steps:
    mine = secrets.token_bytes(NONCE_BYTES)
    reply = yield _Exchange(MAGIC + mine, NONCE_BYTES + PROOF_BYTES)
    theirs, proof = reply[:NONCE_BYTES], reply[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(key, "server", purpose, mine, theirs)):
        raise NotProven("it holds another cluster key; give both ends the same --cluster-key-file")
    yield _Exchange(_proof(key, "caller", purpose, theirs, mine), 0)


def _as_server(key: str, purpose: str, first: bytes) -> _Steps:
    if not first.startswith(MAGIC):
        raise NotProven("what came is no call of this program")
    theirs, mine = first[len(MAGIC) :], secrets.token_bytes(NONCE_BYTES)
    reply = mine + _proof(key, "server", purpose, theirs, mine)
    proof = yield _Exchange(reply, PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(key, "caller", purpose, mine, theirs)):
        raise NotProven("the caller holds another cluster key")


def _proof(key: str, end: str, purpose: str, *nonces: bytes) -> bytes:
    text = f"{end}\0{purpose}\0".encode() + b"".join(nonces)
    return hmac.digest(key.encode(), text, "sha256")


async def prove_caller(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: str, purpose: str
) -> None:
    """Prove the key to who was called, and have it proven. Raises NotProven."""
    await _over_streams(_as_caller(key, purpose), reader, writer)


async def prove_server(
    first: bytes,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    key: str,
    purpose: str,
) -> None:
    """Prove the key to who calls with these `first` bytes, and have it proven. Raises NotProven."""
    await _over_streams(_as_server(key, purpose, first), reader, writer)


def prove_caller_on(connection: socket.socket, key: str, purpose: str) -> None:
    """The same as `prove_caller`, blocking, with the socket's own timeout. Raises NotProven."""
    _over_socket(_as_caller(key, purpose), connection)


def prove_server_on(connection: socket.socket, key: str, purpose: str) -> None:
    """The same as `prove_server`, blocking, with the socket's own timeout. Raises NotProven."""
    _over_socket(_as_server(key, purpose, _exactly(connection, FIRST_BYTES)), connection)


async def _over_streams(
    steps: _Steps, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        async with asyncio.timeout(SECONDS):
            step = next(steps)
            while True:
                writer.write(step.send)
                await writer.drain()
                if not step.read:
                    return
                step = steps.send(await reader.readexactly(step.read))
    except StopIteration:
        return
    except (asyncio.IncompleteReadError, TimeoutError):
        raise NotProven("it closed the connection, or fell silent, before it had a proof") from None


def _over_socket(steps: _Steps, connection: socket.socket) -> None:
    try:
        step = next(steps)
        while True:
            connection.sendall(step.send)
            if not step.read:
                return
            step = steps.send(_exactly(connection, step.read))
    except StopIteration:
        return


def _exactly(connection: socket.socket, count: int) -> bytes:
    whole = b""
    while len(whole) < count:
        part = connection.recv(count - len(whole))
        if not part:
            raise NotProven("it closed the connection before it had a proof")
        whole += part
    return whole
