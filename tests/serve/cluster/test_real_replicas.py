"""Two real engine processes behind the router: one of them killed, or coming and going."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from ridgeline.batching.scaling.policies import OpenRequests, Stabilised
from ridgeline.serve.cluster.autoscaler import Autoscaler
from ridgeline.serve.cluster.router import Router
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.process.client import RequestRefused, stream
from ridgeline.serve.process.supervisor import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.multiprocess, pytest.mark.slow]
MODEL = Path(__file__).parents[3] / "examples" / "models" / "library"
CONFIG = EngineConfig(model=str(MODEL), dtype="fp32", device="cpu", kv_bytes=1 << 23, threads=1)
REQUESTS, COUNT = 10, 120


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def answer(router: Router, number: int, count: int) -> list[int]:
    submit = Submit(
        id=f"{number}-{count}",
        prompt=tuple(range(300 + number, 340 + number)),
        sampling=Sampling(temperature=0.0, max_tokens=count, ignore_eos=True),
    )
    return [token async for delta in stream(router, submit) for token in delta.tokens]


async def test_a_killed_replica_takes_only_what_it_was_answering() -> None:
    both = [Supervisor(CONFIG), Supervisor(CONFIG)]
    await asyncio.gather(*(one.start() for one in both))
    watching = [asyncio.create_task(one.watch()) for one in both]
    router = Router([one.client for one in both])
    try:
        open_answers = [asyncio.create_task(answer(router, i, COUNT)) for i in range(REQUESTS)]
        victim = both[0]
        async with asyncio.timeout(30.0):
            while 0 not in router.replicas[0].open.values():  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.001)
        cut_off = {name for name, pending in router.replicas[0].open.items() if pending == 0}
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        results = await asyncio.gather(*open_answers, return_exceptions=True)
        failed = {
            f"{i}-{COUNT}" for i, one in enumerate(results) if isinstance(one, RequestRefused)
        }
        assert cut_off <= failed
        assert len(failed) < REQUESTS
        whole = [one for one in results if isinstance(one, list)]
        assert len(whole) + len(failed) == REQUESTS
        assert all(len(one) == COUNT for one in whole)
        assert len(await answer(router, 99, 5)) == 5  # the other one goes on
        await asyncio.wait_for(victim.client.up.wait(), 90.0)
        await asyncio.wait_for(router.drain(1), 5.0)
        assert len(await answer(router, 98, 5)) == 5  # by the one that came back
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        await asyncio.gather(*(one.stop() for one in both))


async def test_a_second_engine_comes_and_goes_under_load_and_answers_stay_the_same() -> None:
    policy = Stabilised(
        policy=OpenRequests(per_replica=4, every_seconds=0.1), maximum=2, down_window_seconds=1.0
    )
    both = [Supervisor(CONFIG), Supervisor(CONFIG)]
    router = Router([one.client for one in both])
    scaler = Autoscaler(both, router, policy, 1)
    await scaler.start()
    watching = asyncio.create_task(scaler.watch())
    try:
        alone = [await answer(router, number, 60) for number in range(REQUESTS)]
        found: list[asyncio.Task[list[int]]] = []
        async with asyncio.timeout(90.0):
            while scaler.report().ready < 2:
                if sum(not one.done() for one in found) < REQUESTS:
                    found.append(asyncio.create_task(answer(router, 100 + len(found), COUNT)))
                await asyncio.sleep(0.05)
        assert {len(one) for one in await asyncio.gather(*found)} == {COUNT}
        burst = [asyncio.create_task(answer(router, number, 60)) for number in range(REQUESTS)]
        assert await asyncio.gather(*burst) == alone
        async with asyncio.timeout(30.0):
            while scaler.report().draining or scaler.report().ready > 1:  # noqa: ASYNC110 - has no event
                await asyncio.sleep(0.05)
        assert await answer(router, 3, 60) == alone[3]
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await scaler.stop()
