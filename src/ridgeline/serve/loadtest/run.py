"""A whole load test: ask the server, send the load, judge the tester, give the figures."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import msgspec

from ridgeline import quantity
from ridgeline.batching.load.summary import DEFINITIONS, request_seconds, summarise, timeline
from ridgeline.batching.load.workload import describe
from ridgeline.errors import Interrupted
from ridgeline.records.load import trace_of
from ridgeline.records.load_test import ClientCheck, CurvePoint, Figures, LoadTest
from ridgeline.records.request_trace import block_tokens
from ridgeline.serve.loadtest.client import open_client
from ridgeline.serve.loadtest.drive import Driven
from ridgeline.serve.loadtest.probe import base_url, probe
from ridgeline.serve.loadtest.prompts import SyntheticPrompts
from ridgeline.serve.loadtest.settings import LoadSettings, check
from ridgeline.serve.loadtest.stage import Bench
from ridgeline.serve.loadtest.sweep import sweep

OnProgress = Callable[[str], None]


def load_test(settings: LoadSettings, on_progress: OnProgress) -> LoadTest:
    """Run one load test or sweep; SIGINT and SIGTERM end it early, with what was seen so far.

    Raises:
        InputError: settings that cannot be, or a server that does not answer.
        Interrupted: before any request was answered.
        LoadTesterTooSlow: the load tester was the bottleneck.
    """
    check(settings)
    _allow_many_connections()
    return asyncio.run(_load_test(settings, on_progress))


async def _load_test(settings: LoadSettings, on_progress: OnProgress) -> LoadTest:
    trace = trace_of(settings)
    seed = settings.seed if settings.seed is not None else random.SystemRandom().getrandbits(32)
    prompts = SyntheticPrompts(
        seed=seed,
        token_ids=range(*settings.token_ids) if settings.token_ids else None,
        block_tokens=block_tokens(settings.length_scale),
    )
    address = base_url(settings.url)
    stop = asyncio.Event()
    async with open_client(
        address, settings.api, api_key=settings.api_key, timeout_seconds=settings.timeout_seconds
    ) as client:
        served = await probe(client, settings, prompts)
        bench = Bench(
            client=client,
            served=served,
            settings=settings,
            trace=trace,
            seed=seed,
            stop=stop,
            own_ids=count(),
        )
        with _until_signalled(stop):
            if settings.sweep:
                found = await sweep(bench, on_progress)
                driven, client_check, rate = found.driven, found.client, found.rate
                curve, max_rate, notes = found.curve, found.max_rate, found.notes
            else:
                on_progress(f"{describe(settings)}; Ctrl-C ends it early")
                driven, client_check = await bench.stage(None)
                curve, max_rate, notes, rate = (), None, (), None
    summary = summarise(driven, settings.warmup(driven.sent_seconds), settings.slo)
    if driven.interrupted and not summary.requests.ok:
        raise Interrupted("interrupted before any request was answered: there are no figures")
    return _record(
        settings,
        address=address,
        model=served.model,
        seed=seed,
        driven=driven,
        summary=summary,
        client=client_check,
        arrivals=describe(settings, rate),
        curve=curve,
        max_rate=max_rate,
        notes=(*served.notes, *notes, *_notes(driven, summary)),
    )


def _record(
    settings: LoadSettings,
    *,
    address: str,
    model: str,
    seed: int,
    driven: Driven,
    summary: Figures,
    client: ClientCheck,
    arrivals: str,
    curve: tuple[CurvePoint, ...],
    max_rate: float | None,
    notes: tuple[str, ...],
) -> LoadTest:
    return LoadTest(
        **msgspec.structs.asdict(summary),
        url=address,
        model=model,
        arrivals=arrivals,
        seed=seed,
        interrupted=driven.interrupted,
        slo=settings.slo,
        client=client,
        request_seconds=request_seconds(driven, summary.window_seconds),
        timeline=timeline(driven),
        curve=curve,
        max_rate=max_rate,
        notes=notes,
        definitions=DEFINITIONS,
    )


def _notes(driven: Driven, summary: Figures) -> Iterator[str]:
    """What a reader of the figures has to know of this run."""
    if driven.interrupted:
        yield f"interrupted after {quantity.seconds(driven.sent_seconds)} of sending"
    if summary.window_seconds[1] > driven.sent_seconds:
        yield "short run: the window reaches to the last answer, so rates include the drain"
    split = sum(
        one.output_tokens is not None and len(one.chunks) > one.output_tokens
        for one in driven.exchanges
        if one.ok
    )
    if split:
        yield f"{split} answers came in more chunks than tokens: their ITL is over chunks"
    share = summary.lengths.cached_share
    if share:
        yield f"the server found {share:.0%} of the input in its prefix cache"


@contextmanager
def _until_signalled(stop: asyncio.Event) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stop`; outside the main thread there are no signals."""
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            loop.add_signal_handler(number, stop.set)
    except (RuntimeError, ValueError):
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _allow_many_connections() -> None:
    """An open loop holds a connection per request under way: as many files as we may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
