"""Raises the rate until the server is saturated, then closes in on the highest that it sustains.

The rate doubles from stage to stage (halves, where the first was too much already); between the
last that held and the first that did not, three more stages halve the gap on a log scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ridgeline.batching.load.summary import summarise
from ridgeline.errors import Interrupted
from ridgeline.records.load_test import ClientCheck, CurvePoint
from ridgeline.serve.loadtest.drive import Driven
from ridgeline.serve.loadtest.stage import Bench, LoadTesterTooSlow

MOST_STAGES = 16
REFINEMENTS = 3
MOST_FAILED = 0.01
LEAST_KEPT = 0.9
"""The share of the requests offered that a server completes within the window if it keeps up."""
LEAST_GROWTH = 0.05
"""Requests that pile up per request offered, above which a queue is growing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep found."""

    driven: Driven
    """The run of the highest stage that held, or of the lowest where none did."""
    client: ClientCheck
    rate: float
    curve: tuple[CurvePoint, ...]
    max_rate: float | None
    """The highest rate that held; None: the limit was not reached, or lies below every stage."""
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    rate: float
    driven: Driven
    point: CurvePoint


async def sweep(bench: Bench, on_progress: Callable[[str], None]) -> Swept:
    """Run stages until the knee is known.

    Raises:
        LoadTesterTooSlow: in the first stage already.
    """
    stages: list[_Stage] = []
    notes: list[str] = []
    while len(stages) < MOST_STAGES and not bench.stop.is_set():
        rate = next_rate([(one.rate, one.point.saturated) for one in stages], bench.settings.rate)
        if rate is None:
            break
        try:
            driven, check = await bench.stage(rate)
        except LoadTesterTooSlow as error:
            if not stages:
                raise
            notes.append(f"the sweep ended at {rate:.3g} requests/s: {error}")
            break
        if driven.interrupted and stages:
            notes.append(f"interrupted at {rate:.3g} requests/s: that stage is left out")
            break
        point = _point(bench, driven, check, rate)
        stages.append(_Stage(rate=rate, driven=driven, point=point))
        held = f"saturated: {point.why}" if point.saturated else "held"
        on_progress(f"{rate:.3g} requests/s: {held}")
    if not stages:
        raise Interrupted("interrupted before any request was sent: there are no figures")
    held_stages = [one for one in stages if not one.point.saturated]
    shown = max(held_stages, key=lambda one: one.rate, default=None)
    if shown is None:
        shown = min(stages, key=lambda one: one.rate)
        notes.append("every stage was saturated: start lower with --rate")
    reached = bool(held_stages) and len(held_stages) < len(stages)
    if held_stages and not reached:
        notes.append("no stage was saturated: the server's limit is above this sweep")
    return Swept(
        driven=shown.driven,
        client=shown.point.client,
        rate=shown.rate,
        curve=tuple(sorted((one.point for one in stages), key=lambda p: p.offered_per_second)),
        max_rate=shown.rate if reached else None,
        notes=tuple(notes),
    )


def next_rate(seen: list[tuple[float, bool]], first: float) -> float | None:
    """The rate of the next stage; None: enough is known.

    Args:
        seen: rates so far, and whether each was saturated.
        first: of the first stage.

    >>> next_rate([], 4.0), next_rate([(4.0, False)], 4.0), next_rate([(4.0, True)], 4.0)
    (4.0, 8.0, 2.0)
    """
    if not seen:
        return first
    held = [rate for rate, saturated in seen if not saturated]
    lost = [rate for rate, saturated in seen if saturated]
    if not lost:
        return 2 * max(held)
    if not held:
        return min(lost) / 2 if len(lost) < 6 else None
    low = max(held)
    above = [rate for rate in lost if rate > low]
    if not above:  # noise: a rate above one that was lost has held
        return 2 * low
    high = min(above)
    return math.sqrt(low * high) if high / low > 2 ** (1 / 2**REFINEMENTS) * 1.001 else None


def saturation(driven: Driven, warmup_seconds: float) -> str:
    """What shows that the server does not keep up; empty where it does.

    Signs: failed requests, fewer answered than offered, and a number of requests under way that
    grows over the second half of the sending by more than chance (twice the root of what it was).
    """
    exchanges = driven.exchanges
    failed = sum(bool(one.error) for one in exchanges)
    if not driven.drained:
        return "the queue did not drain in the time of a stage"
    if failed > MOST_FAILED * len(exchanges):
        return f"{failed} of {len(exchanges)} requests failed"
    middle = (warmup_seconds + driven.sent_seconds) / 2
    end = driven.sent_seconds
    times = np.linspace(middle, end, 50)
    counts = np.array([sum(one.planned <= at < one.ended for one in exchanges) for at in times])
    if len(exchanges) < 4 or end <= middle:
        return ""
    slope = float(np.polyfit(times - middle, counts, 1)[0])
    offered = sum(middle <= one.planned <= end for one in exchanges)
    growth = slope * (end - middle)
    if growth > LEAST_GROWTH * offered and growth > max(2.0, 2 * math.sqrt(counts[:10].mean())):
        return f"requests under way grow by {slope:.2g} a second"
    ended = sum(middle <= one.ended <= end for one in exchanges)
    median = float(np.median([one.e2e for one in exchanges if one.ok]))
    if median < (end - middle) / 4 and ended < LEAST_KEPT * offered - 2 * math.sqrt(offered):
        return f"{ended} answered of {offered} offered"
    return ""


def _point(bench: Bench, driven: Driven, check: ClientCheck, rate: float) -> CurvePoint:
    warmup = bench.settings.warmup(driven.sent_seconds)
    summary = summarise(driven, warmup, bench.settings.slo)
    why = saturation(driven, warmup)
    ttft, tpot, e2e = summary.ttft_seconds, summary.tpot_seconds, summary.e2e_seconds
    return CurvePoint(
        offered_per_second=rate,
        finished_per_second=summary.requests_per_second,
        output_tokens_per_second=summary.output_tokens_per_second,
        goodput=summary.goodput,
        in_flight=summary.in_flight,
        saturated=bool(why),
        why=why,
        ttft_p50_seconds=ttft.p50 if ttft else None,
        ttft_p99_seconds=ttft.p99 if ttft else None,
        tpot_p50_seconds=tpot.p50 if tpot else None,
        tpot_p99_seconds=tpot.p99 if tpot else None,
        e2e_p50_seconds=e2e.p50 if e2e else None,
        e2e_p99_seconds=e2e.p99 if e2e else None,
        client=check,
    )
