"""A front and engines of other hosts over real connections, with stand-ins for the engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest
from tests.serve.cluster.test_router import LEDGER, QUIET

from ridgeline.errors import InputError
from ridgeline.serve.cluster.handshake import FIRST_BYTES, MAGIC
from ridgeline.serve.cluster.node import EngineNode
from ridgeline.serve.cluster.node_words import EngineIdentity, Role
from ridgeline.serve.cluster.remote import RemoteEngines, RemoteHosts
from ridgeline.serve.messages import (
    Delta,
    Exported,
    ExportKV,
    ImportKV,
    Ready,
    Refused,
    Sampling,
    Stats,
    Submit,
)
from ridgeline.serve.process.client import Deliver, RequestRefused, stream

pytestmark = pytest.mark.anyio
KEY = "a key of the cluster"
MODEL = EngineIdentity(
    config="c", tokenizer="t", weights="w", weight_format="model", dtype="float32",
    kv_form="float32", block_size=16,
)  # fmt: skip


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Engine:
    """Says its own name as every token: 1 is prefilled, then 2 and 3 decoded, unless it is told."""

    def __init__(self) -> None:
        self.ready: Ready | None = Ready(model="m", ledger=LEDGER, max_length=256, vocab=9)
        self.stats: Stats | None = QUIET
        self.adapters: dict[str, str] = {}
        self.got: list[Submit | ImportKV | ExportKV] = []
        self.let_go: list[str] = []
        self.refuses = False
        self.waits = False

    def send(self, submit: Submit | ImportKV, deliver: Deliver) -> Callable[[], None]:
        self.got.append(submit)
        loop, name = asyncio.get_running_loop(), submit.id
        if self.refuses:
            loop.call_soon(deliver, Refused(id=name, message="it ended", status=503))
        elif isinstance(submit, Submit) and not self.waits:
            first = Delta(id=name, tokens=(1,), finish_reason="handover", prompt_tokens=3)
            loop.call_soon(deliver, first)
        elif not self.waits:
            loop.call_soon(deliver, Delta(id=name, tokens=(2,)))
            loop.call_soon(deliver, Delta(id=name, tokens=(3,), finish_reason="length"))
        return lambda: self.let_go.append(f"withdrawn {name}")

    async def export_kv(self, message: ExportKV) -> Exported:
        self.got.append(message)
        return Exported(id=message.id, address="tcp:there", bytes=9)

    def release_kv(self, request_id: str) -> None:
        self.let_go.append(f"released {request_id}")

    def abort(self, request_id: str) -> None:
        self.let_go.append(f"aborted {request_id}")


class Host:
    """An engine and the port at which fronts reach it, which can be closed and opened again."""

    def __init__(self, role: Role, identity: EngineIdentity = MODEL, key: str = KEY) -> None:
        self.engine = Engine()
        self.node = EngineNode(self.engine, role, identity, key)  # type: ignore[arg-type]
        self.port = 0
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self.engine.ready = Ready(model="m", ledger=LEDGER, max_length=256, vocab=9)
        self._server = await asyncio.start_server(self.node.serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.engine.ready = None  # its connections end with that


@asynccontextmanager
async def cluster(hosts: list[Host], key: str = KEY) -> AsyncIterator[RemoteEngines]:
    for host in hosts:
        await host.open()
    where = {
        role: tuple(f"http://127.0.0.1:{one.port}" for one in hosts if one.node._hello.role == role)
        for role in ("prefill", "decode")
    }
    front = RemoteEngines(RemoteHosts(**where, cluster_key=key, config="c"))
    try:
        await front.start()
        yield front
    finally:
        await front.stop()
        for host in hosts:
            host.close()


def two_of_each() -> list[Host]:
    return [Host("prefill"), Host("prefill"), Host("decode"), Host("decode")]


async def answer(front: RemoteEngines, name: str) -> list[int]:
    submit = Submit(id=name, prompt=(5, 6, 7), sampling=Sampling())
    return [token async for delta in stream(front.link, submit) for token in delta.tokens]


async def test_what_an_engine_refuses_or_takes_along_is_done_by_the_others() -> None:
    hosts = two_of_each()
    prefills, decodes = [one.engine for one in hosts[:2]], [one.engine for one in hosts[2:]]
    async with cluster(hosts) as front:
        prefills[0].refuses = decodes[0].refuses = True
        for name in ("a", "b"):
            assert await answer(front, name) == [1, 2, 3]
        # Each went through the engines that work, and its KV's way was proven and let go.
        assert [one.id for one in decodes[1].got] == ["a", "b"]
        assert all(isinstance(one, ImportKV) and one.cluster_key == KEY for one in decodes[1].got)
        asked = next(one for one in prefills[1].got if isinstance(one, ExportKV))
        assert (asked.over, asked.listen, asked.cluster_key) == ("tcp", "127.0.0.1", KEY)
        await until(lambda: prefills[1].let_go == ["released a", "released b"])
        assert not any(host.node.num_requests for host in hosts)


async def test_a_killed_engine_ends_what_it_had_and_is_taken_back() -> None:
    hosts = two_of_each()
    async with cluster(hosts) as front:
        for host in hosts[2:]:
            host.engine.waits = True
        cut_off = asyncio.create_task(answer(front, "cut off"))
        await until(lambda: any(host.engine.got for host in hosts[2:]))
        victim = next(host for host in hosts[2:] if host.engine.got)
        victim.close()
        other = next(host for host in hosts[2:] if host is not victim)
        other.engine.waits = False
        assert await cut_off == [1, 2, 3]  # nothing had been decoded: the other one does it
        states = {one.address[-5:].strip(":"): one.up for one in front.report()}
        assert states[str(victim.port)] is False
        other.close()
        await until(lambda: [one.up for one in front.report()] == [True, True, False, False])
        with pytest.raises(RequestRefused) as caught:
            await answer(front, "nobody")
        assert caught.value.refusal.status == 503
        victim.engine.waits = False
        await victim.open()
        await other.open()
        await until(lambda: all(one.up for one in front.report()))
        assert await answer(front, "after") == [1, 2, 3]


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (Host("decode", msgspec.structs.replace(MODEL, weights="x")), "the weights beside it"),
        (Host("decode", msgspec.structs.replace(MODEL, config="x")), "the config.json there is"),
        (Host("decode", msgspec.structs.replace(MODEL, dtype="bfloat16")), "--dtype is bfloat16"),
        (Host("decode", msgspec.structs.replace(MODEL, block_size=32)), "--block-size is 32"),
    ],
    ids=["weights", "config", "dtype", "block size"],
)
async def test_an_engine_of_another_kind_is_refused_in_one_line(odd: Host, why: str) -> None:
    hosts = [Host("prefill"), Host("decode"), odd]
    with pytest.raises(InputError) as caught:
        async with cluster(hosts):
            pass
    assert str(caught.value).startswith(f"--decode http://127.0.0.1:{odd.port}: it")
    assert why in str(caught.value)


async def test_an_engine_named_by_the_wrong_option_or_with_another_key_is_not_used() -> None:
    host, other = Host("prefill"), Host("decode", key="the key of another cluster")
    await host.open()
    await other.open()
    addresses = [f"127.0.0.1:{one.port}" for one in (host, other)]
    swapped = RemoteHosts(prefill=(addresses[1],), decode=(addresses[0],), cluster_key=KEY)
    front = RemoteEngines(swapped)
    try:
        with pytest.raises(InputError, match="it is a prefill engine; name it by --prefill"):
            await front.start()
        assert "another cluster key" in front.report()[0].why
        assert not other.engine.got
    finally:
        await front.stop()
        host.close()
        other.close()


async def test_without_a_proof_a_host_says_how_it_is_and_nothing_else() -> None:
    host = Host("prefill")
    await host.open()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{host.port}") as client:
        health = await client.get("/health")
        assert (health.status_code, health.json()["role"]) == (200, "prefill")
        assert (await client.post("/v1/completions", json={})).status_code == 404
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    writer.write(MAGIC.ljust(FIRST_BYTES, b"x") + bytes(32))
    reply = await reader.read()
    assert len(reply) == 64  # its random bytes and its proof, then it hung up
    assert not host.engine.got
    writer.close()
    host.close()


async def until(holds: Callable[[], Any]) -> None:
    """Wait for what comes over a connection, for which there is no event here."""
    async with asyncio.timeout(120.0):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
