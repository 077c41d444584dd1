"""Keys and values of a sequence from one process to another, checked piece by piece.

    payload = pack(kv)                                        in the main thread: torch
    address = KvTransfers().offer("id", payload, over="tcp")  a string for the other side
    header, body = fetch(address)                             there, in any thread: no torch
    kv = unpack(header, body)                                 there, in the main thread

On one machine (Linux) the bytes lie in shared memory, between machines they go over TCP. A payload
is a header in msgpack (tokens, dtype, shapes, and of each piece its length and CRC-32) and the
pieces: keys, values and scales, layer by layer. The header is checked too. Over TCP who asks must
know the key in the address, 128 random bits, and between hosts each side proves first that it holds
the cluster's key (`handshake.py`). Nothing is encrypted, so the network between the machines has to
be a private one.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Literal

import msgspec

from ridgeline.errors import RidgelineError
from ridgeline.serve.cache import SequenceKv
from ridgeline.serve.cluster.handshake import NotProven, prove_caller_on, prove_server_on

START = struct.Struct("!4sII")
"""Magic, length of the header, its CRC-32."""
MAGIC = b"RLKV"
KEY_BYTES = 16
PURPOSE = "kv"
"""What the cluster's key is proven for."""
TIMEOUT_SECONDS = 30.0
"""The time without a byte from the other side after which a transfer fails."""
EXPIRY_SECONDS = 120.0
"""A payload that nobody fetched or released is dropped: its client has died."""
LONGEST_HEADER_BYTES = 1 << 26
_PART = 1 << 22


class KvTransferFailed(RidgelineError):
    """The keys and values did not arrive, or not as they were sent."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the pieces are."""

    tokens: tuple[int, ...]
    dtype: str
    """The dtype of keys and values, as torch names it."""
    shapes: tuple[tuple[int, int, int], ...]
    """The shape of each layer's keys, [KV, T, D]."""
    scales: Literal["none", "by token", "fixed"]
    """[KV, T] of each layer, or [KV] of calibration."""
    lengths: tuple[int, ...]
    """Bytes of each piece: keys of all layers, values, then the scales of both."""
    checksums: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KvPayload:
    """Ready to be sent; the pieces are the tensors' own memory."""

    header: bytes
    pieces: tuple[memoryview, ...]

    @property
    def start(self) -> bytes:
        """What goes before the header."""
        return START.pack(MAGIC, len(self.header), zlib.crc32(self.header))

    @property
    def num_bytes(self) -> int:
        """Bytes of all that is sent."""
        return START.size + len(self.header) + sum(piece.nbytes for piece in self.pieces)


def pack(kv: SequenceKv) -> KvPayload:
    """Copies to the host what lies on a device, nothing else."""
    import torch

    tensors = (*kv.keys, *kv.values, *kv.key_scales, *kv.value_scales)
    pieces = tuple(
        memoryview(t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        for t in tensors
    )
    heads = tuple((keys.shape[0], keys.shape[1], keys.shape[2]) for keys in kv.keys)
    header = Header(
        tokens=kv.tokens,
        dtype=str(kv.keys[0].dtype).removeprefix("torch."),
        shapes=heads,
        scales=_kind_of_scales(kv),
        lengths=tuple(piece.nbytes for piece in pieces),
        checksums=tuple(zlib.crc32(piece) for piece in pieces),
    )
    return KvPayload(msgspec.msgpack.encode(header), pieces)


def unpack(header: Header, body: Sequence[bytearray]) -> SequenceKv:
    """The tensors, over the memory of the pieces, which `fetch` has checked.

    Raises:
        KvTransferFailed: The header contradicts itself.
    """
    import torch

    dtype, layers = getattr(torch, header.dtype, None), len(header.shapes)
    kinds = 2 if header.scales == "none" else 4
    if not isinstance(dtype, torch.dtype) or len(body) != kinds * layers:
        raise KvTransferFailed("the KV that came is not of a kind that this version knows")

    def tensors(kind: int) -> tuple[torch.Tensor, ...]:
        found = []
        for shape, piece in zip(header.shapes, body[kind * layers :], strict=False):
            is_scale = kind >= 2  # keys, values, then their scales
            of = torch.float32 if is_scale else dtype
            of_scale = shape[:1] if header.scales == "fixed" else shape[:2]
            wanted = of_scale if is_scale else shape
            flat = torch.frombuffer(piece, dtype=of) if piece else torch.empty(0, dtype=of)
            if flat.numel() != torch.Size(wanted).numel():
                raise KvTransferFailed("the KV that came has not the size that its header says")
            found.append(flat.view(wanted))
        return tuple(found)

    none: tuple[torch.Tensor, ...] = ()
    return SequenceKv(
        tokens=header.tokens,
        keys=tensors(0),
        values=tensors(1),
        key_scales=tensors(2) if kinds == 4 else none,
        value_scales=tensors(3) if kinds == 4 else none,
    )


def _kind_of_scales(kv: SequenceKv) -> Literal["none", "by token", "fixed"]:
    if not kv.key_scales:
        return "none"
    return "fixed" if kv.key_scales[0].ndim == 1 else "by token"


class KvTransfers:
    """Payloads that wait to be fetched. Its threads only move bytes."""

    def __init__(self) -> None:
        self._memory: dict[str, tuple[SharedMemory, float]] = {}
        self._payloads: dict[str, tuple[KvPayload, bytes, float]] = {}
        self._lock = threading.Lock()
        self._listeners: dict[tuple[str, str], socket.socket] = {}
        """Who listens, by address and by the cluster key that is asked for there."""

    def offer(
        self,
        request_id: str,
        payload: KvPayload,
        over: Literal["memory", "tcp"],
        listen: str = "127.0.0.1",
        cluster_key: str = "",
    ) -> str:
        """Lay a payload out; returns the address at which `fetch` finds it.

        Args:
            request_id: The name to release it by.
            payload: What is sent.
            over: How.
            listen: tcp: the address of this machine to listen on.
            cluster_key: tcp: what who fetches has to prove; empty: the address is enough.

        Raises:
            KvTransferFailed: There is no shared memory left, or the address is not this machine's.
        """
        self.expire()
        try:
            if over == "memory":
                return self._in_memory(request_id, payload)
            return self._on_wire(request_id, payload, listen, cluster_key)
        except OSError as error:
            where = "shared memory" if over == "memory" else f"a socket on {listen}"
            raise KvTransferFailed(f"KV cannot be handed over through {where}: {error}") from None

    def release(self, request_id: str) -> None:
        """Drop a payload, fetched or not; unknown ids are no error."""
        with self._lock:
            self._payloads.pop(request_id, None)
        memory = self._memory.pop(request_id, None)
        if memory is not None:
            memory[0].close()
            with suppress(FileNotFoundError):
                memory[0].unlink()

    def expire(self) -> None:
        """Drop what has lain too long."""
        since = time.monotonic() - EXPIRY_SECONDS
        laid_out = {name: at for name, (_, at) in self._memory.items()}
        laid_out |= {name: at for name, (_, _, at) in self._payloads.items()}
        for request_id in [name for name, at in laid_out.items() if at < since]:
            self.release(request_id)

    def close(self) -> None:
        """Drop everything that is laid out."""
        for request_id in [*self._memory, *self._payloads]:
            self.release(request_id)
        for listener in self._listeners.values():
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            listener.close()
        self._listeners.clear()

    def _in_memory(self, request_id: str, payload: KvPayload) -> str:
        # Python's resource tracker removes it when this process is killed.
        memory = SharedMemory(create=True, size=payload.num_bytes)
        at, space = 0, memory.buf
        assert space is not None
        parts: tuple[bytes | memoryview, ...] = (payload.start, payload.header, *payload.pieces)
        for part in parts:
            space[at : at + len(part)] = part
            at += len(part)
        del space  # a view that is left keeps `close` from working
        self._memory[request_id] = (memory, time.monotonic())
        return f"memory:{memory.name}"

    def _on_wire(self, request_id: str, payload: KvPayload, listen: str, cluster_key: str) -> str:
        at = (listen, cluster_key)
        if at not in self._listeners:
            family = socket.AF_INET6 if ":" in listen else socket.AF_INET
            listener = socket.create_server((listen, 0), family=family)
            self._listeners[at] = listener
            threading.Thread(
                target=self._serve, args=(listener, cluster_key), name="kv-listener", daemon=True
            ).start()
        key = secrets.token_bytes(KEY_BYTES)
        with self._lock:
            self._payloads[request_id] = (payload, key, time.monotonic())
        host, port = self._listeners[at].getsockname()[:2]
        return f"tcp:{host}:{port}:{key.hex()}"

    def _serve(self, listener: socket.socket, cluster_key: str) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # closed
            threading.Thread(
                target=self._send_one,
                args=(connection, cluster_key),
                name="kv-sender",
                daemon=True,
            ).start()

    def _send_one(self, connection: socket.socket, cluster_key: str) -> None:
        """Serve one fetch; a wrong key gets a closed connection."""
        connection.settimeout(TIMEOUT_SECONDS)
        with connection, suppress(OSError, KvTransferFailed, NotProven):
            if cluster_key:
                prove_server_on(connection, cluster_key, PURPOSE)
            key = bytes(_received(connection, KEY_BYTES))
            with self._lock:
                known = list(self._payloads.values())
            for payload, its_key, _ in known:
                if secrets.compare_digest(key, its_key):
                    connection.sendall(payload.start + payload.header)
                    for piece in payload.pieces:
                        connection.sendall(piece)


def fetch(address: str, cluster_key: str = "") -> tuple[Header, list[bytearray]]:
    """What lies at an address, every piece checked. Blocks; needs no torch.

    Args:
        address: What `offer` gave.
        cluster_key: The one that the other side has, where it has one.

    Raises:
        KvTransferFailed: It is not there, the other side has gone, or it is damaged.
    """
    kind, _, where = address.partition(":")
    try:
        if kind == "memory":
            return _from_memory(where)
        if kind == "tcp":
            return _from_wire(where, cluster_key)
    except NotProven as error:
        raise KvTransferFailed(f"the KV of the prefilling engine is withheld: {error}") from None
    except OSError as error:
        raise KvTransferFailed(
            f"the KV of the prefilling engine is out of reach: {error}"
        ) from None
    raise KvTransferFailed(f"unknown kind of KV address: {kind}")


def _from_memory(name: str) -> tuple[Header, list[bytearray]]:
    # Not through SharedMemory: before Python 3.13 attaching made the segment this process's to
    # clean up as well (python/cpython#82300). Reading the file also leaves other threads running.
    with Path("/dev/shm", Path(name).name).open("rb", buffering=0) as file:  # noqa: S108 - no temporary file, but where Linux shows shared memory

        def read(count: int) -> bytearray:
            whole = bytearray(count)
            view, at = memoryview(whole), 0
            while at < count and (got := file.readinto(view[at:])):
                at += got
            return whole[:at]

        return _checked(read)


def _from_wire(where: str, cluster_key: str) -> tuple[Header, list[bytearray]]:
    host, port, key = where.rsplit(":", 2)  # an IPv6 address has colons of its own
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        if cluster_key:
            prove_caller_on(connection, cluster_key, PURPOSE)
        connection.sendall(bytes.fromhex(key))
        return _checked(lambda count: _received(connection, count))


def _checked(read: Callable[[int], bytearray]) -> tuple[Header, list[bytearray]]:
    """Start, header and pieces, in order."""
    start = read(START.size)
    if len(start) != START.size:
        raise KvTransferFailed("the KV that came is cut off")
    magic, length, checksum = START.unpack(start)
    if magic != MAGIC or length > LONGEST_HEADER_BYTES:
        raise KvTransferFailed("what came is no KV of this program")
    raw = read(length)
    if zlib.crc32(raw) != checksum:
        raise KvTransferFailed("the KV's header was damaged on its way")
    header = msgspec.msgpack.decode(raw, type=Header)
    pieces = []
    for index, (size, expected) in enumerate(zip(header.lengths, header.checksums, strict=True)):
        piece = read(size)
        if len(piece) != size or zlib.crc32(piece) != expected:
            of = f"piece {index + 1} of {len(header.lengths)}"
            raise KvTransferFailed(f"{of} of the KV was damaged on its way")
        pieces.append(piece)
    return header, pieces


def _received(connection: socket.socket, count: int) -> bytearray:
    """Exactly so many bytes."""
    whole = bytearray(count)
    view, at = memoryview(whole), 0
    while at < count:
        got = connection.recv_into(view[at : at + _PART])
        if not got:
            raise KvTransferFailed("the prefilling engine closed the connection")
        at += got
    return whole
