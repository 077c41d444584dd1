"""The client against an engine that the test plays."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest

from ridgeline.serve.messages import (
    Abort,
    Delta,
    Done,
    Embed,
    Embedded,
    LoadAdapter,
    MemoryLedger,
    Ready,
    Refused,
    Sampling,
    Submit,
)
from ridgeline.serve.process.client import EngineClient, RequestRefused, stream
from ridgeline.serve.process.frames import frame, next_frame, to_engine

LEDGER = MemoryLedger(
    rows=(), total_bytes=0, limit_bytes=0, num_blocks=1, block_size=1, bytes_per_token=1,
    tokens=1, max_length=8, largest_concurrency=1.0, layers="all in one operator",
)  # fmt: skip
READY = Ready(model="m", ledger=LEDGER, max_length=8, vocab=10)
SUBMIT = Submit(id="a", prompt=(1,), sampling=Sampling(), n=2)


class Played:
    """The engine's end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def say(self, *messages: Any) -> None:
        self.writer.write(frame(list(messages)))

    async def hear(self) -> Any:
        body = await next_frame(self._reader)
        assert body is not None
        (message,) = to_engine.decode(body)
        return message


def play(scene: Callable[[EngineClient, Played], Awaitable[None]]) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        client = EngineClient()
        serving = asyncio.create_task(client.serve(*await asyncio.open_connection(sock=ours)))
        played = Played(*await asyncio.open_connection(sock=theirs))
        played.say(READY)
        await client.up.wait()
        async with asyncio.timeout(30):
            await scene(client, played)
        played.writer.close()
        await serving
        assert not client._open
        assert client.ready is None

    asyncio.run(run())


def test_deltas_come_until_every_answer_has_ended() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        found: list[Delta] = []

        async def read() -> None:
            found.extend([delta async for delta in stream(client, SUBMIT)])

        reading = asyncio.create_task(read())
        assert await engine.hear() == SUBMIT
        engine.say(Delta(id="a", index=0, finish_reason="stop"), Delta(id="other"))
        engine.say(Delta(id="a", index=1, text="x"))
        engine.say(Delta(id="a", index=1, finish_reason="length"), Delta(id="a", text="late"))
        await reading
        assert [(one.index, one.finish_reason) for one in found] == [
            (0, "stop"), (1, None), (1, "length"),
        ]  # fmt: skip

    play(scene)


def test_leaving_early_aborts() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        async with aclosing(stream(client, SUBMIT)) as deltas:
            asking = asyncio.create_task(anext(deltas))
            await engine.hear()
            engine.say(Delta(id="a", text="x"))
            await asking
        assert await engine.hear() == Abort(id="a")

    play(scene)


def test_a_refusal_is_an_error_and_no_abort_follows() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        asking = asyncio.create_task(anext(stream(client, SUBMIT)))
        await engine.hear()
        engine.say(Refused(id="a", message="full", status=429))
        with pytest.raises(RequestRefused, match="full") as caught:
            await asking
        assert caught.value.refusal.status == 429
        client.abort("b")
        assert await engine.hear() == Abort(id="b")

    play(scene)


def test_an_engine_that_ends_refuses_what_is_open() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        asking = asyncio.create_task(anext(stream(client, SUBMIT)))
        embedding = asyncio.create_task(client.embed(((1,),)))
        await engine.hear()
        engine.writer.close()
        for task in (asking, embedding):
            with pytest.raises(RequestRefused, match="ended while") as caught:
                await task
            assert caught.value.refusal.status == 503
        with pytest.raises(RequestRefused, match="not up"):
            await anext(stream(client, SUBMIT))

    play(scene)


def test_commands_get_their_own_answers() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        embedding = asyncio.create_task(client.embed(((1, 2),)))
        asked = await engine.hear()
        assert isinstance(asked, Embed)
        loading = asyncio.create_task(client.load_adapter("name", "path"))
        wanted = await engine.hear()
        assert isinstance(wanted, LoadAdapter)
        engine.say(Done(id=wanted.id), Embedded(id=asked.id, vectors=((0.5,),)))
        assert await embedding == ((0.5,),)
        await loading

    play(scene)


def test_two_requests_with_one_id_are_refused() -> None:
    async def scene(client: EngineClient, engine: Played) -> None:
        first = stream(client, SUBMIT)
        asking = asyncio.create_task(anext(first))
        await engine.hear()
        with pytest.raises(RequestRefused, match="in use"):
            await anext(stream(client, SUBMIT))
        engine.say(Delta(id="a"))
        await asking
        await first.aclose()

    play(scene)
