"""Prefill in one engine process, decode in another: real processes, a really trained model."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from ridgeline.serve.cluster.disaggregated import KV_ENGINE, Disaggregated
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Delta, Sampling, Submit
from ridgeline.serve.process.client import RequestRefused, stream
from ridgeline.serve.process.supervisor import Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.multiprocess, pytest.mark.slow]
MODEL = Path(__file__).parents[3] / "examples" / "models" / "library"
CONFIG = EngineConfig(
    model=str(MODEL), dtype="fp32", device="cpu", kv_bytes=1 << 23, threads=1, debug=True
)
PROMPT = tuple(range(300, 345))
GREEDY = Sampling(temperature=0.0, max_tokens=24)


@dataclass(frozen=True)
class Pair:
    prefill: Supervisor
    decode: Supervisor

    def link(self, over: Literal["memory", "tcp"] = "memory") -> Disaggregated:
        return Disaggregated([self.prefill.client], [self.decode.client], over=over)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def pair(anyio_backend: str) -> AsyncIterator[Pair]:
    pair = Pair(Supervisor(CONFIG, KV_ENGINE), Supervisor(CONFIG, KV_ENGINE))
    both = (pair.prefill, pair.decode)
    await asyncio.gather(*(one.start() for one in both))
    watching = [asyncio.create_task(one.watch()) for one in both]
    yield pair
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    await asyncio.gather(*(one.stop() for one in both))


async def answer(link: Any, name: str, sampling: Sampling, **more: Any) -> list[Delta]:
    submit = Submit(id=name, prompt=PROMPT, sampling=sampling, **more)
    return [delta async for delta in stream(link, submit)]


def tokens(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.tokens]


def text(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.mark.parametrize("over", ["memory", "tcp"])
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        Sampling(temperature=0.0, max_tokens=24, repetition_penalty=1.3, presence_penalty=0.5),
        Sampling(temperature=0.9, max_tokens=24, seed=7, top_k=50),
        Sampling(temperature=0.0, max_tokens=1),
        Sampling(temperature=0.0, max_tokens=2),
        Sampling(temperature=0.0, max_tokens=24, logprobs=2),
    ],
    ids=["greedy", "penalties", "seeded", "one token", "two tokens", "logprobs"],
)
async def test_the_answer_is_that_of_one_engine(
    over: Literal["memory", "tcp"], sampling: Sampling, pair: Pair
) -> None:
    apart = await answer(pair.link(over), f"apart-{over}", sampling)
    whole = await answer(pair.decode.client, f"whole-{over}", sampling)
    assert tokens(apart) == tokens(whole)
    assert text(apart) == text(whole)
    assert [len(delta.logprobs) for delta in apart if delta.tokens] == [
        len(delta.logprobs) for delta in whole if delta.tokens
    ]
    ends = [delta for delta in apart if delta.finish_reason is not None]
    assert ends == apart[-1:]
    last, expected = apart[-1], whole[-1]
    assert last.finish_reason == expected.finish_reason == "length"
    assert last.prompt_tokens == len(PROMPT)
    assert last.output_tokens == expected.output_tokens == sampling.max_tokens
    assert last.times is not None
    assert last.times.first_token is not None
    assert last.times.finished is not None
    assert last.times.first_token <= last.times.finished


async def test_a_stop_string_across_the_hand_over_is_found(pair: Pair) -> None:
    whole = await answer(pair.decode.client, "find", GREEDY)
    said = text(whole)
    first = next(len(delta.text) for delta in whole if delta.text)
    stop = said[max(0, first - 1) : first + 3]
    sampling = Sampling(temperature=0.0, max_tokens=24, stop=(stop,))
    apart = await answer(pair.link(), "stop", sampling)
    assert apart[-1].finish_reason == "stop"
    assert apart[-1].stop_reason == stop
    assert text(apart) == said[: said.index(stop)]


async def test_many_at_once_come_out_right_and_leave_nothing(pair: Pair) -> None:
    link = pair.link()
    before = set(os.listdir("/dev/shm"))
    many = [answer(link, f"many-{i}", GREEDY) for i in range(12)]
    answers = await asyncio.gather(*many)
    assert len({tuple(tokens(one)) for one in answers}) == 1
    assert await _until(lambda: _usage(pair) == (0, 0))
    assert set(os.listdir("/dev/shm")) <= before


async def test_several_answers_are_decoded_whole(pair: Pair) -> None:
    deltas = await answer(pair.link(), "two", Sampling(max_tokens=4, seed=1), n=2)
    assert {delta.index for delta in deltas} == {0, 1}


async def test_a_bad_request_is_refused_and_a_closed_one_leaves_nothing(pair: Pair) -> None:
    with pytest.raises(RequestRefused) as caught:
        await answer(pair.link(), "bad", Sampling(temperature=-1.0))
    assert caught.value.refusal.status == 400
    submit = Submit(id="closed", prompt=PROMPT, sampling=Sampling(max_tokens=100, ignore_eos=True))
    async with aclosing(stream(pair.link(), submit)) as deltas:
        async for _ in deltas:
            break
    assert await _until(lambda: _usage(pair) == (0, 0))


@pytest.mark.slow
@pytest.mark.parametrize("which", ["prefill", "decode"])
async def test_after_a_kill_the_request_fails_cleanly_and_the_next_one_works(
    which: str, pair: Pair
) -> None:
    victim: Supervisor = getattr(pair, which)
    expected = tokens(await answer(pair.link(), "before", GREEDY))
    link = pair.link()
    endless = Sampling(temperature=0.0, max_tokens=200, ignore_eos=True)

    async def killed() -> None:
        submit = Submit(id="killed", prompt=PROMPT, sampling=endless)
        async with aclosing(stream(link, submit)) as deltas:
            if which == "prefill":
                _kill(victim)
            async for _ in deltas:
                if victim.client.up.is_set():
                    _kill(victim)

    with pytest.raises(RequestRefused) as caught:
        await killed()
    assert caught.value.refusal.status == 503
    await asyncio.wait_for(victim.client.up.wait(), 90.0)
    assert tokens(await answer(link, "after", GREEDY)) == expected


def _kill(victim: Supervisor) -> None:
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.client.up.clear()


def _usage(pair: Pair) -> tuple[float, float] | None:
    both = pair.prefill.client.stats, pair.decode.client.stats
    if both[0] is None or both[1] is None or both[0].running + both[1].running:
        return None
    return both[0].cache_usage, both[1].cache_usage


async def _until(holds: Any, seconds: float = 60.0) -> bool:
    """Whether it holds in time: heartbeats come twice a second."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - what a heartbeat says has no event
            await asyncio.sleep(0.05)
    return True
