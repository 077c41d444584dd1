"""One engine for a front on another host: `ridgeline serve MODEL --role prefill|decode`.

    front ──TCP── EngineNode ──socket pair── engine process (`kv_engine.py`)
                                                  └──TCP── KV to and from other hosts' engines

A front proves that it holds the cluster's key, hears who is here, and then speaks to the engine as
a server does to its own. Several fronts may; what one asked is withdrawn when it goes. Its engine
is started again when it ends, as anywhere; connections are closed meanwhile, so that no front
sends anything to nobody. Whoever asks by HTTP is told how the engine is (`GET /health`), without a
key and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

import msgspec

from ridgeline.errors import in_words
from ridgeline.serve.cluster.disaggregated import KvLink
from ridgeline.serve.cluster.handshake import FIRST_BYTES, MAGIC, SECONDS, NotProven, prove_server
from ridgeline.serve.cluster.node_words import PURPOSE, EngineHello, EngineIdentity, Role
from ridgeline.serve.messages import (
    Abort,
    Delta,
    Done,
    Embed,
    Embedded,
    ExportKV,
    ForgetPrefixes,
    FromEngine,
    ImportKV,
    LoadAdapter,
    Refused,
    ReleaseKV,
    Submit,
    ToEngine,
    UnloadAdapter,
)
from ridgeline.serve.process.client import RequestRefused
from ridgeline.serve.process.frames import BrokenFrame, frame, next_frame, to_engine
from ridgeline.serve.process.host import HEARTBEAT_SECONDS

KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""Seconds and tries after which a front whose host has gone without a word counts as gone."""
HEAD_BYTES = 1 << 14

log = logging.getLogger("ridgeline.serve")


class EngineNode:
    """Lets fronts speak to one engine."""

    def __init__(
        self, engine: KvLink, role: Role, identity: EngineIdentity, cluster_key: str
    ) -> None:
        self.engine = engine
        self.draining = False
        """Whether new requests are refused."""
        self._hello = EngineHello(role=role, identity=identity)
        self._key = cluster_key
        self._fronts: set[_Front] = set()
        self._ended = asyncio.Event()
        """Set whenever a request has gone."""

    @property
    def num_requests(self) -> int:
        """Requests that are here, or whose KV nobody has fetched yet."""
        return sum(len(front.open) for front in self._fronts)

    async def until_idle(self) -> None:
        """Wait until nothing is here any more."""
        while self.num_requests:
            self._ended.clear()
            await self._ended.wait()

    def note_end(self) -> None:
        """Note that a request has gone."""
        self._ended.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until its end; what asyncio's server calls."""
        whose = writer.get_extra_info("peername")
        try:
            async with asyncio.timeout(SECONDS):
                first = await reader.readexactly(FIRST_BYTES)
            if not first.startswith(MAGIC):
                await self._say_health(first, reader, writer)
                return
            await prove_server(first, reader, writer, self._key, PURPOSE)
            if self.engine.ready is None:
                return  # it is being started again; the front tries again, too
            await self._speak(reader, writer)
        except NotProven as error:
            log.warning("front refused", extra={"fields": {"from": whose, "why": str(error)}})
        except (BrokenFrame, msgspec.DecodeError) as error:
            log.warning("front cut off", extra={"fields": {"from": whose, "why": in_words(error)}})
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            pass
        finally:
            writer.close()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        keep_alive(connection)
        front = _Front(self, writer, here=connection.getsockname()[0])
        adapters = dict(self.engine.adapters)
        writer.write(frame(msgspec.structs.replace(self._hello, adapters=adapters)))
        front.write(self.engine.ready)
        self._fronts.add(front)
        log.info("front connected", extra={"fields": {"from": writer.get_extra_info("peername")}})
        beating = asyncio.create_task(front.beat())
        reading = asyncio.create_task(front.read(reader))
        try:
            await asyncio.wait({beating, reading}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._fronts.discard(front)
            for task in (beating, reading):
                task.cancel()
            front.close()
        if reading.done() and not reading.cancelled():
            reading.result()

    async def _say_health(
        self, first: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer an HTTP request: `/health` with how the engine is, all else with 404."""
        head = first
        async with asyncio.timeout(SECONDS):
            while b"\r\n\r\n" not in head and len(head) < HEAD_BYTES:
                part = await reader.read(HEAD_BYTES)
                if not part:
                    return
                head += part
        stats, up = self.engine.stats, self.engine.ready is not None
        if head.startswith((b"GET /health ", b"HEAD /health ")):
            status = "200 OK" if up and not self.draining else "503 Service Unavailable"
            said = {
                "status": "draining" if self.draining else "ok" if up else "starting",
                "role": self._hello.role,
                "running": stats.running if stats else 0,
                "waiting": stats.waiting if stats else 0,
            }
        else:
            status = "404 Not Found"
            said = {"error": "this is an engine of a cluster; ask the front that it belongs to"}
        body = msgspec.json.encode(said)
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n".encode()
        writer.write(head + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()


class _Front:
    """One front, and what it has open here."""

    def __init__(self, node: EngineNode, writer: asyncio.StreamWriter, *, here: str) -> None:
        self._node = node
        self._engine = node.engine
        self._writer = writer
        self._here = here
        """This host's address as the front reaches it, at which others fetch KV."""
        self.open: dict[str, Callable[[], None]] = {}
        """What withdraws each request; one that was handed over stays until its KV is let go."""
        self._tasks: set[asyncio.Task[None]] = set()

    def write(self, message: FromEngine | None) -> None:
        """Send it, unless there is nothing or nobody."""
        if message is not None and not self._writer.is_closing():
            self._writer.write(frame([message]))

    async def beat(self) -> None:
        """Pass the engine's heartbeats on, each once, until it ends."""
        passed_on = None
        while self._engine.ready is not None:
            if self._engine.stats is not passed_on:
                passed_on = self._engine.stats
                self.write(passed_on)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def read(self, reader: asyncio.StreamReader) -> None:
        """Take what the front sends until it closes."""
        while (body := await next_frame(reader)) is not None:
            for message in to_engine.decode(body):
                self._take(message)

    def close(self) -> None:
        """Withdraw all that is unfinished."""
        for task in self._tasks:
            task.cancel()
        for request_id, withdraw in self.open.items():
            withdraw()
            self._engine.abort(request_id)
        self.open.clear()
        self._node.note_end()

    def _take(self, message: ToEngine) -> None:
        match message:
            case Submit() | ImportKV():
                self._send(message)
            case Abort():
                withdraw = self._let_go(message.id)
                if withdraw is not None:
                    withdraw()
                    self._engine.abort(message.id)
            case ReleaseKV():
                if self._let_go(message.id) is not None:
                    self._engine.release_kv(message.id)
            case _:
                task = asyncio.create_task(self._answer(message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _send(self, message: Submit | ImportKV) -> None:
        request_id, running = message.id, message.n
        if self._node.draining:
            text = "this engine is shutting down; ask another one"
            self.write(Refused(id=request_id, message=text, status=503))
            return
        if isinstance(message, ImportKV):
            message = msgspec.structs.replace(message, cluster_key=self._node._key)

        def deliver(reply: Delta | Refused) -> None:
            nonlocal running
            if isinstance(reply, Refused):
                running = 0
            elif reply.finish_reason not in (None, "handover"):
                running -= 1
            if not running:
                self._let_go(request_id)
            self.write(reply)

        self.open[request_id] = self._engine.send(message, deliver)

    def _let_go(self, request_id: str) -> Callable[[], None] | None:
        """Forget a request; what withdraws it, if it was here."""
        withdraw = self.open.pop(request_id, None)
        self._node.note_end()
        return withdraw

    async def _answer(self, message: ToEngine) -> None:
        """Carry a command out and send the reply."""
        engine, reply = self._engine, Done(id=message.id)
        try:
            match message:
                case ExportKV():
                    at = {"over": "tcp", "listen": self._here, "cluster_key": self._node._key}
                    self.write(await engine.export_kv(msgspec.structs.replace(message, **at)))
                    return
                case Embed():
                    vectors = await engine.embed(message.prompts, message.adapter)
                    self.write(Embedded(id=message.id, vectors=vectors))
                    return
                case LoadAdapter():
                    await engine.load_adapter(message.name, message.path)
                case UnloadAdapter():
                    await engine.unload_adapter(message.name)
                case ForgetPrefixes():
                    await engine.forget_prefixes()
        except RequestRefused as refused:
            self.write(msgspec.structs.replace(refused.refusal, id=message.id))
            return
        self.write(self._engine.stats)  # before the `Done`: it names the adapters
        self.write(reply)


def keep_alive(connection: socket.socket) -> None:
    """Notice, by the kernel, when the other host has gone without a word."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        option = getattr(socket, name, None)  # not every system has all of them
        if option is not None:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
