"""Sends the requests of a run at their times, and watches that it can.

One task waits for the next time and starts a task per request; a closed loop has a task per place.
Nothing waits for a completion in an open loop, however many are in flight.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

from ridgeline.batching.load.stamps import CANCELLED, RequestStamps, RunStamps
from ridgeline.batching.load.workload import Planned
from ridgeline.serve.loadtest.client import Client

TICK_SECONDS = 0.02
_GC_OBJECTS = 20_000
"""New objects between collections of garbage while requests are sent: each is a pause."""
MakeBody = Callable[[Planned], bytes]


@dataclass(slots=True, kw_only=True)
class Driven(RunStamps):
    """What came of a run, and how this program bore it."""

    cpu_share: float = 0.0
    """Processor seconds of this process per second of sending."""
    loop_lags: list[float] = field(default_factory=list)
    """Seconds that a timer of the event loop came late, sampled all through the sending."""
    drained: bool = True
    """Whether all came back before the time to drain ran out."""


async def drive(
    client: Client,
    requests: Iterator[Planned],
    make_body: MakeBody,
    *,
    concurrency: int | None,
    seconds: float,
    drain_seconds: float,
    stop: asyncio.Event,
) -> Driven:
    """Run to the end, or until `stop` is set.

    Args:
        client: sends.
        requests: what to send.
        make_body: encodes one, just before its time.
        concurrency: places of a closed loop; None: open loop.
        seconds: at which a closed loop ends.
        drain_seconds: to wait for completions after the last sending.
        stop: set by an interruption.
    """
    driven = Driven()
    in_flight: set[asyncio.Task[None]] = set()
    thresholds = gc.get_threshold()
    frozen = gc.get_freeze_count()  # by who called: what they set aside is theirs
    gc.collect()
    if not frozen:
        gc.freeze()  # what stands already is not walked through again while times are taken
    gc.set_threshold(_GC_OBJECTS, *thresholds[1:])
    stopped = asyncio.create_task(stop.wait())
    client.begin = time.perf_counter()
    if concurrency is None:
        sending = asyncio.create_task(_open_loop(client, requests, make_body, driven, in_flight))
    else:
        sending = asyncio.create_task(
            _closed_loop(client, requests, make_body, driven, concurrency, seconds)
        )
    ticking = asyncio.create_task(_tick(driven.loop_lags))
    processor = time.process_time()
    try:
        await asyncio.wait({sending, stopped}, return_when=asyncio.FIRST_COMPLETED)
        driven.cpu_share = (time.process_time() - processor) / client.now()
        driven.sent_seconds = driven.exchanges[-1].planned if driven.exchanges else client.now()
        ticking.cancel()
        if sending.done():
            await sending  # raises what went wrong in it
        await _drain(in_flight, stopped, drain_seconds)
        driven.interrupted = stop.is_set()
        driven.drained = not in_flight
    finally:
        ended = [task for task in (sending, ticking, stopped, *in_flight) if not task.done()]
        for task in ended:
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)
        gc.set_threshold(*thresholds)
        if not frozen:
            gc.unfreeze()
    return driven


async def _open_loop(
    client: Client,
    requests: Iterator[Planned],
    make_body: MakeBody,
    driven: Driven,
    in_flight: set[asyncio.Task[None]],
) -> None:
    for group in at_once(requests):
        # All before the first is due: the last of a burst would wait for the others' bodies.
        bodies = [make_body(request) for request in group]
        for request, body in zip(group, bodies, strict=True):
            assert request.at_seconds is not None, "an open loop has times"
            # A sleep of 0 lets what was started begin, even when we are late.
            await asyncio.sleep(max(0.0, request.at_seconds - client.now()))
            exchange = RequestStamps(planned=request.at_seconds)
            driven.exchanges.append(exchange)
            task = asyncio.create_task(_exchange(client, body, exchange))
            in_flight.add(task)
            task.add_done_callback(in_flight.discard)
    await asyncio.sleep(0)


def at_once(requests: Iterator[Planned]) -> Iterator[list[Planned]]:
    """Requests of an open loop, those together that are planned for the same moment.

    >>> from ridgeline.batching.load.workload import Planned
    >>> times = (0.0, 3.0, 3.0, 3.0, 6.0)
    >>> one = [Planned(at_seconds=at, input_tokens=1, output_tokens=1) for at in times]
    >>> [len(group) for group in at_once(iter(one))]
    [1, 3, 1]
    """
    for _, group in groupby(requests, key=lambda one: one.at_seconds):
        yield list(group)


async def _closed_loop(
    client: Client,
    requests: Iterator[Planned],
    make_body: MakeBody,
    driven: Driven,
    concurrency: int,
    seconds: float,
) -> None:
    async def place() -> None:
        while client.now() < seconds and (request := next(requests, None)) is not None:
            body = make_body(request)
            exchange = RequestStamps(planned=client.now())
            driven.exchanges.append(exchange)
            await _exchange(client, body, exchange)

    places = [asyncio.create_task(place()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*places)
    finally:
        for task in places:
            task.cancel()
        await asyncio.gather(*places, return_exceptions=True)


async def _exchange(client: Client, body: bytes, exchange: RequestStamps) -> None:
    try:
        await client.send(body, exchange)
    except asyncio.CancelledError:
        exchange.error = CANCELLED
        exchange.ended = client.now()
        raise


async def _drain(
    in_flight: set[asyncio.Task[None]], stopped: asyncio.Task[object], seconds: float
) -> None:
    """Wait for completions until all are there, or it is interrupted, or the time is over."""
    end = time.perf_counter() + seconds
    while in_flight and not stopped.done() and (left := end - time.perf_counter()) > 0:
        timeout = None if math.isinf(left) else left
        await asyncio.wait(
            {*in_flight, stopped}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED
        )


async def _tick(lags: list[float]) -> None:
    while True:
        due = time.perf_counter() + TICK_SECONDS
        await asyncio.sleep(TICK_SECONDS)
        lags.append(time.perf_counter() - due)
