"""Replicas that come and go: real processes around the stub engine, under load and under fire."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from ridgeline.batching.scaling.policies import Observation, OpenRequests, Policy, Stabilised
from ridgeline.errors import RidgelineError
from ridgeline.serve.cluster.autoscaler import Autoscaler, ReplicaSlot
from ridgeline.serve.cluster.router import Router
from ridgeline.serve.cluster.slo_attainment import SloAttainment
from ridgeline.serve.config import EngineConfig
from ridgeline.serve.messages import Sampling, Submit
from ridgeline.serve.process.client import RequestRefused, stream
from ridgeline.serve.process.supervisor import EngineLost, Supervisor

pytestmark = [pytest.mark.anyio, pytest.mark.multiprocess]
MODEL = Path(__file__).parents[3] / "examples" / "models" / "library"
STUB = "tests.serve.stub_engine:StubEngine"
CONFIG = EngineConfig(model=str(MODEL), threads=1)
DEAD = EngineConfig(model=str(MODEL), threads=1, max_sequences=15)
"""The stub kills itself when it is started with it."""
EVERY = 0.05


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[3]
    monkeypatch.setenv("PYTHONPATH", f"{root / 'src'}:{root}")


class Wanted:
    """A policy that wants what the test says."""

    every_seconds = EVERY

    def __init__(self, number: int = 1) -> None:
        self.number = number

    def desired(self, observation: Observation, now: float) -> int:
        return self.number


@contextlib.asynccontextmanager
async def fleet(
    policy: Policy, *configs: EngineConfig, attainment: SloAttainment | None = None
) -> AsyncIterator[Autoscaler]:
    """One replica of as many as there are configurations, and the policy at work."""
    supervisors = [Supervisor(config, STUB) for config in configs]
    router = Router([one.client for one in supervisors], attainment=attainment)
    scaler = Autoscaler(supervisors, router, policy, 1)
    await scaler.start()
    watching = asyncio.create_task(scaler.watch())
    try:
        yield scaler
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await scaler.stop()


async def until(true: Callable[[], bool], what: str) -> None:
    try:
        async with asyncio.timeout(120.0):
            while not true():  # noqa: ASYNC110 - other processes have no event for us
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited in vain for {what}")


PROMPT = tuple(Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("SLOW FILL").ids)


async def answer(scaler: Autoscaler, name: str, count: int) -> int:
    """Tokens that came, 20 ms each."""
    sampling = Sampling(max_tokens=count)
    submit = Submit(id=name, prompt=PROMPT, sampling=sampling)
    return sum([len(delta.tokens) async for delta in stream(scaler.router, submit)])


def states(scaler: Autoscaler) -> list[str]:
    return [slot.state for slot in scaler.slots]


def gone(pid: int | None) -> bool:
    assert pid is not None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


@pytest.mark.alone  # where its long requests lie when the burst ends is a matter of time
async def test_a_burst_brings_replicas_and_its_end_takes_them_without_a_lost_request() -> None:
    policy = Stabilised(
        policy=OpenRequests(per_replica=4, every_seconds=EVERY), maximum=3, down_window_seconds=0.2
    )
    async with fleet(policy, CONFIG, CONFIG, CONFIG) as scaler:
        sent: list[asyncio.Task[int]] = []

        def send(count: int, tokens: int = 30) -> None:
            for _ in range(count):
                sent.append(asyncio.create_task(answer(scaler, str(len(sent)), tokens)))

        async with asyncio.timeout(90.0):
            while scaler.report().ready < 3:
                send(12 - sum(not one.done() for one in sent))
                await asyncio.sleep(0.01)
        pids = [slot.supervisor.pid for slot in scaler.slots]
        short = len(sent)
        async with asyncio.timeout(90.0):
            while not _drains_with_requests(scaler):
                # Three are on at least two replicas, so that one of these is drained with it.
                send(3 - sum(not one.done() for one in sent[short:]), tokens=80)
                await asyncio.sleep(0.01)
        before = scaler.router.stats
        assert await asyncio.gather(*sent) == [30] * short + [80] * (len(sent) - short)
        await until(lambda: states(scaler).count("stopped") == 2, "two replicas' end")
        assert sum(gone(pid) for pid in pids) == 2
        report = scaler.report()
        assert (report.desired, report.ready, report.starting, report.draining) == (1, 1, 0, 0)
        assert report.startup_seconds is not None
        assert report.replica_seconds > 2 * report.startup_seconds
        after = scaler.router.stats  # what those that have gone had counted is counted still
        assert before is not None
        assert after is not None
        assert after.generation_tokens > before.generation_tokens


def _drains_with_requests(scaler: Autoscaler) -> bool:
    drained = [slot.index for slot in scaler.slots if slot.state == "draining"]
    return any(scaler.router.replicas[index].open for index in drained)


@pytest.mark.slow
async def test_kill_nine_while_scaling_loses_nothing_but_clean_errors() -> None:
    policy = Wanted(1)
    async with fleet(policy, CONFIG, CONFIG) as scaler:
        sent = [asyncio.create_task(answer(scaler, f"a{i}", 60)) for i in range(4)]
        policy.number = 2
        await until(lambda: scaler.slots[1].supervisor.pid is not None, "a second process")
        first = scaler.slots[1].supervisor.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)  # it was still starting
        await until(lambda: scaler.report().ready == 2, "another second replica")
        assert scaler.slots[1].supervisor.pid != first
        assert await asyncio.gather(*sent) == [60] * 4

        sent = await _sent_to_both(scaler, "b")
        await _killed(scaler, scaler.slots[1], sent)  # it was answering
        await until(lambda: scaler.report().ready == 2, "its return")
        sent = await _sent_to_both(scaler, "c")
        policy.number = 1
        await until(lambda: "draining" in states(scaler), "a drain")
        drained = next(slot for slot in scaler.slots if slot.state == "draining")
        await _killed(scaler, drained, sent)  # it was finishing what it had
        await until(lambda: drained.state == "stopped", "its end")
        assert await answer(scaler, "d", 5) == 5


async def _sent_to_both(scaler: Autoscaler, names: str) -> dict[str, asyncio.Task[int]]:
    """Eight requests, some of them begun on either replica."""
    sent = {
        name: asyncio.create_task(answer(scaler, name, 60))
        for name in (f"{names}{i}" for i in range(8))
    }
    replicas = scaler.router.replicas
    await until(lambda: all(0 in one.open.values() for one in replicas), "first tokens of both")
    return sent


async def _killed(
    scaler: Autoscaler, slot: ReplicaSlot, sent: dict[str, asyncio.Task[int]]
) -> None:
    """Kill a replica: what it had begun ends with a clean error, all else is answered whole."""
    had = scaler.router.replicas[slot.index].open
    there = set(had)
    begun = {name for name, pending in had.items() if pending == 0}
    pid = slot.supervisor.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    found = await asyncio.gather(*sent.values(), return_exceptions=True)
    results = dict(zip(sent, found, strict=True))
    cut = {name for name, one in results.items() if isinstance(one, RequestRefused)}
    assert begun <= cut <= there
    assert all(results[name].refusal.status == 503 for name in cut)
    assert [one for name, one in results.items() if name not in cut] == [60] * (8 - len(cut))


@pytest.mark.slow
async def test_starts_that_fail_are_tried_again_later_and_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    policy = Wanted(2)
    with caplog.at_level(logging.INFO, "ridgeline.serve"):
        async with fleet(policy, CONFIG, DEAD) as scaler:
            await until(lambda: len(_delays(caplog)) >= 2, "two failures")
            assert _delays(caplog)[:2] == [0.25, 0.5]
            assert await answer(scaler, "a", 5) == 5  # by the one that is there
            assert scaler.report().ready == 1


def _delays(caplog: pytest.LogCaptureFixture) -> list[float]:
    failed = [one for one in caplog.records if one.getMessage() == "replica failed"]
    return [one.fields["next_start_seconds"] for one in failed]  # type: ignore[attr-defined]


async def test_a_first_replica_that_does_not_start_ends_the_server_with_the_reason() -> None:
    supervisors = [Supervisor(DEAD, STUB)]
    scaler = Autoscaler(supervisors, Router([supervisors[0].client]), Wanted(), 1)
    with pytest.raises(RidgelineError, match="signal 9 before it was up"):
        await scaler.start()
    await scaler.stop()


async def test_with_no_replica_left_and_none_starting_the_server_ends() -> None:
    supervisors = [Supervisor(DEAD, STUB)]
    scaler = Autoscaler(supervisors, Router([supervisors[0].client]), Wanted(), 1)
    scaler._failures, scaler._last_failure = 9, "no memory"
    with pytest.raises(EngineLost, match="none starts: no memory"):
        await scaler.watch()
    await scaler.stop()


async def test_a_draining_replica_is_the_first_to_stay() -> None:
    policy = Wanted(2)
    async with fleet(policy, CONFIG, CONFIG) as scaler:
        await until(lambda: scaler.report().ready == 2, "two replicas")
        pids = [slot.supervisor.pid for slot in scaler.slots]
        sent = [asyncio.create_task(answer(scaler, f"a{i}", 100)) for i in range(2)]
        await until(lambda: all(one.open for one in scaler.router.replicas), "requests on both")
        policy.number = 1
        await until(lambda: "draining" in states(scaler), "a drain")
        policy.number = 2
        await until(lambda: scaler.report().ready == 2, "its staying")
        assert await asyncio.gather(*sent) == [100, 100]
        assert [slot.supervisor.pid for slot in scaler.slots] == pids


async def test_a_new_replica_has_the_adapters_that_the_others_were_given(tmp_path: Path) -> None:
    policy = Wanted(1)
    async with fleet(policy, CONFIG, CONFIG) as scaler:
        await scaler.router.load_adapter("sql", str(tmp_path))
        policy.number = 2
        await until(lambda: scaler.report().ready == 2, "two replicas")
        await until(lambda: _adapters(scaler) == [("sql",), ("sql",)], "the adapter on both")


def _adapters(scaler: Autoscaler) -> list[tuple[str, ...]]:
    clients = [slot.supervisor.client for slot in scaler.slots]
    return [one.stats.adapters for one in clients if one.stats is not None]
