"""Several engines behind one router, with stand-ins for the engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from ridgeline.serve.cluster.router import Router
from ridgeline.serve.messages import (
    Delta,
    MemoryLedger,
    Ready,
    Refused,
    Sampling,
    Stats,
    Submit,
)
from ridgeline.serve.process.client import Deliver, RequestRefused, stream

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


LEDGER = MemoryLedger(
    rows=(),
    total_bytes=10,
    limit_bytes=20,
    num_blocks=100,
    block_size=16,
    bytes_per_token=4,
    tokens=1600,
    max_length=256,
    largest_concurrency=6.25,
    layers="all in one operator",
)
QUIET = Stats(
    at=0.0,
    running=0,
    waiting=0,
    cache_usage=0.5,
    steps=1,
    prompt_tokens=1,
    generation_tokens=1,
    prefix_queries=0,
    prefix_hits=0,
    preemptions=0,
    wasted_tokens=0,
)


class Link:
    """An engine that answers with three tokens, or as it is told."""

    def __init__(self) -> None:
        self.ready: Ready | None = Ready(model="m", ledger=LEDGER, max_length=256, vocab=9)
        self.stats: Stats | None = QUIET
        self.heartbeat_age_seconds = 0.0
        self.got: list[str] = []
        self.aborted: list[str] = []
        self.adapters: dict[str, str] = {}
        self.refuses = 0
        self.dies_after: int | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    def send(self, submit: Submit, deliver: Deliver) -> Callable[[], None]:
        async def pump() -> None:
            try:
                async for delta in self._deltas(submit):
                    deliver(delta)
                    await asyncio.sleep(0.001)  # as between the steps of an engine
            except RequestRefused as refused:
                deliver(refused.refusal)

        task = asyncio.create_task(pump())
        return task.cancel  # type: ignore[return-value]

    async def _deltas(self, submit: Submit) -> AsyncIterator[Delta]:
        self.got.append(submit.id)
        if self.refuses:
            raise refusal(self.refuses)
        for index in range(3):
            await self.gate.wait()
            if index == self.dies_after:
                self.ready = None
                raise refusal(503)
            yield Delta(
                id=submit.id, tokens=(index,), finish_reason="length" if index == 2 else None
            )

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    async def embed(self, prompts: Any, adapter: str = "") -> Any:
        if self.refuses:
            raise refusal(self.refuses)
        self.got.append("embed")
        return tuple((1.0,) for _ in prompts)

    async def load_adapter(self, name: str, path: str) -> None:
        if self.refuses:
            raise refusal(self.refuses)
        self.adapters[name] = path

    async def unload_adapter(self, name: str) -> None:
        del self.adapters[name]


def refusal(status: int) -> RequestRefused:
    return RequestRefused(Refused(id="x", message="no", status=status))


def request(name: str, prompt: tuple[int, ...] = (1, 2, 3)) -> Submit:
    return Submit(id=name, prompt=prompt, sampling=Sampling())


async def answer(router: Router, submit: Submit) -> list[int]:
    return [token async for delta in stream(router, submit) for token in delta.tokens]


async def test_requests_spread_over_the_replicas() -> None:
    links = [Link(), Link()]
    router = Router(links)
    assert await answer(router, request("a", (1,) * 32)) == [0, 1, 2]
    assert await answer(router, request("b", (2,) * 32)) == [0, 1, 2]
    assert [link.got for link in links] == [["a"], ["b"]]


async def test_the_next_turn_of_a_conversation_goes_where_the_last_one_was() -> None:
    links = [Link(), Link()]
    router = Router(links, block_size=4)
    prompt = tuple(range(10, 21))
    await answer(router, request("a", prompt))
    await answer(router, request("b", (5,) * 4))
    await answer(router, request("c", (*prompt, 0, 1, 2, 30, 31)))
    assert links[0].got == ["a", "c"]


@pytest.mark.parametrize("status", [404, 429, 503])
async def test_what_one_replica_cannot_take_goes_to_another(status: int) -> None:
    links = [Link(), Link()]
    links[0].refuses = status
    assert await answer(Router(links), request("a")) == [0, 1, 2]
    assert links[1].got == ["a"]


async def test_a_bad_request_is_refused_once() -> None:
    links = [Link(), Link()]
    for link in links:
        link.refuses = 400
    with pytest.raises(RequestRefused):
        await answer(Router(links), request("a"))
    assert [len(link.got) for link in links] == [1, 0]


async def test_an_answer_that_is_cut_off_ends_with_the_error_and_is_not_begun_again() -> None:
    links = [Link(), Link()]
    links[0].dies_after = 1
    router, tokens = Router(links), []

    async def read() -> None:
        async for delta in stream(router, request("a")):
            tokens.extend(delta.tokens)

    with pytest.raises(RequestRefused) as caught:
        await read()
    assert caught.value.refusal.status == 503
    assert tokens == [0]
    assert links[1].got == []
    assert await answer(router, request("b")) == [0, 1, 2]
    assert links[1].got == ["b"]


async def test_silent_replicas_get_nothing_and_without_any_the_answer_is_503() -> None:
    links = [Link(), Link()]
    router = Router(links)
    links[0].heartbeat_age_seconds = 100.0
    await answer(router, request("a"))
    assert links[0].got == []
    links[1].ready = None
    with pytest.raises(RequestRefused) as caught:
        await answer(router, request("b"))
    assert caught.value.refusal.status == 503
    assert router.ready is not None  # the silent one may come back


async def test_draining_waits_for_what_is_open_and_sends_nothing_new() -> None:
    links = [Link(), Link()]
    router = Router(links)
    links[0].gate.clear()
    first = asyncio.create_task(answer(router, request("a")))
    await asyncio.sleep(0)
    draining = asyncio.create_task(router.drain(0))
    await answer(router, request("b", (1, 2, 3)))
    assert not draining.done()
    links[0].gate.set()
    assert await first == [0, 1, 2]
    await draining
    assert links[0].got == ["a"]
    router.resume(0)
    await answer(router, request("c", (7,) * 3))
    assert links[0].got == ["a", "c"]


async def test_closing_early_leaves_nothing_open() -> None:
    link = Link()
    router = Router([link])
    async with aclosing(stream(router, request("a"))) as deltas:
        async for _ in deltas:
            router.abort("a")
            break
    assert link.aborted == ["a"]
    assert router.replicas[0].open == {}
    await router.drain(0)


async def test_an_adapter_is_loaded_everywhere_or_nowhere() -> None:
    links = [Link(), Link()]
    router = Router(links)
    await router.load_adapter("a", "path")
    assert [link.adapters for link in links] == [{"a": "path"}] * 2
    links[1].refuses = 400
    with pytest.raises(RequestRefused):
        await router.load_adapter("b", "path")
    assert [link.adapters for link in links] == [{"a": "path"}] * 2
    await router.unload_adapter("a")
    assert [link.adapters for link in links] == [{}, {}]


async def test_who_is_down_has_the_adapters_of_the_others_when_it_comes_back() -> None:
    links = [Link(), Link()]
    router = Router(links)
    await router.load_adapter("old", "path")
    ready, links[1].ready = links[1].ready, None
    await router.load_adapter("new", "path")
    await router.unload_adapter("old")
    assert [link.adapters for link in links] == [{"new": "path"}] * 2
    links[1].ready = ready
    assert router.adapters == {"new": "path"}


async def test_embeddings_go_to_one_replica() -> None:
    links = [Link(), Link()]
    assert await Router(links).embed(((1, 2), (3,))) == ((1.0,), (1.0,))
    assert sorted(len(link.got) for link in links) == [0, 1]


async def test_embeddings_by_an_adapter_go_where_it_is() -> None:
    links = [Link(), Link()]
    links[0].refuses = 404
    assert await Router(links).embed(((1, 2),), "a") == ((1.0,),)
    with pytest.raises(RequestRefused):
        await Router(links[:1]).embed(((1, 2),), "a")


async def test_the_router_speaks_for_all_of_them() -> None:
    links = [Link(), Link()]
    router = Router(links)
    stats, ready = router.stats, router.ready
    assert stats is not None
    assert ready is not None
    assert (stats.steps, stats.cache_usage) == (2, 0.5)
    assert (ready.ledger.num_blocks, ready.max_length) == (200, 256)
    assert router.heartbeat_age_seconds == 0.0
